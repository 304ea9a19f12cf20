"""Workers and supervision.

A worker starts once, ends once, and reports its result. `ProcessWorker` runs a program along with all of its child
processes, `ContainerWorker` runs a container, `TaskWorker` runs an async function, and `ThreadWorker` runs a plain
function. To define your own kind of worker, subclass `BaseWorker`. A `Gate` suspends loops at a safe point. A
`Supervisor` keeps workers running. Each of its children is described by a `Spec`. A restarted worker can call
`handover` to find out how the previous run ended.
"""

from lifecycle._lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "lifecycle.backoff": "Backoff Intensity",
        "lifecycle.errors": "DoNotRestart InvalidTransition RestartLimitReached StopTree WorkerFailed",
        ".base": "BaseWorker Handover Worker handover stop_and_wait",
        ".containers": "ContainerWorker",
        ".model": "End Exit ProbeResult Status WorkerState",
        ".process": "ProcessWorker",
        ".specs": "AutoShutdown FirstStart OnLimit Restart Spec StopOrder Strategy",
        ".supervisor": "Supervisor",
        ".tasks": "Gate TaskWorker ThreadWorker",
    },
)

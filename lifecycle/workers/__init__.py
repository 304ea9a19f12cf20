"""Workers and supervision.

A worker starts once, ends once, and reports its result. `ProcessWorker` runs a program with all its processes,
`ContainerWorker` a container, `TaskWorker` an async function, and `ThreadWorker` a plain function. Derive your own
kinds from `BaseWorker`. A `Gate` suspends loops at a safe point. A `Supervisor` keeps workers running, and a `Spec`
defines the rules for one of them. In a restarted worker, `handover` returns the result of the previous run.
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

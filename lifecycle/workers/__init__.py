"""Workers and supervision.

A worker starts once, ends once, and reports how. `ProcessWorker` runs a program with all its processes,
`ContainerWorker` a container, `TaskWorker` an async function and `ThreadWorker` a plain one; `BaseWorker` is for your
own kinds. A `Gate` suspends loops at a safe point, and `handover` returns the result of the previous life of a worker
that was restarted. A `Supervisor` keeps workers running; a `Spec` defines how it treats each of them.
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
        ".specs": "AutoShutdown OnLimit Restart Spec StopOrder Strategy",
        ".supervisor": "Supervisor",
        ".tasks": "Gate TaskWorker ThreadWorker",
    },
)

"""What is kept alive.

A worker is started once, ends once, and says truthfully how. `ProcessWorker` runs a program with all its processes,
`ContainerWorker` a container, `TaskWorker` an async function and `ThreadWorker` a plain one; `BaseWorker` is for kinds
of one's own. A `Gate` holds loops where they can be held, and `handover` tells who was started again what became of the
life before. A `Supervisor` keeps workers running: a `Spec` for each says how.
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

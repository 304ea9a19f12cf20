"""What is kept alive.

A worker is started once, ends once, and says truthfully how. `ProcessWorker` runs a program with all its processes,
`ContainerWorker` a container, `TaskWorker` an async function and `ThreadWorker` a plain one; `BaseWorker` is for kinds
of one's own. A `Gate` holds loops where they can be held, and `handover` tells who was started again what became of the
life before. A `Supervisor` keeps workers running: a `Spec` for each says how.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle._lazy import lazy_names

if TYPE_CHECKING:
    from lifecycle.backoff import Backoff, Intensity
    from lifecycle.errors import DoNotRestart, InvalidTransition, RestartLimitReached, StopTree, WorkerFailed
    from lifecycle.workers.base import BaseWorker
    from lifecycle.workers.children import Worker
    from lifecycle.workers.containers import ContainerWorker
    from lifecycle.workers.gates import Gate
    from lifecycle.workers.handovers import Handover, handover
    from lifecycle.workers.process import ProcessWorker
    from lifecycle.workers.records import End, Exit, ProbeResult, WorkerState
    from lifecycle.workers.specs import AutoShutdown, OnLimit, Restart, Spec, StopOrder, Strategy
    from lifecycle.workers.status import Status
    from lifecycle.workers.stopping import stop_and_wait
    from lifecycle.workers.supervisor import Supervisor
    from lifecycle.workers.tasks import TaskWorker
    from lifecycle.workers.threads import ThreadWorker

__all__ = [
    "AutoShutdown",
    "Backoff",
    "BaseWorker",
    "ContainerWorker",
    "DoNotRestart",
    "End",
    "Exit",
    "Gate",
    "Handover",
    "Intensity",
    "InvalidTransition",
    "OnLimit",
    "ProbeResult",
    "ProcessWorker",
    "Restart",
    "RestartLimitReached",
    "Spec",
    "Status",
    "StopOrder",
    "StopTree",
    "Strategy",
    "Supervisor",
    "TaskWorker",
    "ThreadWorker",
    "Worker",
    "WorkerFailed",
    "WorkerState",
    "handover",
    "stop_and_wait",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AutoShutdown": "lifecycle.workers.specs",
        "Backoff": "lifecycle.backoff",
        "BaseWorker": "lifecycle.workers.base",
        "ContainerWorker": "lifecycle.workers.containers",
        "DoNotRestart": "lifecycle.errors",
        "End": "lifecycle.workers.records",
        "Exit": "lifecycle.workers.records",
        "Gate": "lifecycle.workers.gates",
        "Handover": "lifecycle.workers.handovers",
        "Intensity": "lifecycle.backoff",
        "InvalidTransition": "lifecycle.errors",
        "OnLimit": "lifecycle.workers.specs",
        "ProbeResult": "lifecycle.workers.records",
        "ProcessWorker": "lifecycle.workers.process",
        "Restart": "lifecycle.workers.specs",
        "RestartLimitReached": "lifecycle.errors",
        "Spec": "lifecycle.workers.specs",
        "Status": "lifecycle.workers.status",
        "StopOrder": "lifecycle.workers.specs",
        "StopTree": "lifecycle.errors",
        "Strategy": "lifecycle.workers.specs",
        "Supervisor": "lifecycle.workers.supervisor",
        "TaskWorker": "lifecycle.workers.tasks",
        "ThreadWorker": "lifecycle.workers.threads",
        "Worker": "lifecycle.workers.children",
        "WorkerFailed": "lifecycle.errors",
        "WorkerState": "lifecycle.workers.records",
        "handover": "lifecycle.workers.handovers",
        "stop_and_wait": "lifecycle.workers.stopping",
    },
)

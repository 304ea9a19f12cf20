"""What is kept alive.

A worker is started once, ends once, and says truthfully how. `ProcessWorker` runs a program with all its processes,
`TaskWorker` an async function and `ThreadWorker` a plain one; `BaseWorker` is for kinds of one's own. A `Gate` holds
loops where they can be held, and `handover` tells who was started again what became of the life before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle._lazy import lazy_names

if TYPE_CHECKING:
    from lifecycle.backoff import Backoff, Intensity
    from lifecycle.errors import InvalidTransition, WorkerFailed
    from lifecycle.workers.base import BaseWorker
    from lifecycle.workers.gates import Gate
    from lifecycle.workers.handovers import Handover, handover
    from lifecycle.workers.process import ProcessWorker
    from lifecycle.workers.records import End, Exit, ProbeResult, WorkerState
    from lifecycle.workers.status import Status
    from lifecycle.workers.stopping import stop_and_wait
    from lifecycle.workers.tasks import TaskWorker
    from lifecycle.workers.threads import ThreadWorker

__all__ = [
    "Backoff",
    "BaseWorker",
    "End",
    "Exit",
    "Gate",
    "Handover",
    "Intensity",
    "InvalidTransition",
    "ProbeResult",
    "ProcessWorker",
    "Status",
    "TaskWorker",
    "ThreadWorker",
    "WorkerFailed",
    "WorkerState",
    "handover",
    "stop_and_wait",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Backoff": "lifecycle.backoff",
        "BaseWorker": "lifecycle.workers.base",
        "End": "lifecycle.workers.records",
        "Exit": "lifecycle.workers.records",
        "Gate": "lifecycle.workers.gates",
        "Handover": "lifecycle.workers.handovers",
        "Intensity": "lifecycle.backoff",
        "InvalidTransition": "lifecycle.errors",
        "ProbeResult": "lifecycle.workers.records",
        "ProcessWorker": "lifecycle.workers.process",
        "Status": "lifecycle.workers.status",
        "TaskWorker": "lifecycle.workers.tasks",
        "ThreadWorker": "lifecycle.workers.threads",
        "WorkerFailed": "lifecycle.errors",
        "WorkerState": "lifecycle.workers.records",
        "handover": "lifecycle.workers.handovers",
        "stop_and_wait": "lifecycle.workers.stopping",
    },
)

"""What is kept alive.

A worker is started once, ends once, and says truthfully how. `ProcessWorker` runs a program with all its processes;
`BaseWorker` is for kinds of one's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle._lazy import lazy_names

if TYPE_CHECKING:
    from lifecycle.backoff import Backoff, Intensity
    from lifecycle.errors import InvalidTransition, WorkerFailed
    from lifecycle.workers.base import BaseWorker
    from lifecycle.workers.process import ProcessWorker
    from lifecycle.workers.records import End, Exit, ProbeResult, WorkerState
    from lifecycle.workers.status import Status
    from lifecycle.workers.stopping import stop_and_wait

__all__ = [
    "Backoff",
    "BaseWorker",
    "End",
    "Exit",
    "Intensity",
    "InvalidTransition",
    "ProbeResult",
    "ProcessWorker",
    "Status",
    "WorkerFailed",
    "WorkerState",
    "stop_and_wait",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Backoff": "lifecycle.backoff",
        "BaseWorker": "lifecycle.workers.base",
        "End": "lifecycle.workers.records",
        "Exit": "lifecycle.workers.records",
        "Intensity": "lifecycle.backoff",
        "InvalidTransition": "lifecycle.errors",
        "ProbeResult": "lifecycle.workers.records",
        "ProcessWorker": "lifecycle.workers.process",
        "Status": "lifecycle.workers.status",
        "WorkerFailed": "lifecycle.errors",
        "WorkerState": "lifecycle.workers.records",
        "stop_and_wait": "lifecycle.workers.stopping",
    },
)

"""A pool of processes that answer calls.

What they load stays loaded, a call can be cancelled, streamed and killed, and a process that dies fails the one call
that it had. `Pool` is a worker, and each of its members is one.
"""

from __future__ import annotations

from lifecycle._lazy import lazy_names

# Checkers know the name; a member starts through here, and importing typing would be a tenth of its start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from lifecycle.errors import PoolBusy, PoolClosed, PoolError, PoolFailed, RemoteError, SessionLost, WorkerLost
    from lifecycle.workers.pool.phases import Phase, PhaseChange
    from lifecycle.workers.pool.settings import Heartbeat, Process, Recycle, SessionMode, Sessions

__all__ = [
    "Heartbeat",
    "Phase",
    "PhaseChange",
    "PoolBusy",
    "PoolClosed",
    "PoolError",
    "PoolFailed",
    "Process",
    "Recycle",
    "RemoteError",
    "SessionLost",
    "SessionMode",
    "Sessions",
    "WorkerLost",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Heartbeat": "lifecycle.workers.pool.settings",
        "Phase": "lifecycle.workers.pool.phases",
        "PhaseChange": "lifecycle.workers.pool.phases",
        "PoolBusy": "lifecycle.errors",
        "PoolClosed": "lifecycle.errors",
        "PoolError": "lifecycle.errors",
        "PoolFailed": "lifecycle.errors",
        "Process": "lifecycle.workers.pool.settings",
        "Recycle": "lifecycle.workers.pool.settings",
        "RemoteError": "lifecycle.errors",
        "SessionLost": "lifecycle.errors",
        "SessionMode": "lifecycle.workers.pool.settings",
        "Sessions": "lifecycle.workers.pool.settings",
        "WorkerLost": "lifecycle.errors",
    },
)

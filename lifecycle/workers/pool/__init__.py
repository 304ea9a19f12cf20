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
    from lifecycle.workers.pool.figures import PoolStats
    from lifecycle.workers.pool.loans import Lease
    from lifecycle.workers.pool.members import Health, Member
    from lifecycle.workers.pool.phases import Phase, PhaseChange
    from lifecycle.workers.pool.pool import Pool
    from lifecycle.workers.pool.settings import Heartbeat, Process, Recycle, SessionMode, Sessions
    from lifecycle.workers.pool.streams import Stream

__all__ = [
    "Health",
    "Heartbeat",
    "Lease",
    "Member",
    "Phase",
    "PhaseChange",
    "Pool",
    "PoolBusy",
    "PoolClosed",
    "PoolError",
    "PoolFailed",
    "PoolStats",
    "Process",
    "Recycle",
    "RemoteError",
    "SessionLost",
    "SessionMode",
    "Sessions",
    "Stream",
    "WorkerLost",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Health": "lifecycle.workers.pool.members",
        "Heartbeat": "lifecycle.workers.pool.settings",
        "Lease": "lifecycle.workers.pool.loans",
        "Member": "lifecycle.workers.pool.members",
        "Phase": "lifecycle.workers.pool.phases",
        "PhaseChange": "lifecycle.workers.pool.phases",
        "Pool": "lifecycle.workers.pool.pool",
        "PoolBusy": "lifecycle.errors",
        "PoolClosed": "lifecycle.errors",
        "PoolError": "lifecycle.errors",
        "PoolFailed": "lifecycle.errors",
        "PoolStats": "lifecycle.workers.pool.figures",
        "Process": "lifecycle.workers.pool.settings",
        "Recycle": "lifecycle.workers.pool.settings",
        "RemoteError": "lifecycle.errors",
        "SessionLost": "lifecycle.errors",
        "SessionMode": "lifecycle.workers.pool.settings",
        "Sessions": "lifecycle.workers.pool.settings",
        "Stream": "lifecycle.workers.pool.streams",
        "WorkerLost": "lifecycle.errors",
    },
)

"""A pool of processes that answer calls.

What they load stays loaded, a call can be cancelled, streamed and killed, and a process that dies fails the one call
that it had. `Pool` is a worker, and each of its members is one.
"""

from lifecycle._lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "lifecycle.errors": "PoolBusy PoolClosed PoolError PoolFailed RemoteError SessionLost WorkerLost",
        ".leases": "Lease",
        ".members": "Health Member",
        ".phases": "Phase PhaseChange",
        ".pool": "Pool",
        ".settings": "Heartbeat Process Recycle SessionMode Sessions",
        ".stats": "PoolStats",
        ".streams": "Stream",
    },
)

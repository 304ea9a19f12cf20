"""A pool of worker processes that answer calls.

Workers keep what they have loaded, a call can be cancelled, streamed and killed, and a process that dies fails only its
own call. `Pool` is a worker, and so is each of its processes.
"""

from lifecycle._lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "lifecycle.errors": "PoolBusy PoolClosed PoolError PoolFailed RemoteError SessionLost WorkerLost",
        ".pool": "Pool",
        ".records": "Health Phase PhaseChange PoolStats",
        ".settings": "Heartbeat Process Recycle SessionMode Sessions",
        ".streams": "Lease Stream",
        ".worker": "PoolWorker",
    },
)

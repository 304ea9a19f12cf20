"""A pool of worker processes that serve calls.

Workers keep loaded data in memory between calls. A call can stream its results, and can be cancelled or killed. If a
process dies, only the calls running in it fail. Both a `Pool` and each of its processes are workers.

This is what happens during a call:

1. `Pool.call` creates a `CallSpec`, and `CallDispatcher.call` turns it into a `PendingCall`.
2. `PendingCall.begin` gets a worker with a free slot from `Scheduler.take`, or waits in the scheduler's queue.
3. `Connection.call` encodes the call and writes it to the worker's pipe. ``child/runtime.py`` executes the call there.
4. `Connection._receive` reads the response and sets the result. `WorkerManager.give_back_slot` starts the next call.
5. If the worker dies, the connection fails its calls, and `WorkerManager` starts a replacement.
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

"""A pool of worker processes that answer calls.

Workers keep what they have loaded, a call can be cancelled, streamed and killed, and a process that dies fails only its
own call. `Pool` is a worker, and so is each of its processes.

The path of a call:

1. `Pool.call` makes a `CallSpec`, and `CallDispatcher.call` makes a `PendingCall` of it.
2. `PendingCall.begin` gets a worker with a free slot from `Scheduler.take`, or waits in the queue of the `Scheduler`.
3. `Connection.call` encodes the call and writes it to the pipe of the worker. ``child/runtime.py`` executes it there.
4. `Connection._receive` reads the answer and sets the result. `WorkerManager.give_back_slot` has the next call sent.
5. If the worker dies, the connection fails its calls, and `WorkerManager` starts another in its place.
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

"""What events cause: suspend and resume, reload, shut down, a call, and falling back from one handler to another.

Each is an object that is called with an event, so it goes wherever a handler goes. What they drive is given to them
as functions or as objects with ``suspend()`` and ``resume()``, or with ``call()``; none of them knows a worker.
"""

from lifecycle.handlers.escalator import Escalator
from lifecycle.handlers.pools import PoolHandler
from lifecycle.handlers.reload import ReloadHandler, ReloadState
from lifecycle.handlers.shutdown import ShutdownHandler, TerminateHandler
from lifecycle.handlers.suspend import Suspendable, SuspendHandler

__all__ = [
    "Escalator",
    "PoolHandler",
    "ReloadHandler",
    "ReloadState",
    "ShutdownHandler",
    "SuspendHandler",
    "Suspendable",
    "TerminateHandler",
]

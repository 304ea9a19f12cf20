"""What events cause: suspend and resume, reload, shut down, a call, a flow, and falling back to another handler.

Each is an object that is called with an event, so it goes wherever a handler goes. What they drive is given to them
as functions or as objects with ``suspend()`` and ``resume()``, ``call()`` or ``start()``; none of them knows a worker,
a pool or a flow.
"""

from lifecycle.handlers.escalator import Escalator
from lifecycle.handlers.flows import FlowHandler
from lifecycle.handlers.pools import PoolHandler
from lifecycle.handlers.reload import ReloadHandler, ReloadState
from lifecycle.handlers.shutdown import ShutdownHandler, TerminateHandler
from lifecycle.handlers.suspend import Suspendable, SuspendHandler

__all__ = [
    "Escalator",
    "FlowHandler",
    "PoolHandler",
    "ReloadHandler",
    "ReloadState",
    "ShutdownHandler",
    "SuspendHandler",
    "Suspendable",
    "TerminateHandler",
]

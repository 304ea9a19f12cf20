"""Handlers for common events: suspend and resume, reload, shut down, call a pool, start a flow, escalate.

Each is an object that is called with an event, so it can be registered like any handler. It drives functions, or
objects with ``suspend()`` and ``resume()``, ``call()`` or ``start()``, and imports no worker, pool or flow.
"""

from lifecycle.handlers.reload import ReloadHandler, ReloadState
from lifecycle.handlers.shutdown import Escalator, ShutdownHandler, TerminateHandler
from lifecycle.handlers.suspend import Suspendable, SuspendHandler
from lifecycle.handlers.work import FlowHandler, PoolHandler

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


def __dir__() -> list[str]:
    return __all__

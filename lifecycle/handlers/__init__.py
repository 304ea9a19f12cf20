"""Handlers for common events: suspend and resume, reload, shut down, call a pool, start a flow, escalate.

Each handler is a callable object, so it can be registered like any function. It works with functions, or with any
object that has ``suspend()`` and ``resume()``, ``call()`` or ``start()``. It does not import workers, pools or flows.
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

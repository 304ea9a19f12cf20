"""Handlers for common tasks: suspend and resume, reload, shut down, escalate, call a pool, or start a flow.

Each handler is a callable object, so you can register it like a function. They work with functions, and with any
object that has ``call()``, ``start()``, or both ``suspend()`` and ``resume()``. They don't import workers, pools or
flows.
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

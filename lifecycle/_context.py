"""Where code runs: in which worker, in which flow, and under which span; for logs, and for who carries a trace on.

The event that is being handled is not here: `lifecycle.control.delivery` knows it.
"""

from __future__ import annotations

from contextvars import ContextVar

__all__ = ["flow", "leave", "traceparent", "worker"]

#: The name of the worker whose function runs here.
worker: ContextVar[str] = ContextVar("lifecycle_worker", default="")
#: The id of the flow whose task runs here.
flow: ContextVar[str] = ContextVar("lifecycle_flow", default="")
#: The span that runs here, as the W3C writes it.
traceparent: ContextVar[str] = ContextVar("lifecycle_traceparent", default="")


def leave() -> None:
    """Forget where whoever started the running task was: it does not work for that one alone."""
    for each in (worker, flow, traceparent):
        if each.get():
            each.set("")

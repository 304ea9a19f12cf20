"""In a member: a call runs under the span of who asked for it, so that spans that are begun in it are below that one.

This is the context in `lifecycle._util` and, where its API is installed, OpenTelemetry's context.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from lifecycle._util import current_span

__all__ = ["under"]


def under(traceparent: str) -> ExitStack:
    """Be under that span from here on, until what this returns is closed."""
    held = ExitStack()
    held.callback(current_span.reset, current_span.set(traceparent))
    try:
        from opentelemetry.context import attach, detach
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        return held
    token = attach(TraceContextTextMapPropagator().extract({"traceparent": traceparent}))
    held.callback(partial(detach, token))
    return held

"""Targets for pool calls that report their trace. Pool workers import this module."""

from __future__ import annotations

import os
import time
from typing import Any

__all__ = ["die", "environment", "seen", "seen_async", "seen_stream", "sleep", "spoilt"]


def seen() -> list[str]:
    """Return the current span: ours, and OpenTelemetry's."""
    from opentelemetry import trace

    from lifecycle._util import current_span

    here = trace.get_current_span().get_span_context()
    theirs = f"00-{here.trace_id:032x}-{here.span_id:016x}-{here.trace_flags:02x}" if here.is_valid else ""
    return [current_span.get(), theirs]


async def seen_async() -> list[str]:
    return seen()


def seen_stream(number: int) -> Any:
    for _ in range(number):
        yield seen()


def spoilt() -> None:
    raise KeyError("spoilt")


def sleep() -> None:
    time.sleep(60)


def die() -> None:
    os._exit(1)


def environment() -> str:
    return os.environ.get("TRACEPARENT", "")

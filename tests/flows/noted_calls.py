"""A step function that records its calls, for the tests of workflows. The fixture ``calls`` empties the list."""

from __future__ import annotations

from typing import Any

__all__ = ["CALLS", "note"]

#: The calls of the step functions of a test, in order.
CALLS: list[Any] = []


async def note(value: Any) -> Any:
    """Record a call, and return its argument."""
    CALLS.append(value)
    return value

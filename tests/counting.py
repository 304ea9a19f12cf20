"""Counts operations, for tests of costs that must not grow with the number of objects."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

__all__ = ["calls_of", "counted_calls"]


@contextmanager
def counted_calls() -> Iterator[list[str]]:
    """Yield a list that grows with each call of a Python function in this thread."""
    names: list[str] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            names.append(frame.f_code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield names
    finally:
        sys.setprofile(before)


def calls_of(function: Callable[[], object]) -> int:
    """Return the number of Python functions that ``function`` calls in this thread."""
    with counted_calls() as names:
        function()
    return len(names)

"""Asking again and again, for those ways of being ready of which nothing tells us."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["poll"]

#: Seconds between the first two questions, and the most between two.
_FIRST: Final = 0.01
_LONGEST: Final = 0.2


async def poll(question: Callable[[], Awaitable[bool]]) -> None:
    """Ask ``question``, at growing intervals, until the answer is yes."""
    pause = _FIRST
    while not await question():
        await asyncio.sleep(pause)
        pause = min(_LONGEST, pause * 1.5)

"""Waiting for what nothing tells of; never for a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["until"]


async def until(condition: Callable[[], object], limit: float = 30.0) -> None:
    """Return when it is so; a TimeoutError after ``limit`` seconds says that it never was."""
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(0.002)

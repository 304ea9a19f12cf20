"""Polling for conditions that do not notify the waiting code, instead of fixed sleeps."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["until", "until_blocking"]


async def until(condition: Callable[[], object], limit: float = 30.0) -> None:
    """Wait until the condition is true. Raises TimeoutError after ``limit`` seconds."""
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(0.002)


_T = TypeVar("_T")


def until_blocking(condition: Callable[[], _T | None], what: str | Callable[[], str] = "it", limit: float = 30.0) -> _T:
    """Wait without an event loop, and return the result of ``condition``. If it stays false, fail with ``what``."""
    end = time.monotonic() + limit
    while not (found := condition()):
        if time.monotonic() > end:
            pytest.fail(f"{what} did not happen in time" if isinstance(what, str) else what())
        time.sleep(0.02)
    return found

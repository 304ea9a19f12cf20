"""Whether it blows: everybody who throws something asks first, so that there can be calm."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

__all__ = ["Wind"]


class Wind:
    """It does not, at first."""

    def __init__(self) -> None:
        self._blows = asyncio.Event()
        self._under_way = 0
        self._moved = asyncio.Event()

    @asynccontextmanager
    async def blowing(self) -> AsyncGenerator[None]:
        """Wait until it blows; there is no calm before this block has ended."""
        await self._blows.wait()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._moved.set()

    def rise(self) -> None:
        """Blow."""
        self._blows.set()

    async def fall(self) -> None:
        """Blow no more; returns when nothing is under way."""
        self._blows.clear()
        while self._under_way:
            self._moved.clear()
            await self._moved.wait()

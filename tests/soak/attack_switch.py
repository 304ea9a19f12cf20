"""Whether it blows: everybody who throws something asks first, so that there can be calm."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

__all__ = ["AttackSwitch"]


class AttackSwitch:
    """It does not, at first."""

    def __init__(self) -> None:
        self._attacks = asyncio.Event()
        self._under_way = 0
        self._moved = asyncio.Event()

    @asynccontextmanager
    async def attacking(self) -> AsyncGenerator[None]:
        """Wait until it blows; there is no calm before this block has ended."""
        await self._attacks.wait()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._moved.set()

    def enable(self) -> None:
        """Blow."""
        self._attacks.set()

    async def disable(self) -> None:
        """Blow no more; returns when nothing is under way."""
        self._attacks.clear()
        while self._under_way:
            self._moved.clear()
            await self._moved.wait()

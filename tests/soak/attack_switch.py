"""A switch that turns all attacks on and off, which lets checks run undisturbed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

__all__ = ["AttackSwitch"]


class AttackSwitch:
    """The switch. Attacks are off at first."""

    def __init__(self) -> None:
        self._attacks = asyncio.Event()
        self._under_way = 0
        self._moved = asyncio.Event()

    @asynccontextmanager
    async def attacking(self) -> AsyncGenerator[None]:
        """Wait until attacks are on, and run the block. `disable` waits until the block has exited."""
        await self._attacks.wait()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._moved.set()

    def enable(self) -> None:
        """Turn attacks on."""
        self._attacks.set()

    async def disable(self) -> None:
        """Turn attacks off, and wait until all running attacks have finished."""
        self._attacks.clear()
        while self._under_way:
            self._moved.clear()
            await self._moved.wait()

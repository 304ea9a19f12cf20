"""Ticks at a fixed rate."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lifecycle._async import wall_clock
from lifecycle._durations import in_seconds
from lifecycle.events import TickEvent
from lifecycle.events.sources import Source

if TYPE_CHECKING:
    from lifecycle._durations import Duration
    from lifecycle.control import Emit

__all__ = ["TickerSource"]


class TickerSource(Source):
    """Sends a `TickEvent` at a fixed rate.

    The rate does not drift. A tick that becomes due while the previous one is still waiting for its lane is skipped.
    ``count`` then skips a number, and `missed` increases by one.

    Args:
        interval: Seconds between ticks.
        name: The name of the ticks. Their topic is ``tick/<name>``.
        immediate: Whether the first tick is sent immediately. By default, it is sent after one interval.

    Raises:
        ValueError: if ``interval`` is not a positive number of seconds.
    """

    def __init__(self, interval: Duration, *, name: str = "ticker", immediate: bool = False) -> None:
        self.interval: float = in_seconds("interval", interval, finite=True)
        self.name: str = name
        self.immediate = immediate
        #: The number of ticks that were skipped since the source was created.
        self.missed: int = 0

    def __repr__(self) -> str:
        return f"TickerSource({self.interval!r}, name={self.name!r})"

    async def run(self, emit: Emit) -> None:
        """Send ticks until cancelled. The router calls this."""
        now, wall = asyncio.get_running_loop().time, wall_clock()
        # The time of tick 0. Tick ``n`` is due at ``start + n * interval``.
        start = now() - self.interval if self.immediate else now()
        count = 1
        while True:
            await asyncio.sleep(start + count * self.interval - now())
            await emit(TickEvent(datetime.fromtimestamp(wall(), UTC).astimezone(), count, self.name))
            following = max(count + 1, math.ceil((now() - start) / self.interval))
            self.missed += following - count - 1
            count = following

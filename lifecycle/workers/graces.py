"""How long an end may take: a deadline that only ever comes nearer, also while somebody waits for it."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Grace", "sooner"]


class Grace:
    """A period in which something may end by itself; it never is over until it was shortened."""

    __slots__ = ("_timeout", "_until")

    def __init__(self) -> None:
        # By the loop's clock.
        self._until = math.inf
        self._timeout: asyncio.Timeout | None = None

    def shorten(self, seconds: float) -> None:
        """Have it end ``seconds`` from now, unless it ends earlier anyway."""
        self._until = min(self._until, asyncio.get_running_loop().time() + seconds)
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(self._deadline)

    async def wait(self, future: asyncio.Future[Any]) -> bool:
        """Wait for ``future``, at most to the end of the period; whether it is done."""
        try:
            async with asyncio.timeout_at(self._deadline) as self._timeout:
                await asyncio.wait({future})
        except TimeoutError:
            pass
        finally:
            self._timeout = None
        return future.done()

    @property
    def _deadline(self) -> float | None:
        """For asyncio, which has None for never."""
        return None if self._until == math.inf else self._until


def sooner(timer: asyncio.TimerHandle | None, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle | None:
    """``timer``, or in its place one that calls ``call`` in ``seconds``, if that is sooner; there is none for never."""
    if seconds == math.inf:
        return timer
    loop = asyncio.get_running_loop()
    at = loop.time() + seconds
    if timer is not None:
        if timer.when() <= at:
            return timer
        timer.cancel()
    return loop.call_at(at, call)

"""How long an end may take: a deadline that only ever comes nearer, also while somebody waits for it."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Grace"]


class Grace:
    """A period in which something may end by itself; it never is over until it was shortened."""

    __slots__ = ("_then", "_timeout", "_timer", "_until")

    def __init__(self) -> None:
        # By the loop's clock.
        self._until = math.inf
        self._timeout: asyncio.Timeout | None = None
        # What is called when it is over, and the timer that does; there is none for a period without end.
        self._then: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_over(self) -> bool:
        """Whether there is no time left."""
        return self._until <= asyncio.get_running_loop().time()

    def shorten(self, seconds: float) -> None:
        """Have it end ``seconds`` from now, unless it ends earlier anyway."""
        until = asyncio.get_running_loop().time() + seconds
        if until >= self._until:
            return
        self._until = until
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(until)
        if self._then is not None:
            self.then(self._then)

    async def wait(self, future: asyncio.Future[Any]) -> bool:
        """Wait for ``future``, at most to the end of the period; whether it is done."""
        try:
            async with asyncio.timeout_at(None if self._until == math.inf else self._until) as self._timeout:
                await asyncio.wait({future})
        except TimeoutError:
            pass
        finally:
            self._timeout = None
        return future.done()

    def then(self, call: Callable[[], None]) -> None:
        """Call ``call`` at the end of the period, unless it is forgotten before."""
        self.forget()
        self._then = call
        if self._until != math.inf:
            self._timer = asyncio.get_running_loop().call_at(self._until, self._over)

    def forget(self) -> None:
        """Call nobody."""
        if self._timer is not None:
            self._timer.cancel()
        self._then = self._timer = None

    def _over(self) -> None:
        call = self._then
        self.forget()
        if call is not None:
            call()

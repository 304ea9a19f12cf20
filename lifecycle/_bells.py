"""Waiting for something to be otherwise: a `Bell` wakes all who wait, and each looks again; `within`, not for ever."""

from __future__ import annotations

import asyncio

__all__ = ["Bell", "within"]


class Bell:
    """Wakes all who wait; each looks himself whether it was for him."""

    def __init__(self) -> None:
        #: How often it rang: who looked before and finds the same number has missed nothing.
        self.rung: int = 0
        self._waiters: list[asyncio.Future[None]] = []

    def ring(self) -> None:
        """Wake all who wait."""
        self.rung += 1
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def heard(self) -> None:
        """Wait until it rings."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            # Who was woken has been taken off already; to look for him among those who wait anew would cost each of a
            # thousand a thousand steps.
            if waiter.cancelled() and waiter in self._waiters:
                self._waiters.remove(waiter)


async def within(seconds: float, news: asyncio.Event) -> bool:
    """Wait for ``news``, but no longer than so many seconds; whether there were any."""
    try:
        async with asyncio.timeout(seconds):
            return await news.wait()
    except TimeoutError:
        return False

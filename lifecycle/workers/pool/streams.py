"""A call that answers with many values, one after the other, as fast as they are taken."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from lifecycle.workers.pool.calls import Running

if TYPE_CHECKING:
    from typing import Self

    from lifecycle.workers.pool.calls import Caller, Seat
    from lifecycle.workers.pool.orders import Order

__all__ = ["Stream"]

#: How many values may be on their way.
_WINDOW: Final = 32


class Stream:
    """What a generator in a member yields: an async iterator, which begins with the first value that is asked for.

    The generator is held back while nobody takes its values. It is ended, and runs its ``finally``, when the loop over
    it is left early and nothing refers to it any more, at once by `aclose`, and at the end of ``async with stream``.
    One deadline covers all of it; it counts from the first value that is asked for.
    """

    def __init__(self, caller: Caller, order: Order, seat: Seat | None = None) -> None:
        self._caller = caller
        self._order = order
        # One that stays with somebody else when this ends; else it takes its own.
        self._lent = seat
        self._running: Running | None = None
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """The next value.

        Raises:
            RemoteError, WorkerLost, TimeoutError, PoolBusy, PoolClosed, PoolFailed, SessionLost: as a call does; values
                that came before are given first, but when the time is up.
        """
        if self._over:
            raise StopAsyncIteration
        running = self._running or await self._begun()
        try:
            return await running.settle(running.request.next_chunk())
        except StopAsyncIteration:
            self._finish(running, None)
            raise
        except BaseException as error:
            self._finish(running, error)
            raise

    async def aclose(self) -> None:
        """End the generator, and return when it has ended; any number of times."""
        running = self._running
        if not self._over and running is not None:
            settled = running.take_back("cancelled")
            self._finish(running, None)
            await asyncio.wait({settled})
        self._over = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # Perhaps in another thread.
        if self._running is not None and not self._over and not self._caller.loop.is_closed():
            self._caller.loop.call_soon_threadsafe(_give_up, self._running)

    async def _begun(self) -> Running:
        self._order.begin()
        running = await self._caller.begun(self._order, self._lent, window=_WINDOW)
        self._running = running
        return running

    def _finish(self, running: Running, error: BaseException | None) -> None:
        self._over = True
        running.close(error)


def _give_up(running: Running) -> None:
    running.take_back("cancelled")
    running.close(None)

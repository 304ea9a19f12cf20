"""A call that answers with many values, one after the other, as fast as they are taken."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from lifecycle.workers.pool.calls import Call
from lifecycle.workers.pool.seats import Seat

if TYPE_CHECKING:
    from typing import Self

    from lifecycle.workers.pool.callers import Caller
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
        self._call: Call | None = None
        # Whether somebody waits for the next value, and whether there is none any more.
        self._asked = False
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """The next value.

        Raises:
            RemoteError, WorkerLost, TimeoutError, PoolBusy, PoolClosed, PoolFailed, SessionLost: as a call does; values
                that came before are given first, but when the time is up.
            RuntimeError: if another one waits for it.
        """
        if self._over:
            raise StopAsyncIteration
        if self._asked:
            raise RuntimeError(
                f"somebody waits for the next value of {self._order.function!r} already; one at a time can"
            )
        self._asked = True
        try:
            return await self._next()
        finally:
            self._asked = False

    async def _next(self) -> Any:
        call = self._call or await self._begun()
        assert call.request is not None, "it has a seat"
        try:
            return await call.settle(call.request.next_chunk())
        except StopAsyncIteration:
            self._finish(call, None)
            raise
        except BaseException as error:
            await self._end(call, error)
            raise

    async def aclose(self) -> None:
        """End the generator, and return when it has ended; any number of times."""
        if not self._over and self._call is not None:
            await self._end(self._call, None)
        self._over = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # Perhaps in another thread.
        if self._call is not None and not self._over and not self._caller.loop.is_closed():
            self._caller.loop.call_soon_threadsafe(_give_up, self._call)

    async def _begun(self) -> Call:
        order = self._order
        order.begin()
        if not self._caller.prepared(order):
            await self._caller.prepare(order)
        seat = self._lent or await Seat.of(self._caller, order)
        try:
            self._call = Call(self._caller, order, seat, window=_WINDOW)
        finally:
            if self._lent is None:
                seat.leave()
        return self._call

    async def _end(self, call: Call, error: BaseException | None) -> None:
        """Cancel the generator unless it has ended, and return when nothing of it runs in the worker."""
        settled = call.take_back("cancelled")
        self._finish(call, error)
        if not settled.done():
            await asyncio.wait({settled})

    def _finish(self, call: Call, error: BaseException | None) -> None:
        self._over = True
        call.close(error)


def _give_up(call: Call) -> None:
    call.take_back("cancelled")
    call.close(None)

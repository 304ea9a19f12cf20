"""One call, from the wish for it to the moment when nothing of it runs any more.

It waits for a seat, is sent to the member in the same step in which it gets one, and gives the seat back in the same
step in which the member has answered: no task has to run in between, and a caller may go at any time. A call is taken
back in two steps: the member is asked to break it off, and is killed if it has not done so within the grace period.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from lifecycle import hooks
from lifecycle._util import current_span
from lifecycle.errors import RemoteError
from lifecycle.workers.pool.requests import Cancelled, LinkClosed

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from lifecycle.workers.pool.callers import Caller
    from lifecycle.workers.pool.members import Member
    from lifecycle.workers.pool.orders import Order
    from lifecycle.workers.pool.phases import Reason
    from lifecycle.workers.pool.requests import Request
    from lifecycle.workers.pool.seats import Seat
    from lifecycle.workers.pool.waiters import Waiter

__all__ = ["Call"]


class Call:
    """One call; it begins when it is made.

    Args:
        caller: makes it.
        order: what is wanted.
        seat: where it goes; by default to any member that it gets.
        window: for a stream, how many values may be on their way.

    Raises:
        TypeError, ValueError: if its arguments cannot be sent; nothing has been sent then.
        PoolBusy, PoolClosed, PoolFailed, SessionLost: if it can get no member.
    """

    __slots__ = (
        "_began",
        "_caller",
        "_ended",
        "_future",
        "_reason",
        "_seat",
        "_settled",
        "_waiter",
        "_window",
        "member",
        "order",
        "request",
        "seconds",
        "traceparent",
        "until",
    )

    seconds: float
    until: float

    def __init__(self, caller: Caller, order: Order, seat: Seat | None = None, *, window: int = 0) -> None:
        self.order: Order = order
        #: Who has it, and what was asked of him; None while it waits.
        self.member: Member | None = None
        self.request: Request | None = None
        #: The span that it is done under, as W3C writes it: sent along. Who is told that it begins may change it.
        self.traceparent: str = current_span.get()
        self._caller = caller
        self._seat = seat
        self._window = window
        self._future: asyncio.Future[Any] = caller.loop.create_future()
        self._waiter: Waiter[Member] | None = None
        # When it was sent, and when nothing of it ran any more.
        self._began = self._ended = 0.0
        # Why it was taken back, and what is done when that is over.
        self._reason: Reason | None = None
        self._settled: asyncio.Future[None] | None = None
        if hooks.call_started.receivers:
            hooks.call_started.announce(caller.pool, call=self)
        try:
            self._begin(seat)
        except Exception as error:
            self._tell(error)
            raise
        self.seconds, self.until = order.deadline, order.until
        if self.until != math.inf:
            caller.deadlines.add(self)

    async def outcome(self) -> Any:
        """What it comes to; when this returns or raises, nothing of it runs any more."""
        try:
            result = await self.settle(self._future)
        except BaseException as error:
            self.close(error)
            raise
        self.close(None)
        return result

    async def settle(self, future: Awaitable[Any]) -> Any:
        """The result of ``future``, which the member's answer completes; with an error that tells what was wrong."""
        try:
            result = await future
        except asyncio.CancelledError:
            await self._withdrawn()
            raise
        except LinkClosed:
            assert self.member is not None, "there was a link"
            error = await self._caller.lost(self.member, self.order)
            raise (self._too_late() if self._reason == "timeout" else error) from None
        except (Cancelled, RemoteError):
            if self._reason == "timeout":
                raise self._too_late() from None
            raise
        if self._reason == "timeout":
            raise self._too_late()
        return result

    def take_back(self, reason: Reason) -> asyncio.Future[None]:
        """Have it broken off, by force if need be; what is done when nothing of it runs any more."""
        assert self.request is not None, "it was sent"
        if self._settled is None:
            self._reason = reason
            self._settled = self.request.cancel(reason)
            if not self._settled.done():
                self._threaten(self._settled)
        return self._settled

    def close(self, error: BaseException | None) -> None:
        """Somebody has taken note of its outcome."""
        self._caller.deadlines.discard(self)
        self._tell(error)

    # -- how it goes --------------------------------------------------------------------------------------------------

    def _begin(self, seat: Seat | None) -> None:
        if seat is not None:
            seat.begin()
            try:
                self._send(seat.member)
            except BaseException:
                seat.end()
                raise
            return
        session = self.order.session
        member = self._caller.seats.take(session)
        if member is None:
            self._waiter = self._caller.seats.queue_up(self.order, self._future, self._use)
            return
        try:
            self._send(member)
        except BaseException:
            self._caller.vacate(member, session)
            raise

    def _use(self, member: Member) -> bool:
        """It is its turn: whether it can be sent."""
        try:
            self._send(member)
        except Exception as error:  # noqa: BLE001  # for who awaits it
            self._caller.seats.forget(self.order.session)
            self._future.set_exception(error)
            return False
        return True

    def _send(self, member: Member) -> None:
        order, caller = self.order, self._caller
        self.member, self._began = member, caller.loop.time()
        try:
            self.request = member.link.call(
                order,
                window=self._window,
                traceparent=self.traceparent,
                future=self._future,
                answered=self._answered,
            )
        except (TypeError, ValueError) as error:
            raise order.unsendable(error) from error
        member.calls += 1
        caller.retirements.worn(member)
        if hooks.call_dispatched.receivers:
            hooks.call_dispatched.announce(
                caller.pool,
                function=order.function,
                session=order.session,
                member=member.id,
                waited=self._began - order.began,
            )

    def _answered(self) -> None:
        """Nothing of it runs any more."""
        assert self.member is not None, "there is somebody who answered"
        self._ended = self._caller.loop.time()
        if not self.member.link.closed:
            self.member.proven = True
        if self._seat is None:
            self._caller.vacate(self.member, self.order.session)
        else:
            self._seat.end()

    def overdue(self) -> None:
        """Its time is up."""
        if self.request is not None:
            self.take_back("timeout")
        elif not self._future.done():
            self._give_up()
            self._future.set_exception(self._too_late())

    async def _withdrawn(self) -> None:
        """Return when nothing of it runs any more, since who wanted it does not."""
        if self._future.done() and not self._future.cancelled():
            # Nobody else will look.
            self._future.exception()
        if self.request is None:
            self._give_up()
        else:
            await asyncio.wait({self.take_back("cancelled")})

    def _give_up(self) -> None:
        if self._waiter is not None:
            self._caller.seats.give_up(self._waiter)

    def _too_late(self) -> TimeoutError:
        member = self.member
        return self.order.overdue(self._caller.queued if member is None else f"running on {member.id!r}")

    def _threaten(self, settled: asyncio.Future[None]) -> None:
        """Kill its member unless it is ``settled`` in time; before that, have it say what keeps it."""
        assert self.member is not None, "it was sent"
        loop, grace = self._caller.loop, self._caller.grace
        timers = [loop.call_later(grace / 2, self.member.tell_stacks), loop.call_later(grace, self._kill)]

        def spare(_: object) -> None:
            for timer in timers:
                timer.cancel()

        settled.add_done_callback(spare)

    def _kill(self) -> None:
        assert self.member is not None, "it was sent"
        trouble = f"{self.order.function!r} did not break off within {self._caller.grace:g} s"
        self._caller.kill(self.member, self._reason or "cancelled", trouble)

    def _tell(self, error: BaseException | None) -> None:
        order, ended = self.order, self._ended or self._caller.loop.time()
        began = ended if self.member is None else self._began
        waited, ran = began - order.began, ended - began
        self._caller.times.add(waited, ran)
        if hooks.call_ended.receivers:
            hooks.call_ended.announce(self._caller.pool, call=self, error=error)
        if hooks.call_finished.receivers:
            hooks.call_finished.announce(
                self._caller.pool,
                function=order.function,
                session=order.session,
                member=None if self.member is None else self.member.id,
                waited=waited,
                ran=ran,
                error=error,
            )

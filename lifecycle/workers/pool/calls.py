"""One call on a member, from the frame that asks for it to the moment when nothing of it runs any more.

A call is taken back in two steps: the member is asked to break it off, and is killed if it has not done so within the
grace period. Nothing here needs a task: what has to happen later is done by a timer or by the member's answer, so that
a caller may go at any time and the seat is still given back.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from lifecycle import hooks
from lifecycle.errors import RemoteError, WorkerLost
from lifecycle.workers.pool.losses import lost
from lifecycle.workers.pool.requests import Cancelled, LinkClosed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lifecycle.workers.pool.figures import Figures
    from lifecycle.workers.pool.leavers import Leavers
    from lifecycle.workers.pool.members import Member
    from lifecycle.workers.pool.orders import Order
    from lifecycle.workers.pool.phases import Reason
    from lifecycle.workers.pool.requests import Request
    from lifecycle.workers.pool.seats import Seats

__all__ = ["Caller", "Running", "Seat"]


class Caller:
    """Makes calls for a pool.

    Args:
        pool: who sends what the hooks announce.
        seats: where calls get their member.
        figures: where it is noted how long they take.
        grace: seconds that a call has to break off before its member is killed.
        leavers: who have to know when a member was given a call, and when a seat on it is given back.
        kill: ends a member that does not break off a call.
    """

    def __init__(  # each is a part of the pool
        self,
        pool: Any,
        seats: Seats,
        figures: Figures,
        *,
        grace: float,
        leavers: Leavers,
        kill: Callable[[Member, Reason, str], None],
    ) -> None:
        self.pool = pool
        self.seats = seats
        self.figures = figures
        self.grace = grace
        self.leavers = leavers
        self.kill = kill
        self.loop = asyncio.get_running_loop()

    async def call(self, order: Order, *, idempotent: bool) -> Any:
        """Have ``order`` carried out on some member; once more on another, if it is lost and that does no harm."""
        running = await self.begun(order)
        try:
            return await running.outcome()
        except WorkerLost as error:
            if not idempotent or self.seats.refusal is not None:
                raise
            member = running.seat.member
            hooks.pool_recovered.announce(
                self.pool, action="retry", member=member.id, reason=member.going or "exited", error=error
            )
        return await (await self.begun(order)).outcome()

    async def seat(self, order: Order) -> Seat:
        """A seat for ``order``, at once if there is one."""
        try:
            member = self.seats.take(order.session)
            if member is None:
                member = await self.seats.wait(order)
        except BaseException as error:
            self.tell(order, None, 0.0, error)
            raise
        return Seat(self, member, order.session)

    async def on(self, seat: Seat, order: Order) -> Any:
        """The outcome of ``order`` on ``seat``."""
        running = await self.begun(order, seat)
        return await running.outcome()

    async def begun(self, order: Order, seat: Seat | None = None, *, window: int = 0) -> Running:
        """``order`` as it runs: on ``seat``, which is kept, or on one of its own, which is left with it."""
        lent = seat is not None
        seat = seat or await self.seat(order)
        try:
            return Running(self, order, seat, window=window)
        except LinkClosed:
            raise await self.lost(seat.member, order) from None
        finally:
            if not lent:
                seat.leave()

    async def lost(self, member: Member, order: Order) -> Exception:
        """What to raise for ``order``, which ``member`` took with it."""
        end = await member.wait()
        if member.going == "shutdown" and self.seats.refusal is not None:
            return self.seats.refusal()
        return lost(member, order.function, end)

    def tell(self, order: Order, member: Member | None, ran: float, error: BaseException | None) -> None:
        """A call has its outcome."""
        waited = self.loop.time() - order.began - ran
        self.figures.add(waited, ran)
        if hooks.call_finished.receivers:
            hooks.call_finished.announce(
                self.pool,
                function=order.function,
                session=order.session,
                member=None if member is None else member.id,
                waited=waited,
                ran=ran,
                error=error,
            )


class Seat:
    """A seat on a member that was taken; it is given back when it was left and no call is on it any more."""

    __slots__ = ("_caller", "_left", "_running", "member", "session")

    def __init__(self, caller: Caller, member: Member, session: str | None) -> None:
        self._caller = caller
        self.member = member
        self.session = session
        self._running = 0
        self._left = False

    def leave(self) -> None:
        """Begin nothing more on it; any number of times."""
        if not self._left:
            self._left = True
            self._give_back()

    def begin(self) -> None:
        """A call is on it."""
        self._running += 1

    def end(self) -> None:
        """A call on it is over."""
        self._running -= 1
        self._give_back()

    def _give_back(self) -> None:
        if self._running or not self._left:
            return
        seats = self._caller.seats
        if self.member.link.closed:
            # Its member is dead, though its end may not be known yet; there is no seat to give to another.
            seats.forget(self.session)
        else:
            self._caller.leavers.vacated(self.member)
            seats.release(self.member, self.session)


class Running:
    """One request to a member, for as long as something of it may run.

    Raises:
        TypeError, ValueError: if its arguments cannot be sent; nothing has been sent then.
    """

    __slots__ = ("_began", "_caller", "_reason", "_settled", "_timer", "_vacated", "order", "request", "seat")

    def __init__(self, caller: Caller, order: Order, seat: Seat, *, window: int = 0) -> None:
        self._caller = caller
        self.order = order
        self.seat = seat
        self._reason: Reason | None = None
        self._settled: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._vacated = False
        member = seat.member
        began = self._began = caller.loop.time()
        budget = max(0.0, order.until - began)
        self.request: Request = member.link.call(
            order.function, order.args, order.kwargs, budget=budget, window=window
        )
        seat.begin()
        if order.until != math.inf:
            self._timer = caller.loop.call_at(order.until, self.take_back, "timeout")
        member.calls += 1
        member.busy_until = max(member.busy_until, order.until)
        caller.leavers.worn(member)
        if hooks.call_dispatched.receivers:
            hooks.call_dispatched.announce(
                caller.pool,
                function=order.function,
                session=order.session,
                member=member.id,
                waited=began - order.began,
            )

    async def outcome(self) -> Any:
        """What it comes to; when this returns or raises, nothing of it runs any more."""
        error: BaseException | None = None
        try:
            return await self.settle(self.request.future)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.close(error)

    async def settle(self, future: Awaitable[Any]) -> Any:
        """The result of ``future``, which the member's answer completes; with an error that tells what was wrong."""
        try:
            result = await future
        except asyncio.CancelledError:
            await asyncio.wait({self.take_back("cancelled")})
            raise
        except LinkClosed:
            raise await self._lost() from None
        except (Cancelled, RemoteError):
            self.seat.member.proven = True
            if self._reason == "timeout":
                raise self.order.overdue(self.seat.member.id) from None
            raise
        self.seat.member.proven = True
        if self._reason == "timeout":
            raise self.order.overdue(self.seat.member.id)
        return result

    def take_back(self, reason: Reason) -> asyncio.Future[None]:
        """Have it broken off, by force if need be; what is done when nothing of it runs any more."""
        if self._settled is not None:
            return self._settled
        self._reason = reason
        settled = self._settled = self.request.cancel(reason)
        if not settled.done():
            kill = self._caller.loop.call_later(self._caller.grace, self._kill)
            settled.add_done_callback(lambda _: kill.cancel())
            settled.add_done_callback(self._vacate)
        return settled

    def close(self, error: BaseException | None) -> None:
        """Its outcome has been taken note of; its seat is free as soon as nothing of it runs."""
        if self._timer is not None:
            self._timer.cancel()
        if self._settled is None or self._settled.done():
            self._vacate()
        self._caller.tell(self.order, self.seat.member, self._caller.loop.time() - self._began, error)

    def _vacate(self, _: object = None) -> None:
        if not self._vacated:
            self._vacated = True
            self.seat.end()

    def _kill(self) -> None:
        trouble = f"{self.order.function!r} did not break off within {self._caller.grace:g} s"
        self._caller.kill(self.seat.member, self._reason or "cancelled", trouble)

    async def _lost(self) -> Exception:
        lost = await self._caller.lost(self.seat.member, self.order)
        return self.order.overdue(self.seat.member.id) if self._reason == "timeout" else lost

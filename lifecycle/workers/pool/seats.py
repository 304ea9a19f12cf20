"""Where a call gets its member: at once if it can, else in its turn, and where its session is.

Who may have which seat is the seat book's matter, and which member has which session that of the session book; here
the two meet, and here a call waits.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from lifecycle import hooks
from lifecycle.errors import PoolBusy, PoolClosed, SessionLost
from lifecycle.workers.pool.seat_book import SeatBook
from lifecycle.workers.pool.sessions import SessionBook
from lifecycle.workers.pool.waiters import Waiter

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.workers.pool.callers import Caller
    from lifecycle.workers.pool.members import Member
    from lifecycle.workers.pool.orders import Order
    from lifecycle.workers.pool.plans import Plan
    from lifecycle.workers.pool.rosters import Roster

__all__ = ["Seat", "Seats"]


class Seats:
    """The seats of a pool: who has one, and who waits for one.

    Args:
        pool: who sends what the hooks announce.
        plan: how many seats a member has, how many calls may wait, and how sessions find their member.
        roster: the members.
        joined: called when somebody has begun to wait: there may have to be another member.
    """

    def __init__(self, pool: Any, plan: Plan, roster: Roster, *, joined: Callable[[], None]) -> None:
        self.book: SeatBook[Member] = SeatBook(plan.concurrency)
        self.sessions: SessionBook = SessionBook(plan.sessions, evicted=self._evicted)
        self._pool = pool
        self._mode = plan.sessions.mode
        self._queue = plan.queue
        self._roster = roster
        self._joined = joined
        self._loop = asyncio.get_running_loop()
        # Makes what those get who want a seat when there will be none any more; None as long as there may be one.
        self.refusal: Callable[[], Exception] | None = None

    def refuse(self, error: Callable[[], Exception]) -> None:
        """Give no seat to anybody from now on: an ``error`` to who waits and who comes."""
        if self.refusal is None:
            self.refusal = error
            self.book.dismiss(error)

    # -- getting one ------------------------------------------------------------------------------------------------

    def take(self, session: str | None) -> Member | None:
        """A member with a seat taken for ``session``, at once; None if one has to wait for it.

        Raises:
            PoolClosed, PoolFailed: if there will be none any more.
            SessionLost: if the member of the session is gone, or, where that is to fail, busy.
        """
        if self.refusal is not None:
            raise self.refusal()
        if session is None:
            return self.book.take()
        now = self._loop.time()
        bound = self._bound(session, now)
        if bound is not None and self.book.take(session, bound) is not None:
            self._hit(session, bound, now)
            return bound
        if bound is not None and self._mode == "strict":
            return None
        if bound is not None and self._mode == "fail":
            if self.book.paused:
                return None
            raise _occupied(session, bound)
        return self._miss(session, self.book.take(session), now)

    def queue_up(self, order: Order, future: asyncio.Future[Any], use: Callable[[Member], bool]) -> Waiter[Member]:
        """Have ``use`` called with a member on which there is a seat for ``order``, in its turn.

        Who does not want it any more has to `give_up`; there is nothing to give up once ``future`` is done.

        Args:
            order: who wants it.
            future: what he awaits; it gets an error if there will be no seat.
            use: whether he can use it; if he cannot, the seat is given to the next.

        Raises:
            PoolBusy: if too many wait.
        """
        self._check_room(order)
        session = order.session

        def claim(member: Member) -> bool:
            return (session is None or self._claimed(waiter, session, member)) and use(member)

        waiter: Waiter[Member] = Waiter(future, claim, session)
        if hooks.call_queued.receivers:
            hooks.call_queued.announce(self._pool, function=order.function, session=session)
        self.book.wait(waiter, self._wanted(session))
        self._joined()
        return waiter

    def give_up(self, waiter: Waiter[Member]) -> None:
        """Want no seat any more."""
        self.book.waiters.discard(waiter)

    def release(self, member: Member, session: str | None) -> None:
        """Give a seat back."""
        self.forget(session)
        self.book.release(member)

    def forget(self, session: str | None) -> None:
        """A call of ``session`` is over, and its member with it."""
        if session is not None:
            self.sessions.unpin(session, self._loop.time())

    def resume(self) -> None:
        """Give seats again after `SeatBook.pause`.

        In mode ``"fail"`` a call that was held back and whose member is still busy fails, as it would if it came now.
        """
        self.book.resume()
        if self._mode == "fail":
            for member in list(self._roster):
                self.book.dismiss_from(member, lambda session, member=member: _occupied(str(session), member))  # type: ignore[misc]  # a bound default

    # -- members ----------------------------------------------------------------------------------------------------

    def hold(self, member: Member) -> None:
        """Have ``member``, which is not well, given to nobody until it is offered again."""
        self.book.withdraw(member)
        if self._mode == "hint":
            self.sessions.drop(member.id, self._loop.time())

    def is_needed(self, member: Member) -> bool:
        """Whether somebody's session would be lost with it, for whom that matters."""
        return self._mode != "hint" and self.sessions.holds(member.id, self._loop.time())

    def gone(self, member: Member) -> None:
        """``member`` ends, and its sessions with it; any number of times."""
        self.book.withdraw(member)
        now = self._loop.time()
        for session in self.sessions.drop(member.id, now):
            hooks.session_lost.announce(self._pool, session=session, member=member.id)

        def lost(session: str | None) -> Exception:
            # It is told of its loss here.
            self.sessions.take_loss(session or "", now)
            return _loss(session, member.id)

        self.book.dismiss_from(member, lost)

    # -- how ----------------------------------------------------------------------------------------------------------

    def _wanted(self, session: str | None) -> Member | None:
        """The member that a call of ``session`` waits for; None if any will do.

        In mode ``"fail"`` a call waits for its member only while the pool is suspended.
        """
        if session is None or self._mode == "hint" or (self._mode == "fail" and not self.book.paused):
            return None
        return self._bound(session, self._loop.time())

    def _claimed(self, waiter: Waiter[Member], session: str, member: Member) -> bool:
        """Whether a call of ``session`` can have ``member``; another that came before it may have bound the session."""
        now = self._loop.time()
        try:
            bound = self._bound(session, now)
            if bound is member:
                self._hit(session, member, now)
            elif bound is None or self._mode == "hint":
                self._miss(session, member, now)
            elif self._mode == "strict":
                self.book.wait(waiter, bound)
                return False
            else:
                raise _occupied(session, bound)
        except SessionLost as error:
            waiter.future.set_exception(error)
            return False
        return True

    def _check_room(self, order: Order) -> None:
        queued = len(self.book.waiters)
        if queued < self._queue or order.patient or queued < self._queue + self._roster.seats_to_come:
            return
        hooks.pool_saturated.announce(self._pool, queued=queued, function=order.function)
        raise PoolBusy(
            f"{queued} calls wait for a member of {self._pool.name!r}, and no more may; "
            "call later, or give the pool more members or a longer queue"
        )

    def _bound(self, session: str, now: float) -> Member | None:
        """The member of ``session``; None if it has none yet."""
        member = self.sessions.find(session, now)
        if member is not None:
            return self._roster.members[member]
        if (lost := self.sessions.take_loss(session, now)) is not None:
            raise _loss(session, lost)
        return None

    def _hit(self, session: str, member: Member, now: float) -> None:
        self.sessions.pin(session, now)
        hooks.session_hit.announce(self._pool, session=session, member=member.id)

    def _miss(self, session: str, member: Member | None, now: float) -> Member | None:
        if member is not None:
            before = self.sessions.find(session, now)
            self.sessions.pin(session, now)
            self.sessions.bind(session, member.id, now)
            hooks.session_missed.announce(self._pool, session=session, member=before)
            hooks.session_bound.announce(self._pool, session=session, member=member.id)
        return member

    def _evicted(self, session: str, member: str) -> None:
        hooks.session_evicted.announce(self._pool, session=session, member=member)


class Seat:
    """A seat that somebody has for several calls; it is given back when he has left it and no call is on it."""

    __slots__ = ("_caller", "_left", "_running", "member", "session")

    def __init__(self, caller: Caller, member: Member, session: str | None) -> None:
        self._caller = caller
        self.member: Member = member
        self.session: str | None = session
        self._running = 0
        self._left = False

    @classmethod
    async def of(cls, caller: Caller, order: Order) -> Seat:
        """A seat as ``order`` wants it, in its turn."""
        member = caller.seats.take(order.session)
        if member is None:
            member = await cls._waited_for(caller, order)
        return cls(caller, member, order.session)

    @classmethod
    async def _waited_for(cls, caller: Caller, order: Order) -> Member:
        future: asyncio.Future[Member] = caller.loop.create_future()

        def use(member: Member) -> bool:
            future.set_result(member)
            return True

        def expire() -> None:
            if not future.done():
                future.set_exception(order.overdue(caller.queued))

        waiter = caller.seats.queue_up(order, future, use)
        timer = None if order.until == math.inf else caller.loop.call_at(order.until, expire)
        try:
            return await future
        except asyncio.CancelledError:
            # It may have been given a seat in the very turn of the loop in which it was cancelled.
            if future.done() and not future.cancelled() and future.exception() is None:
                caller.vacate(future.result(), order.session)
            raise
        finally:
            caller.seats.give_up(waiter)
            if timer is not None:
                timer.cancel()

    def leave(self) -> None:
        """Begin nothing more on it; any number of times."""
        if not self._left:
            self._left = True
            self._give_back()

    def begin(self) -> None:
        """A call is on it.

        Raises:
            PoolClosed: if it was left: somebody else may have it.
        """
        if self._left:
            raise PoolClosed(
                f"this lease of {self.member.id!r} is not held any more; use it within 'async with pool.lease()'"
            )
        self._running += 1

    def end(self) -> None:
        """A call on it is over."""
        self._running -= 1
        self._give_back()

    def _give_back(self) -> None:
        if self._left and not self._running:
            self._caller.vacate(self.member, self.session)


def _occupied(session: str, member: Member) -> SessionLost:
    return SessionLost(
        f"{member.id!r}, which has the session {session!r}, is {member.phase} and takes no call now; "
        "wait for it with Sessions(mode='strict')"
    )


def _loss(session: str | None, member: str) -> SessionLost:
    return SessionLost(
        f"the session {session!r} was lost with {member!r}, which has ended; what it had there has to be made anew"
    )

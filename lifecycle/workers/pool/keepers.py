"""Keeps a pool full: starts the members that it needs, and waits for the end of each.

Each member has one task here, from the wish for it to its end. Everything else is plain functions, called when
something has happened: nothing is looked at again and again. What is done about members that are unwell or lost is the
matter of `recoveries`, and those who go because they have worked enough that of `retirements`.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from lifecycle._async import Condition
from lifecycle.backoff import Backoff
from lifecycle.errors import WorkerFailed
from lifecycle.workers.model import AT_WORK, FINAL, UNSTARTED, Status
from lifecycle.workers.pool.heartbeats import Heartbeats
from lifecycle.workers.pool.losses import cause, warn_unstopped
from lifecycle.workers.pool.recoveries import Recovery

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.errors import PoolFailed
    from lifecycle.workers.pool.members import Member
    from lifecycle.workers.pool.plans import Plan
    from lifecycle.workers.pool.retirements import Retirements
    from lifecycle.workers.pool.rosters import Roster
    from lifecycle.workers.pool.seats import Seats

__all__ = ["Keeper"]

#: How many members may be starting at a time.
_STARTS: Final = 2 * (os.cpu_count() or 2)


class Keeper:
    """Sees to it that a pool has the members that it needs, until it is closed or gives up.

    Args:
        pool: who sends what the hooks announce.
        plan: what the pool was told.
        roster: its members.
        seats: where calls get them.
        retirements: has members go as planned.
    """

    def __init__(self, pool: Any, plan: Plan, roster: Roster, *, seats: Seats, retirements: Retirements) -> None:
        #: Sees to members that are unwell or lost.
        self.recovery: Final = Recovery(pool, plan, self, seats=seats)
        #: How long to wait with a member in whose place others have failed.
        self.backoff: Final = Backoff()
        self._pool = pool
        self._plan = plan
        self._roster = roster
        self._seats = seats
        self._retirements = retirements
        self._heartbeats = Heartbeats(
            pool, plan.heartbeat, seats=seats, retirements=retirements, recovery=self.recovery
        )
        self._loop = asyncio.get_running_loop()
        self._gate = asyncio.Semaphore(_STARTS)
        self._numbers = count(1)
        self._lives: set[asyncio.Task[None]] = set()
        # Done once no member is to be started any more.
        self._over: asyncio.Future[None] = self._loop.create_future()
        # Makes the error that the pool ends with; None unless it gave up.
        self._failure: Callable[[], PoolFailed] | None = None
        self._last_call: asyncio.TimerHandle | None = None
        # Rung when somebody has come or gone, or nobody will come any more.
        self._progress = Condition()

    # -- the life of the pool ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the pool full until it is closed, and return when no member is left.

        Raises:
            PoolFailed: if it gave up.
        """
        self.adjust()
        try:
            await self._over
            while self._lives:
                await asyncio.wait(self._lives)
        except asyncio.CancelledError:
            # Nobody does that but a loop that is closed over it; its processes are killed with their own tasks.
            warn_unstopped(self._pool)
            raise
        finally:
            if self._last_call is not None:
                self._last_call.cancel()
        if self._failure is not None:
            raise self._failure()

    async def until(self, done: Callable[[], bool]) -> None:
        """Return when ``done()`` is true.

        Raises:
            PoolClosed, PoolFailed: if the pool ends before that.
        """
        while not done():
            if self._seats.refusal is not None:
                raise self._seats.refusal()
            await self._progress.wait()

    def close(self, error: Callable[[], Exception]) -> None:
        """Have all members go, each when its call is done; who waits, and who comes, gets an ``error``."""
        self._seats.refuse(error)
        if not self._over.done():
            self._over.set_result(None)
            for member in self._roster:
                self._retirements.retire(member, "shutdown")
        self._progress.notify_all()

    def fail(self, failure: Callable[[], PoolFailed]) -> None:
        """Give up: close the pool, and have it end with that."""
        self._failure = failure
        self._last_call = self._loop.call_later(self._plan.process.stop_timeout, self.kill_all)
        self.close(failure)

    def kill_all(self) -> None:
        """End all members now."""
        for member in self._roster:
            member.go("shutdown", 0)

    # -- members that come ------------------------------------------------------------------------------------------

    def adjust(self) -> None:
        """Start what is lacking."""
        size = self._roster.size
        if size < self._roster.high and not self._over.done():
            for _ in range(self._roster.wanted(self._seats.book.waiters.anywhere) - size):
                self._begin()

    def replace(self, attempt: int) -> bool:
        """Wish for a member in place of one that is lost, if one is needed; whether it is."""
        needed = self._roster.wanted(self._seats.book.waiters.anywhere) > self._roster.size
        if needed:
            self._begin(attempt)
        return needed

    @property
    def over(self) -> bool:
        """Whether no member is to be started any more."""
        return self._over.done()

    def _begin(self, attempt: int = 0) -> None:
        """Wish for a member, in a place where ``attempt`` have failed in a row."""
        member = self._plan.member(
            f"{self._plan.name}-{next(self._numbers)}",
            self.recovery,
            pool=self._pool,
            generation=self._roster.generation,
        )
        member.attempt = attempt
        self._roster.members[member.id] = member
        member.on_change(partial(self._changed, member))
        life = asyncio.create_task(self._live(member), name=f"life of {member.id}")
        self._lives.add(life)
        life.add_done_callback(self._lives.discard)

    async def _live(self, member: Member) -> None:
        await self._start(member)
        if member.status in AT_WORK:
            self._arrived(member)
            heartbeats = asyncio.create_task(self._heartbeats.watch(member), name=f"health of {member.id}")
            try:
                await member.wait()
            finally:
                heartbeats.cancel()
                await asyncio.wait({heartbeats})
        # A start that was given up may still be about to end.
        await member.wait()

    async def _start(self, member: Member) -> None:
        """Start it when it may be."""
        # It may have been dismissed before this began.
        if member.attempt > 1 and member.status in UNSTARTED:
            member.hold()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.backoff.delay(member.attempt - 2)):
                    await member.wait()
        async with self._gate:
            if member.status in UNSTARTED:
                # Its end says what is to be said about that.
                with suppress(WorkerFailed):
                    await member.start()

    def _arrived(self, member: Member) -> None:
        self._retirements.welcome(member)
        if member.sound:
            self._seats.book.offer(member)
        else:
            self.recovery.degraded(member, TimeoutError(f"{member.id!r} did not answer when it was ready"))
        self._retirements.renew(arrived=True)
        self._progress.notify_all()

    def _changed(self, member: Member, _old: Status, new: Status) -> None:
        """At once, so that the figures add up at any time."""
        if new is Status.STOPPING or new in FINAL:
            self._seats.gone(member)
        if new in FINAL:
            self._ended(member)

    def _ended(self, member: Member) -> None:
        del self._roster.members[member.id]
        member.cancel_timers()
        if member.going is None:
            self.recovery.lost(member, member.history[0].reason, cause(member))
        self.adjust()
        self._retirements.renew()
        self._progress.notify_all()

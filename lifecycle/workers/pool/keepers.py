"""Keeps a pool full: starts members, and replaces those that are lost.

Each member has one task here, from the wish for it to its end. Everything else is plain functions, called when
something has happened: nothing is looked at again and again. Those who go because they have worked enough are the
matter of `leavers`.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from lifecycle import hooks
from lifecycle.backoff import Backoff
from lifecycle.errors import PoolFailed, RestartLimitReached, WorkerFailed
from lifecycle.workers.pool.losses import cause, loss, warn_unstopped
from lifecycle.workers.status import AT_WORK, FINAL, UNSTARTED, Status
from lifecycle.workers.supervision.budgets import Budget

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.workers.pool.checks import Checks
    from lifecycle.workers.pool.figures import Figures
    from lifecycle.workers.pool.leavers import Leavers
    from lifecycle.workers.pool.members import Member
    from lifecycle.workers.pool.phases import Reason
    from lifecycle.workers.pool.plans import Plan
    from lifecycle.workers.pool.rosters import Roster
    from lifecycle.workers.pool.seats import Seats

__all__ = ["Keeper"]

#: How many members may be starting at a time.
_STARTS: Final = 2 * (os.cpu_count() or 2)
#: Seconds that a member has to end once it has closed its streams.
_LAST_MOMENT: Final = 1.0


class Keeper:
    """Sees to it that a pool has the members that it needs, until it is closed or has to give up.

    Args:
        pool: who sends what the hooks announce.
        plan: what the pool was told.
        roster: its members.
        seats: where calls get them.
        figures: where restarts are counted.
        leavers: those who go as planned.
        checks: what asks members after their health.
    """

    def __init__(  # each is a part of the pool
        self,
        pool: Any,
        plan: Plan,
        roster: Roster,
        *,
        seats: Seats,
        figures: Figures,
        leavers: Leavers,
        checks: Checks,
    ) -> None:
        self._pool = pool
        self._plan = plan
        self._roster = roster
        self._seats = seats
        self._figures = figures
        self._leavers = leavers
        self._checks = checks
        self._loop = asyncio.get_running_loop()
        self._budget = Budget(plan.name, plan.intensity)
        self._backoff = Backoff()
        self._gate = asyncio.Semaphore(_STARTS)
        self._numbers = count(1)
        self._lives: set[asyncio.Task[None]] = set()
        # Done once no member is to be started any more.
        self._over: asyncio.Future[None] = self._loop.create_future()
        # Makes the error that the pool ends with; None unless it gave up.
        self._failure: Callable[[], PoolFailed] | None = None
        self._last_call: asyncio.TimerHandle | None = None
        # Those who wait for a change in who is there.
        self._onlookers: set[asyncio.Future[None]] = set()

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
            onlooker: asyncio.Future[None] = self._loop.create_future()
            self._onlookers.add(onlooker)
            try:
                await onlooker
            finally:
                self._onlookers.discard(onlooker)

    def close(self, error: Callable[[], Exception]) -> None:
        """Have all members go, each when its call is done; who waits, and who comes, gets an ``error``."""
        self._seats.refuse(error)
        if not self._over.done():
            self._over.set_result(None)
            for member in self._roster:
                self._leavers.dismiss(member, "shutdown")
        self._notify()

    def kill_all(self) -> None:
        """End all members now."""
        for member in self._roster:
            member.go("shutdown", 0)

    # -- members that come ------------------------------------------------------------------------------------------

    def adjust(self) -> None:
        """Start what is lacking."""
        size = self._roster.size
        if size < self._roster.high and not self._over.done():
            for _ in range(self._roster.wanted(self._seats.book.waiting) - size):
                self._begin()

    def _begin(self, attempt: int = 0) -> None:
        """Wish for a member, in a place where ``attempt`` have failed in a row."""
        member = self._plan.member(
            f"{self._plan.name}-{next(self._numbers)}", self, pool=self._pool, generation=self._roster.generation
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
            checks = asyncio.create_task(self._checks.watch(member), name=f"checks of {member.id}")
            try:
                await member.wait()
            finally:
                checks.cancel()
                await asyncio.wait({checks})
        # A start that was given up may still be about to end.
        await member.wait()

    async def _start(self, member: Member) -> None:
        """Start it when it may be."""
        # It may have been dismissed before this began.
        if member.attempt > 1 and member.status in UNSTARTED:
            member.hold()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._backoff.delay(member.attempt - 2)):
                    await member.wait()
        async with self._gate:
            if member.status in UNSTARTED:
                # Its end says what is to be said about that.
                with suppress(WorkerFailed):
                    await member.start()

    def _arrived(self, member: Member) -> None:
        self._leavers.welcome(member)
        if member.sound:
            self._seats.book.offer(member)
        else:
            self.degraded(member, TimeoutError(f"{member.id!r} did not answer when it was ready"))
        self._leavers.renew(arrived=True)
        self._notify()

    # -- members that are lost --------------------------------------------------------------------------------------

    def degraded(self, member: Member, error: Exception) -> None:
        """It does not feel well: it is given to nobody until it does."""
        self._seats.hold(member)
        self._announce("degrade", member, "health_check_failed", error)

    def kill(self, member: Member, reason: Reason, trouble: str, *, counted: bool = False) -> None:
        """End it at once, since ``trouble`` says that it is of no use any more, and replace it."""
        if member.phase.alive:
            member.trouble = trouble
            member.go(reason, 0)
            self._lose(member, reason, loss(f"{member.id!r} was killed: {trouble}", member), counted=counted)

    def hung_up(self, member: Member) -> None:
        """It can be asked for nothing any more, so it should end."""
        self._seats.book.withdraw(member)
        if member.status is Status.RUNNING:
            trouble = "it closed its streams and went on"
            member.timers.append(self._loop.call_later(_LAST_MOMENT, self._kill_counted, member, trouble))

    def broke(self, member: Member, error: Exception) -> None:
        """It does not keep to the protocol."""
        if member.status is Status.RUNNING:
            self._kill_counted(member, f"it broke the protocol: {error}")

    def _kill_counted(self, member: Member, trouble: str) -> None:
        self.kill(member, "error", trouble, counted=True)

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
            self._lose(member, member.history[0].reason, cause(member), counted=True)
        self.adjust()
        self._leavers.renew()
        self._notify()

    def _lose(self, member: Member, reason: Reason, error: Exception, *, counted: bool) -> None:
        """It was not to go: have another in its place, if there is to be one."""
        if self._over.done():
            return
        if counted:
            try:
                self._budget.spend(self._loop.time(), member.id, error)
            except RestartLimitReached as limit:
                self._announce("remove", member, reason, error)
                self._give_up(limit, error)
                return
        replaced = self._roster.wanted(self._seats.book.waiting) > self._roster.size
        if replaced:
            self._figures.restarts += 1
            self._begin(0 if self._was_good(member) else member.attempt + 1)
        self._announce("replace" if replaced else "remove", member, reason, error)
        self.adjust()

    def _was_good(self, member: Member) -> bool:
        """Whether its loss is no sign that those in its place cannot work."""
        return member.proven or self._loop.time() - member.ready_at >= self._backoff.reset_after

    def _give_up(self, limit: RestartLimitReached, error: Exception) -> None:
        def failed() -> PoolFailed:
            failure = PoolFailed(str(limit))
            failure.__cause__ = error
            return failure

        self._failure = failed
        self._last_call = self._loop.call_later(self._plan.process.stop_timeout, self.kill_all)
        self.close(failed)

    # -- what is told -------------------------------------------------------------------------------------------------

    def _announce(self, action: str, member: Member, reason: Reason, error: Exception) -> None:
        hooks.pool_recovered.announce(self._pool, action=action, member=member.id, reason=reason, error=error)

    def _notify(self) -> None:
        onlookers, self._onlookers = self._onlookers, set()
        for onlooker in onlookers:
            if not onlooker.done():
                onlooker.set_result(None)

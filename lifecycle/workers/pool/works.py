"""The parts of a pool that runs, put together: the one place that knows them all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lifecycle.workers.pool.callers import Caller
from lifecycle.workers.pool.checks import Checks
from lifecycle.workers.pool.figures import Figures, PoolStats
from lifecycle.workers.pool.keepers import Keeper
from lifecycle.workers.pool.leavers import Leavers
from lifecycle.workers.pool.maps import outcomes
from lifecycle.workers.pool.phases import Phase
from lifecycle.workers.pool.rosters import Roster
from lifecycle.workers.pool.seats import Seats

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from lifecycle.workers.pool.plans import Plan

__all__ = ["Works"]


class Works:
    """What is behind a pool from its start to its end.

    Args:
        pool: who sends what the hooks announce.
        plan: what the pool was told.
    """

    def __init__(self, pool: object, plan: Plan) -> None:
        self.plan = plan
        self.figures: Final = Figures()
        roster = Roster(plan.size, plan.concurrency)
        self.roster: Final = roster
        self.seats: Final = Seats(
            pool,
            plan.sessions,
            capacity=plan.concurrency,
            members=roster.members,
            queue=plan.queue,
            coming=lambda: plan.concurrency * (roster.high - roster.ready),
            joined=self._adjust,
        )
        self.leavers: Final = Leavers(plan.recycle, roster, seats=self.seats, adjust=self._adjust)
        self.checks: Final = Checks(pool, plan.heartbeat, seats=self.seats, leavers=self.leavers)
        self.keeper: Final = Keeper(
            pool,
            plan,
            roster,
            seats=self.seats,
            figures=self.figures,
            leavers=self.leavers,
            checks=self.checks,
        )
        self.checks.judge = self.keeper
        self.caller: Final = Caller(
            pool,
            self.seats,
            self.figures,
            grace=plan.process.grace,
            leavers=self.leavers,
            kill=self.keeper.kill,
        )

    async def run(self) -> None:
        """Keep the pool full to its end; see `Keeper.run`."""
        try:
            await self.keeper.run()
        finally:
            self.leavers.close()
            self.caller.deadlines.close()

    def _adjust(self) -> None:
        self.keeper.adjust()

    def map(
        self, function: str, rows: Iterable[Any], *, ordered: bool, deadline: float | None
    ) -> AsyncGenerator[Any, None]:
        """What ``function`` returns for each of ``rows``."""

        async def call(row: Any) -> Any:
            order = self.plan.order(function, (row,), {}, deadline=deadline, patient=True)
            return await self.caller.call(order, idempotent=False)

        # Each member has its next call at hand.
        limit = 2 * self.roster.high * self.roster.concurrency
        return outcomes(call, rows, ordered=ordered, limit=limit)

    async def refresh(self) -> None:
        """Have all members of now replaced."""
        self.roster.generation += 1
        generation = self.roster.generation
        self.keeper.adjust()
        self.leavers.renew()
        await self.keeper.until(lambda: all(member.generation >= generation for member in self.roster))

    async def resize(self, low: int, high: int) -> None:
        """Have other numbers of members."""
        self.roster.low, self.roster.high = low, high
        self.leavers.shrink()
        self.keeper.adjust()
        await self.filled()

    async def filled(self) -> None:
        """Wait for the least number of members."""
        await self.keeper.until(lambda: self.roster.ready >= self.roster.low)

    def stats(self) -> PoolStats:
        """How it is now."""
        members = list(self.roster)
        staying = [member.phase for member in members if self.roster.stays(member)]
        plan, roster, book = self.plan, self.roster, self.seats.book
        return PoolStats(
            size=len(staying),
            idle=staying.count(Phase.READY),
            busy=staying.count(Phase.BUSY),
            degraded=staying.count(Phase.DEGRADED),
            starting=staying.count(Phase.INITIALIZING),
            stopping=len(members) - len(staying),
            queued=book.waiting + book.waiting_strictly,
            saturation=sum(member.leases for member in members) / (roster.high * plan.concurrency),
            calls=self.figures.calls,
            restarts=self.figures.restarts,
            **self.figures.quantiles(),
        )

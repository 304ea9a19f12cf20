"""The parts of a pool that runs, put together: the one place that knows them all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lifecycle.workers.pool.callers import Caller
from lifecycle.workers.pool.keepers import Keeper
from lifecycle.workers.pool.maps import outcomes
from lifecycle.workers.pool.phases import Phase
from lifecycle.workers.pool.retirements import Retirements
from lifecycle.workers.pool.rosters import Roster
from lifecycle.workers.pool.seats import Seats
from lifecycle.workers.pool.stats import CallTimes, PoolStats

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from lifecycle.workers.pool.plans import Plan

__all__ = ["Core"]


class Core:
    """What is behind a pool from its start to its end.

    Args:
        pool: who sends what the hooks announce.
        plan: what the pool was told.
    """

    def __init__(self, pool: Any, plan: Plan) -> None:
        self.plan = plan
        self.times: Final = CallTimes()
        self.roster: Final = Roster(plan.size, plan.concurrency)
        self.seats: Final = Seats(pool, plan, self.roster, joined=self._adjust)
        self.retirements: Final = Retirements(plan.recycle, self.roster, seats=self.seats, adjust=self._adjust)
        self.keeper: Final = Keeper(pool, plan, self.roster, seats=self.seats, retirements=self.retirements)
        self.caller: Final = Caller(
            pool,
            self.seats,
            self.times,
            codec=plan.codec,
            grace=plan.process.grace,
            retirements=self.retirements,
            kill=self.keeper.recovery.kill,
        )

    async def run(self) -> None:
        """Keep the pool full to its end; see `Keeper.run`."""
        try:
            await self.keeper.run()
        finally:
            self.retirements.close()
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
        self.retirements.renew()
        await self.keeper.until(lambda: all(member.generation >= generation for member in self.roster))

    async def resize(self, low: int, high: int) -> None:
        """Have other numbers of members."""
        self.roster.low, self.roster.high = low, high
        self.retirements.shrink()
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
            queued=len(book.waiters),
            saturation=sum(member.leases for member in members) / (roster.high * plan.concurrency),
            calls=self.times.calls,
            restarts=self.keeper.recovery.restarts,
            **self.times.quantiles(),
        )

"""`MemoryJobs`: jobs that last as long as the process."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import islice
from typing import TYPE_CHECKING

from lifecycle.errors import FlowError
from lifecycle.flows.jobs.rows import DISCARDED, discarded, flow_of, lapsed, taken
from lifecycle.flows.jobs.stores import lost_job, other_flow
from lifecycle.flows.states import JobState

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lifecycle.flows.jobs.rows import Claim, JobRow
    from lifecycle.flows.memory.stores import MemoryStore
    from lifecycle.flows.records import FlowRow, Snapshot

__all__ = ["MemoryJobs"]


class MemoryJobs:
    """A `JobStore` in a dictionary, beside a `MemoryStore`."""

    def __init__(self, flows: MemoryStore) -> None:
        self._flows = flows
        self._rows: dict[str, JobRow] = {}
        self._count = 0
        # Those that may be claimed, in order, and the ids of those that are.
        self._waiting: list[tuple[int, int, str]] = []
        self._claimed: set[str] = set()

    async def add(self, row: JobRow) -> JobRow:
        """Keep a job that is new; what is kept under its id, which may be another."""
        if row.id not in self._rows:
            self._count += 1
            self._put(row._replace(number=self._count))
        return self._rows[row.id]

    async def get(self, id: str, *, now: float) -> JobRow | None:  # noqa: A002  # what it is
        """One job."""
        self._settle(now)
        return self._rows.get(id)

    async def rows(
        self, *states: str, now: float, after: tuple[int, int] | None = None, limit: int | None = None
    ) -> list[JobRow]:
        """The jobs in those states, in order: at most ``limit``, and those ``after`` a rank and a number."""
        self._settle(now)
        found = (row for row in self._rows.values() if row.state in states)
        later = (row for row in found if after is None or (row.rank, row.number) > after)
        return sorted(later, key=_place)[:limit]

    async def take(self, flows: Collection[str] | None, claim: Claim) -> JobRow | None:
        """Claim the first job that is due and that one of ``flows`` does, or any; None where there is none."""
        return next(iter(await self.take_many(flows, claim, 1)), None)

    async def take_many(self, flows: Collection[str] | None, claim: Claim, limit: int) -> list[JobRow]:
        """Claim the first ``limit`` jobs that are due and that one of ``flows`` does, or any; fewer if there are."""
        self._settle(claim.now)
        waiting = (self._rows[each] for *_, each in self._waiting)
        ready = (row for row in waiting if row.due <= claim.now and (flows is None or row.flow in flows))
        return [self._put(taken(row, claim)) for row in list(islice(ready, limit))]

    async def begin_many(
        self, flows: Collection[str], claim: Claim, limit: int
    ) -> list[tuple[JobRow, Snapshot | None]]:
        """As `take_many` and `adopt` in one transaction; None for a flow that `adopt` has to be asked for."""
        begun: list[tuple[JobRow, Snapshot | None]] = []
        for row in await self.take_many(flows, claim, limit):
            try:
                begun.append((row, await self.adopt(row, flow_of(row), now=claim.now)))
            except FlowError:
                begun.append((row, None))
        return begun

    async def swap(self, old: JobRow, new: JobRow, *, now: float) -> bool:
        """Write ``new`` where the job has the state and the epoch of ``old``; False where it has not."""
        self._settle(now)
        row = self._rows.get(old.id)
        if row is None or (row.state, row.epoch) != (old.state, old.epoch):
            return False
        self._put(new)
        return True

    def _put(self, row: JobRow) -> JobRow:
        if row.outcome == DISCARDED:
            self._flows.discard(row.id, discarded(row), name=row.flow)
        self._remove(row.id)
        self._rows[row.id] = row
        if row.state == JobState.UNCLAIMED:
            insort(self._waiting, _place(row))
        elif row.state == JobState.CLAIMED:
            self._claimed.add(row.id)
        return row

    def _remove(self, id: str) -> None:  # noqa: A002  # what it is
        row = self._rows.pop(id, None)
        self._claimed.discard(id)
        if row is not None and row.state == JobState.UNCLAIMED:
            del self._waiting[bisect_left(self._waiting, _place(row))]

    async def renew(self, rows: Sequence[JobRow], *, now: float, until: float) -> list[JobRow]:
        """Have those claims end later; gives those that are lost."""
        self._settle(now)
        for row in rows:
            if self._has(row):
                self._rows[row.id] = self._rows[row.id]._replace(until=until)
        return [row for row in rows if not self._has(row)]

    def _has(self, row: JobRow) -> bool:
        found = self._rows.get(row.id)
        return found is not None and (found.state, found.epoch) == (JobState.CLAIMED, row.epoch)

    async def adopt(self, row: JobRow, flow: FlowRow, *, now: float) -> Snapshot:
        """Take the flow of a job that was claimed, or begin it.

        Raises:
            ClaimLost: if the claim is lost.
            FlowError: if the id is that of a flow with another name, which is left alone.
        """
        self._settle(now)
        if not self._has(row):
            raise lost_job(row)
        if not await self._flows.create(flow):
            self._flows.fence(flow.id, flow.owner, name=flow.name)
        found = await self._flows.load(flow.id)
        if found.flow.name != flow.name:
            raise other_flow(row, found.flow.name)
        return found

    async def next(self, *, now: float) -> float | None:
        """When a job will be due, or a claim may end, without anybody doing something."""
        ends = [self._rows[each].until for each in self._claimed]
        dues = [self._rows[each].due for *_, each in self._waiting]
        return min([*ends, *(due for due in dues if due > now)], default=None)

    async def unfinished(self, ids: Collection[str]) -> set[str]:
        """Which of those are ids of jobs that are not complete."""
        return {id for id in ids if id in self._rows and self._rows[id].state != JobState.COMPLETE}  # noqa: A001  # what it is

    async def purge(self, *, before: float) -> int:
        """Forget the jobs that were completed before then, with their flows; how many that were."""
        old = [row.id for row in self._rows.values() if row.state == JobState.COMPLETE and row.ended < before]
        for each in old:
            self._remove(each)
            await self._flows.delete(each)
        return len(old)

    async def counts(self) -> dict[str, int]:
        """How many jobs are in each state, but for those that are complete."""
        return {"UNCLAIMED": len(self._waiting), "CLAIMED": len(self._claimed)}

    def doubt(self) -> None:
        """Who could die takes this with it."""

    def _settle(self, now: float) -> None:
        """End the claims that are over."""
        for row in [self._rows[each] for each in self._claimed]:
            if row.until <= now:
                self._put(lapsed(row, now=now, flow=self._flows.fence(row.id, "", name=row.flow)))


def _place(row: JobRow) -> tuple[int, int, str]:
    return row.rank, row.number, row.id

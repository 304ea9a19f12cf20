"""`MemoryStore`: flows, jobs and sent events in dictionaries, for the lifetime of the process.

It is four times as fast as an in-memory SQLite database. The tests use it as the reference for the other stores.
"""

from __future__ import annotations

import itertools
import math
import time
from bisect import bisect_left, insort
from collections import Counter, defaultdict, deque
from heapq import merge
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from lifecycle.errors import FlowError
from lifecycle.flows.records import CANCEL, DISCARDED, DUE_NOW, UNLIMITED, FlowRow, Snapshot, taken
from lifecycle.flows.states import ENDS, FlowState, JobState
from lifecycle.flows.stores.base import (
    JobStore,
    OutboxStore,
    Store,
    cancelled,
    claimed,
    completed,
    discarded,
    expired,
    flow_of,
    keyed,
    lost,
    lost_job,
    not_taken,
    other_flow,
    parked,
    resumed,
    unknown,
)
from lifecycle.flows.stores.presence import Presence
from lifecycle.journal.database import SteadyClock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from lifecycle.flows.records import (
        Batch,
        Change,
        Claim,
        FailedDelivery,
        JobRow,
        Limits,
        OutboxRow,
        SignalRow,
        StepRow,
    )

__all__ = ["MemoryStore"]


class MemoryStore(Store):
    """A `Store` that uses dictionaries. Its rows exist as long as the object does, even after you exit its context."""

    def __init__(self) -> None:
        self._flows: dict[str, FlowRow] = {}
        self._steps: dict[str, dict[str, StepRow]] = {}
        self._changes: dict[str, list[Change]] = {}
        # The signals of each flow, by key.
        self._signals: dict[str, dict[str, SignalRow]] = {}
        self._numbers = itertools.count(1)
        # The WAITING flows that have a due time: the time and the id of each, in order.
        self._sleeping: list[tuple[float, str]] = []
        self._jobs = MemoryJobs(self)
        self._outbox = _Outbox()
        self._clock = SteadyClock()
        # When each schedule started a flow last.
        self._schedules: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<MemoryStore: {len(self._flows)} flows>"

    async def __aenter__(self) -> Self:
        """Return the store; there is nothing to open."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Do nothing; there is nothing to close."""

    async def create(self, flow: FlowRow) -> bool:
        if flow.id in self._flows:
            return False
        self._put(flow)
        self._steps[flow.id] = {}
        self._changes[flow.id] = []
        return True

    def _put(self, flow: FlowRow) -> None:
        self._remove(flow.id)
        self._flows[flow.id] = flow
        if flow.state == FlowState.WAITING and flow.due:
            insort(self._sleeping, (flow.due, flow.id))

    def _remove(self, id: str) -> None:  # noqa: A002  # the natural name
        """Remove the flow ``id`` from `_sleeping`."""
        old = self._flows.get(id)
        if old is not None and old.state == FlowState.WAITING and old.due:
            del self._sleeping[bisect_left(self._sleeping, (old.due, id))]

    async def get(self, id: str) -> FlowRow | None:  # noqa: A002  # the natural name
        return self._flows.get(id)

    async def load(self, id: str) -> Snapshot:  # noqa: A002  # the natural name
        if id not in self._flows:
            raise unknown(id)
        return Snapshot(self._flows[id], dict(self._steps[id]))

    async def take(self, id: str, owner: str, *, seen: int, ended: bool = False) -> Snapshot:  # noqa: A002  # the natural name
        flow = (await self.load(id)).flow
        if flow.epoch != seen or (flow.state in ENDS and not ended):
            raise not_taken(flow, seen)
        self._put(resumed(flow)._replace(epoch=seen + 1, owner=owner))
        left = [row for row in await self.signals(id) if not row.taken]
        return (await self.load(id))._replace(signals=left)

    async def commit(self, batch: Batch) -> None:
        flow = self._flows.get(batch.flow)
        if flow is None or flow.epoch != batch.epoch:
            raise lost(batch.flow, batch.epoch)
        if batch.is_success and self._has(batch.flow, CANCEL):
            raise cancelled(batch.flow)
        for number in batch.taken:
            self._receive(flow.id, number)
        for child in batch.children:
            await self.create(child)
        self._put(self._changed(flow, batch))
        if batch.parent and batch.state in ENDS:
            self._wake(batch.parent)
        steps = self._steps[flow.id]
        for row in batch.steps:
            steps[row.name] = row
        if batch.taken_back:
            kept = [change for change in self._changes[flow.id] if change.seq < batch.taken_back]
            self._changes[flow.id] = kept
        self._changes[flow.id] += batch.changes
        self._outbox.add(batch.sent)

    def _changed(self, flow: FlowRow, batch: Batch) -> FlowRow:
        """Return ``flow`` as changed by ``batch``, whose signals and children are already stored."""
        return flow._replace(
            state=batch.state,
            seq=batch.seq,
            at=flow.at if flow.state == batch.state else batch.at,
            store=flow.store if batch.store is None else batch.store,
            error=batch.error,
            kind=batch.kind,
            due=DUE_NOW if batch.state == FlowState.WAITING and self._is_over(batch) else batch.due,
            result=batch.result,
        )

    def _is_over(self, batch: Batch) -> bool:
        """Return True if a signal or a child that the flow waits for has already arrived or ended."""
        children = (self._flows.get(id) for id in batch.awaited_children)  # noqa: A001  # the natural name
        return self._has(batch.flow, CANCEL, *batch.awaited) or any(
            child is not None and child.state in ENDS for child in children
        )

    def _has(self, id: str, *names: str) -> bool:  # noqa: A002  # the natural name
        """Return True if the flow ``id`` has a signal with one of these names that it has not received."""
        return any(not row.taken and row.name in names for row in self._signals.get(id, {}).values())

    def _receive(self, id: str, number: int) -> None:  # noqa: A002  # the natural name
        rows = self._signals.get(id, {})
        rows |= {row.key: row._replace(taken=True) for row in rows.values() if row.number == number}

    def _wake(self, id: str) -> None:  # noqa: A002  # the natural name
        """Make the flow ``id`` and its job due at once if the flow is WAITING."""
        flow = self._flows.get(id)
        if flow is not None and flow.state == FlowState.WAITING:
            self._put(flow._replace(due=DUE_NOW))
            self._jobs.wake(id)

    async def flows(
        self,
        *,
        name: str | None = None,
        states: Collection[str] = (),
        since: float = 0.0,
        newest: int | None = None,
    ) -> list[FlowRow]:
        found = [
            flow
            for flow in self._flows.values()
            if (name is None or flow.name == name) and (not states or flow.state in states) and flow.created >= since
        ]
        if newest is None:
            return found
        # Sorting a reversed list keeps the newer of two flows with equal times first.
        found.reverse()
        return sorted(found, key=lambda row: -row.created)[:newest]

    async def owners(self, names: Collection[str]) -> set[tuple[str, str]]:
        return {
            (row.name, row.owner)
            for row in self._flows.values()
            if row.name in names
            and row.state not in (*ENDS, FlowState.WAITING)
            and not (row.state == FlowState.PENDING and row.error)
            and not self._jobs.has(row.id)
        }

    async def due(self, names: Collection[str], *, now: float, limit: int, others: bool = False) -> list[FlowRow]:
        asleep = takewhile(lambda row: row.due <= now, (self._flows[each] for _, each in self._sleeping))
        rows = (row for row in asleep if (row.name in names) != others and not self._jobs.has(row.id))
        return list(islice(rows, limit))

    async def wake_parents(self, names: Collection[str], *, known: Collection[str]) -> bool:
        parents = {row.parent for row in self._flows.values() if row.name not in known and row.state not in ENDS}
        waiting = [row.id for row in await self.flows(states=[FlowState.WAITING]) if row.name in names]
        woken = parents & set(waiting)
        for id in woken:  # noqa: A001  # the natural name
            self._wake(id)
        return bool(woken)

    async def signal(self, row: SignalRow) -> FlowState:
        flow = self._flows.get(row.flow)
        if flow is None and not self._jobs.has(row.flow):
            raise unknown(row.flow)
        state = FlowState.PENDING if flow is None else FlowState(flow.state)
        if state not in ENDS:
            row = keyed(row)._replace(number=next(self._numbers), taken=False)
            self._signals.setdefault(row.flow, {}).setdefault(row.key, row)
            self._wake(row.flow)
        return state

    async def signals(self, id: str, *, after: int = 0) -> list[SignalRow]:  # noqa: A002  # the natural name
        return [row for row in self._signals.get(id, {}).values() if row.number > after]

    async def changes(self, id: str, *, after: int = 0, limit: int = 500) -> list[Change]:  # noqa: A002  # the natural name
        changes = self._changes.get(id, [])
        # Change numbers ascend, and numbers are missing only if a commit has failed.
        start = next((place for place in range(min(after, len(changes)), 0, -1) if changes[place - 1].seq <= after), 0)
        return [change._replace(result=None) for change in changes[start : start + limit]]

    async def delete(self, id: str) -> bool:  # noqa: A002  # the natural name
        self._remove(id)
        for rows in (self._steps, self._changes, self._signals):
            rows.pop(id, None)
        return self._flows.pop(id, None) is not None

    async def purge(self, before: float, *, name: str | None = None) -> int:
        ended = [
            row.id
            for row in await self.flows(name=name, states=ENDS)
            if row.at < before and not self._jobs.has(row.id) and not self._is_running(row.parent)
        ]
        for each in ended:
            await self.delete(each)
        return len(ended)

    def _is_running(self, id: str) -> bool:  # noqa: A002  # the natural name
        flow = self._flows.get(id)
        return flow is not None and flow.state not in ENDS

    async def scheduled(self, schedule: str, *, now: float) -> float:
        return self._schedules.setdefault(schedule, now)

    async def start_scheduled(self, flow: FlowRow, schedule: str, *, due: float) -> bool:
        if self._schedules[schedule] >= due:
            return False
        self._schedules[schedule] = due
        return await self.create(flow)

    async def reset_schedule(self, schedule: str, *, seen: float, now: float) -> None:
        if self._schedules.get(schedule) == seen:
            self._schedules[schedule] = now

    def presence(self) -> Presence:
        return Presence()

    def time(self) -> float:
        return self._clock.time()

    def outbox(self) -> _Outbox:
        return self._outbox

    def jobs(self, presence: Presence) -> MemoryJobs:  # noqa: ARG002  # no other process uses this store
        return self._jobs

    def fence(self, id: str, owner: str, *, name: str) -> str:  # noqa: A002  # the natural name
        """Assign the flow with this id and name to ``owner``, so that its previous owner can no longer write to it.

        Returns:
            The flow's state, or an empty string if there is no flow with this id and name.
        """
        flow = self._flows.get(id)
        if flow is None or flow.name != name:
            return ""
        self._put(flow._replace(epoch=flow.epoch + 1, owner=owner))
        return flow.state

    def cancel(self, id: str, *, name: str) -> bool:  # noqa: A002  # the natural name
        """Store the flow with this id and name as CANCELLED. Return False if it has started or has another name."""
        flow = self._flows.get(id) or FlowRow(id, name, created=time.time())
        if flow.name != name or flow.state not in (FlowState.PENDING, FlowState.CANCELLED):
            return False
        self._put(flow._replace(state=FlowState.CANCELLED, at=time.time(), epoch=flow.epoch + 1, owner=""))
        self._steps.setdefault(id, {})
        self._changes.setdefault(id, [])
        return True

    def discard(self, id: str, error: str, *, name: str) -> None:  # noqa: A002  # the natural name
        """End the flow with this id and name as FAILURE, unless it has ended. If it is PENDING, only set its error."""
        flow = self._flows.get(id)
        if flow is not None and flow.name == name and flow.state not in ENDS:
            state = flow.state if flow.state == FlowState.PENDING else FlowState.FAILURE
            self._put(flow._replace(state=state, error=error, at=time.time(), epoch=flow.epoch + 1, owner=""))


class MemoryJobs(JobStore):
    """A `JobStore` in a dictionary that belongs to a `MemoryStore`."""

    def __init__(self, flows: MemoryStore) -> None:
        self._flows = flows
        self._rows: dict[str, JobRow] = {}
        self._count = 0
        # The unclaimed jobs of each queue and key, in order, including jobs that are not due yet.
        self._waiting: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
        # The ids of the claimed jobs.
        self._claimed: set[str] = set()
        # When jobs were claimed, by the names of queues with a rate limit.
        self._starts: defaultdict[str, deque[float]] = defaultdict(deque)

    async def add(self, row: JobRow) -> JobRow:
        if row.id not in self._rows:
            self._count += 1
            self._put(row._replace(number=self._count))
        return self._rows[row.id]

    async def get(self, id: str, *, now: float) -> JobRow | None:  # noqa: A002  # the natural name
        self._expire(now)
        return self._rows.get(id)

    async def rows(
        self,
        *states: str,
        now: float,
        queue: str | None = None,
        after: tuple[int, int] | None = None,
        limit: int | None = None,
    ) -> list[JobRow]:
        self._expire(now)
        found = (row for row in self._rows.values() if row.state in states and queue in (None, row.queue))
        later = (row for row in found if after is None or (row.rank, row.number) > after)
        return sorted(later, key=_place)[:limit]

    async def take(self, flows: Collection[str] | None, claim: Claim, limit: int) -> list[JobRow]:
        self._expire(claim.now)
        ready = list(islice(self._ready(flows, claim), self._places(claim, limit)))
        if claim.limits.limit is not None:
            self._starts[claim.queue].extend(claim.now for _ in ready)
        return [self._put(claimed(row, claim)) for row in ready]

    def _ready(self, flows: Collection[str] | None, claim: Claim) -> Iterator[JobRow]:
        """Yield the jobs to claim, in order, as far as the limit for each key allows."""
        most = claim.limits.key_concurrency
        running = Counter(row.key for row in self._running(claim.queue))
        due: list[Iterator[JobRow]] = []
        for (queue, key), places in self._waiting.items():
            free = None if most is None or not key else max(0, most - running[key])
            if queue == claim.queue and free != 0:
                due.append(islice(self._due(places, flows, claim.now), free))
        return merge(*due, key=_place)

    def _due(self, places: list[tuple[int, int, str]], flows: Collection[str] | None, now: float) -> Iterator[JobRow]:
        rows = (self._rows[each] for *_, each in places)
        return (row for row in rows if row.due <= now and (flows is None or row.flow in flows))

    def _places(self, claim: Claim, limit: int) -> int:
        """Return how many jobs may be claimed."""
        concurrency, _, most, per = claim.limits
        places = [limit]
        if concurrency is not None:
            places.append(concurrency - len(self._running(claim.queue)))
        if most is not None:
            starts = self._starts[claim.queue]
            while starts and starts[0] <= claim.now - per:
                starts.popleft()
            places.append(most - len(starts))
        return max(0, min(places))

    def _running(self, queue: str) -> list[JobRow]:
        return [row for each in self._claimed if (row := self._rows[each]).queue == queue]

    async def begin(self, flows: Collection[str], claim: Claim, limit: int) -> list[tuple[JobRow, Snapshot | None]]:
        begun: list[tuple[JobRow, Snapshot | None]] = []
        for row in await self.take(flows, claim, limit):
            try:
                begun.append((row, await self.adopt(row, now=claim.now)))
            except FlowError:
                begun.append((row, None))
        return begun

    async def compare_and_set(self, old: JobRow, new: JobRow, *, now: float) -> bool:
        self._expire(now)
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
            insort(self._waiting.setdefault((row.queue, row.key), []), _place(row))
        elif row.state == JobState.CLAIMED:
            self._claimed.add(row.id)
        return row

    def _remove(self, id: str) -> None:  # noqa: A002  # the natural name
        row = self._rows.pop(id, None)
        self._claimed.discard(id)
        if row is not None and row.state == JobState.UNCLAIMED:
            places = self._waiting[row.queue, row.key]
            del places[bisect_left(places, _place(row))]
            if not places:
                del self._waiting[row.queue, row.key]

    async def cancel(self, id: str, *, now: float) -> bool:  # noqa: A002  # the natural name
        self._expire(now)
        row = self._rows.get(id)
        if row is None or row.state != JobState.UNCLAIMED or not self._flows.cancel(id, name=row.flow):
            return False
        self._put(completed(row, FlowState.CANCELLED, "", now=now))
        return True

    async def park(self, row: JobRow, *, now: float) -> bool:
        return await self.compare_and_set(row, parked(row, await self._flows.get(row.id)), now=now)

    def has(self, id: str) -> bool:  # noqa: A002  # the natural name
        """Return True if there is an unfinished job with this id."""
        return id in self._rows and self._rows[id].state != JobState.COMPLETE

    def wake(self, id: str) -> None:  # noqa: A002  # the natural name
        """Make the job ``id`` due at once if it is unclaimed."""
        if self.has(id) and self._rows[id].state == JobState.UNCLAIMED:
            self._rows[id] = self._rows[id]._replace(due=0.0)

    async def renew(self, rows: Sequence[JobRow], *, now: float, until: float) -> list[JobRow]:
        self._expire(now)
        for row in rows:
            if self._has(row):
                self._rows[row.id] = self._rows[row.id]._replace(until=until)
        return [row for row in rows if not self._has(row)]

    def _has(self, row: JobRow) -> bool:
        found = self._rows.get(row.id)
        return found is not None and (found.state, found.epoch) == (JobState.CLAIMED, row.epoch)

    async def adopt(self, row: JobRow, *, now: float) -> Snapshot:
        self._expire(now)
        if not self._has(row):
            raise lost_job(row)
        flow = flow_of(row)
        if await self._flows.create(flow):
            return await self._flows.load(flow.id)
        found = (await self._flows.load(flow.id)).flow
        if found.name != flow.name:
            raise other_flow(row, found.name)
        return await self._flows.take(flow.id, flow.owner, seen=found.epoch, ended=True)

    async def next(self, *, now: float, queue: str = "", limits: Limits = UNLIMITED) -> float | None:
        ends = [self._rows[each].until for each in self._claimed]
        dues = [self._rows[each].due for places in self._waiting.values() for *_, each in places]
        starts = self._starts[queue]
        if limits.limit is not None and len(starts) >= limits.limit:
            dues.append(starts[-limits.limit] + limits.per)
        return min([*ends, *(due for due in dues if now < due < math.inf)], default=None)

    async def others(self, flows: Collection[str], *, queue: str, limit: int) -> list[JobRow]:
        rows = (self._rows[each] for (name, _), places in self._waiting.items() if name == queue for *_, each in places)
        return list(islice((row for row in rows if not row.due and row.flow not in flows), limit))

    async def unfinished(self, ids: Collection[str]) -> set[str]:
        return set(filter(self.has, ids))

    async def purge(self, *, before: float, queue: str) -> int:
        complete = [row for row in self._rows.values() if row.state == JobState.COMPLETE and row.queue == queue]
        old = [row for row in complete if row.ended < before]
        for row in old:
            self._remove(row.id)
            flow = await self._flows.get(row.id)
            if flow is None or flow.name == row.flow:
                await self._flows.delete(row.id)
        return len(old)

    async def counts(self, queue: str | None = None) -> dict[str, int]:
        waiting = sum(len(places) for (name, _), places in self._waiting.items() if queue in (None, name))
        running = [each for each in self._claimed if queue in (None, self._rows[each].queue)]
        return {"UNCLAIMED": waiting, "CLAIMED": len(running)}

    def doubt(self) -> None:
        """Do nothing, because no other process can own jobs."""

    def _expire(self, now: float) -> None:
        """End all claims that have expired."""
        for row in [self._rows[each] for each in self._claimed]:
            if row.until <= now:
                self._put(expired(row, now=now, flow=self._flows.fence(row.id, "", name=row.flow)))


def _place(row: JobRow) -> tuple[int, int, str]:
    return row.rank, row.number, row.id


class _Outbox(OutboxStore):
    """An `OutboxStore` in a dictionary."""

    def __init__(self) -> None:
        # The rows, ordered by number.
        self._rows: dict[int, OutboxRow] = {}
        # When each lease expires, by row number.
        self._until: dict[int, float] = {}
        self._dead: dict[int, OutboxRow] = {}
        self._count = 0

    def add(self, rows: Sequence[OutboxRow]) -> None:
        for row in rows:
            self._count += 1
            self._rows[self._count] = row._replace(number=self._count)

    async def take(self, limit: int, *, now: float, until: float) -> list[OutboxRow]:
        free = (row for number, row in self._rows.items() if self._until.get(number, 0.0) <= now)
        rows = [taken(row, self._until.get(row.number, 0.0)) for row in islice(free, limit)]
        self._rows |= {row.number: row for row in rows}
        self._until |= {row.number: until for row in rows}
        return rows

    async def hold(self, numbers: Collection[int], *, until: float) -> None:
        self._until |= {number: until for number in numbers if number in self._rows}

    async def forget(self, numbers: Collection[int]) -> None:
        for number in numbers:
            self._rows.pop(number, None)
            self._until.pop(number, None)
            self._dead.pop(number, None)

    async def settle(
        self, *, delivered: Collection[int], freed: Collection[int], failed: Sequence[FailedDelivery]
    ) -> None:
        await self.forget(delivered)
        await self.hold(freed, until=0.0)
        for number, failures, error, until in failed:
            row = self._rows.pop(number)._replace(failures=failures, error=error)
            if until is None:
                self._dead[number] = row
            else:
                self._rows[number], self._until[number] = row, until
        self._rows = dict(sorted(self._rows.items()))

    async def dead(self) -> list[OutboxRow]:
        return [self._dead[number] for number in sorted(self._dead)]

    async def revive(self, numbers: Collection[int]) -> None:
        for number in numbers:
            if (row := self._dead.pop(number, None)) is not None:
                self._rows[number], self._until[number] = row._replace(failures=0), 0.0
        self._rows = dict(sorted(self._rows.items()))

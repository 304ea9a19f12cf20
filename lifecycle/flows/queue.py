"""`JobQueue`: jobs that are enqueued, claimed and completed, by this process or by others that share the store.

A job is a flow that some process is to carry out. `worker` has the loop that claims jobs and carries them out.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, overload

from lifecycle import hooks
from lifecycle._async import wait_within
from lifecycle.backoff import Backoff
from lifecycle.errors import ClaimLost, FlowError, InvalidState
from lifecycle.flows.records import DISCARDED, PRIORITIES, Claim, JobRow, Priority
from lifecycle.flows.states import JOBS, JobState
from lifecycle.flows.stores.base import claimed, clock_of, completed, id_for, lost_job, released
from lifecycle.journal.queues import CachedCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Mapping

    from lifecycle.flows.client import Flows
    from lifecycle.flows.definition import Item
    from lifecycle.flows.records import Snapshot
    from lifecycle.flows.stores.base import JobStore

__all__ = ["JOBS_TO_CLAIM", "Job", "JobQueue", "JobQueueState", "jobs_of"]

#: News that there may be jobs to claim, of any flow.
JOBS_TO_CLAIM = "jobs"
#: Characters of the name of a flow that are part of news.
_LONGEST = 100
#: Seconds between two looks of a process that waits for the end of a job, if it hears no news.
_LOOK = 5.0
#: Jobs that are made of their rows in one turn of the loop.
_PAGE = 1000
_BACKOFF = Backoff(initial=1.0, maximum=300.0)


def jobs_of(flow: str) -> str:
    """Return the news that there may be jobs of ``flow`` to claim."""
    return f"{JOBS_TO_CLAIM} {flow}" if len(flow) <= _LONGEST else JOBS_TO_CLAIM


def _end_of(id: str) -> str:  # noqa: A002  # what it is
    """Return the news that a job is complete."""
    return f"end of {id}"


class Job:
    """A job of a `JobQueue`, as it was seen last.

    Awaited, it waits until the job is complete, whichever process completes it, and returns the outcome.
    """

    __slots__ = ("_machine", "_queue", "_row")

    def __init__(self, queue: JobQueue, row: JobRow) -> None:
        self._queue, self._row = queue, row
        self._machine = JOBS.machine(row.id, JobState(row.state))

    @classmethod
    def claimed(cls, queue: JobQueue, row: JobRow) -> Job:
        """Return a job that was claimed just now, and announce the claim."""
        job = cls(queue, row._replace(state=JobState.UNCLAIMED))
        job.see(row)
        return job

    def __repr__(self) -> str:
        return f"<Job {self.flow!r} {self.id!r}: {self.outcome or self.state}>"

    def __await__(self) -> Generator[Any, None, str]:
        return self._queue.wait(self).__await__()

    @property
    def row(self) -> JobRow:
        """The row that was seen last."""
        return self._row

    @property
    def id(self) -> str:
        """Its id, which its flow has too."""
        return self._row.id

    @property
    def flow(self) -> str:
        """The name of its flow."""
        return self._row.flow

    @property
    def priority(self) -> Priority:
        """Its priority."""
        return PRIORITIES[self._row.rank]

    @property
    def state(self) -> JobState:
        """Its state."""
        return self._machine.state

    @property
    def owner(self) -> str | None:
        """The name in which it is claimed, if it is."""
        return self._row.owner or None

    @property
    def attempts(self) -> int:
        """How often it was claimed, without claims that were undone."""
        return self._row.attempts

    @property
    def outcome(self) -> str:
        """The state in which its flow ended, or ``discarded``; empty while it is not complete."""
        return self._row.outcome

    @property
    def error(self) -> str:
        """Its last error, if it failed."""
        return self._row.error

    @property
    def store(self) -> dict[str, Any]:
        """The values that its flow is started with."""
        values: dict[str, Any] = self._queue.flows.codec.decode(self._row.store)
        return values

    def see(self, row: JobRow) -> None:
        """Take over the stored row; its state machine passes through the states between."""
        old, self._row = self._row, row
        if self._machine.is_final:
            return
        if old.epoch != row.epoch:
            self._machine.to(JobState.UNCLAIMED)
        if row.state != JobState.UNCLAIMED:
            self._machine.to(JobState.CLAIMED)
        self._machine.to(JobState(row.state))


@dataclass(frozen=True, slots=True)
class JobQueueState:
    """A `JobQueue` at one moment."""

    #: Where its jobs are kept.
    name: str
    #: How many jobs are in each state but COMPLETE; empty before the first count.
    depths: dict[str, int]
    kind: str = "queue"


class JobQueue:
    """Jobs in the store of ``flows``, each for the flow whose name it was enqueued with.

    A claimed job belongs to its owner until it is completed, discarded or released, the claim expires, or, on one
    machine, the process dies. A job that failed comes back after a while; one that was claimed ``max_attempts`` times
    in vain is discarded. A complete job stays, with its outcome, until `purge`.

    Args:
        flows: To be entered before the queue is used.
        max_attempts: Of the jobs that are enqueued here.
        backoff: How long a job that failed has to wait.
    """

    def __init__(self, flows: Flows, *, max_attempts: int = 10, backoff: Backoff = _BACKOFF) -> None:
        if max_attempts < 1:
            raise ValueError(f"JobQueue(max_attempts={max_attempts!r}) could do nothing; give 1 or more")
        #: The flows, which carry out claimed jobs.
        self.flows = flows
        self._store = flows.store.jobs(flows.presence)
        self._max_attempts, self._backoff = max_attempts, backoff
        #: The cached count of jobs, renewed while a worker works.
        self.count: Final = CachedCounts(
            self._store.counts, lambda: hooks.component_changed.announce(self, component=self)
        )

    def __repr__(self) -> str:
        return f"<JobQueue in {self.flows.store!r}>"

    @property
    def store(self) -> JobStore:
        """The store of the jobs.

        Raises:
            FlowError: unless the flows are entered.
        """
        self.flows.check_open()
        return self._store

    @cached_property
    def now(self) -> Callable[[], float]:
        """The clock that all processes with this store share, in seconds since the epoch."""
        return clock_of(self.flows.store)

    def state(self) -> JobQueueState:
        """Return its state now; while a worker works, the count is a second old at most."""
        self.count.renew()
        return JobQueueState(repr(self.flows.store), dict(self.count.figures))

    # -- for the caller that has work ----------------------------------------------------------------------------------

    async def enqueue(
        self,
        flow: str,
        /,
        *,
        priority: str = "normal",
        after: float = 0.0,
        id: str | None = None,  # noqa: A002  # what it is
        **store: Any,
    ) -> Job:
        """Have the flow with that name carried out with those values, not before ``after`` seconds.

        The same id again is the same job; then the values of the first call count.

        Raises:
            ValueError: for an unknown priority, or a delay that is not a number of seconds.
            FlowError: for a value that cannot be kept, or the id of a job of another flow.
        """
        if not isinstance(flow, str):
            raise TypeError(f"enqueue({flow!r}) is not the name of a flow; give the name that `work` knows it by")
        if not 0 <= after < math.inf:
            raise ValueError(f"enqueue(after={after!r}) is no time to wait; give 0 or more seconds")
        now = self.now()
        row = JobRow(
            id_for(id),
            flow,
            _rank_of(priority),
            self.flows.codec.encode(store),
            now,
            self._max_attempts,
            due=now + after if after else 0.0,
        )
        kept = await self.store.add(row)
        if kept.flow != flow:
            raise FlowError(f"the id {id!r} is that of a job of flow {kept.flow!r}, not {flow!r}; give another id")
        self.flows.presence.notify(jobs_of(flow))
        return Job(self, kept)

    async def get(self, id: str) -> Job:  # noqa: A002  # what it is
        """Return the job with that id.

        Raises:
            FlowError: if there is none.
        """
        return Job(self, await self._row(id))

    async def jobs(self, *states: str, limit: int | None = None, after: Job | None = None) -> list[Job]:
        """Return the jobs in those states, in the order of claims; without states, all that are not complete.

        Args:
            states: ``UNCLAIMED``, ``CLAIMED``, ``COMPLETE``.
            limit: How many at most; None: all.
            after: The last job of the page before.

        Raises:
            ValueError: for a limit below 1, or an unknown state.
        """
        if limit is not None and limit < 1:
            raise ValueError(f"jobs(limit={limit!r}) would give nothing; give 1 or more, or None")
        wanted = [JobState(state) for state in states] or [JobState.UNCLAIMED, JobState.CLAIMED]
        place = None if after is None else (after.row.rank, after.row.number)
        rows = await self.store.rows(*wanted, now=self.now(), after=place, limit=limit)
        jobs: list[Job] = []
        for row in rows:
            jobs.append(Job(self, row))
            if not len(jobs) % _PAGE:
                # A hundred thousand take their time.
                await asyncio.sleep(0)
        return jobs

    async def wait(self, job: Job) -> str:
        """Wait until ``job`` is complete, whichever process completes it, and return its outcome."""
        news = asyncio.Event()
        silence = self.flows.presence.listen(_end_of(job.id), news.set)
        try:
            while True:
                news.clear()
                job.see(await self._row(job.id))
                if job.state is JobState.COMPLETE:
                    return job.outcome
                await wait_within(_LOOK, news)
        finally:
            silence()

    async def purge(self, older_than: float) -> int:
        """Delete the jobs that were completed more than so many seconds ago, with their flows; return their number."""
        return await self.store.purge(before=self.now() - older_than)

    # -- for workers ---------------------------------------------------------------------------------------------------

    @overload
    async def claim(self, job: Job, who: str | None = None, *, lease: float = 30.0) -> Job: ...
    @overload
    async def claim(
        self, job: None = None, who: str | None = None, *, flows: Collection[str] | None = None, lease: float = 30.0
    ) -> Job | None: ...

    async def claim(
        self,
        job: Job | None = None,
        who: str | None = None,
        *,
        flows: Collection[str] | None = None,
        lease: float = 30.0,
    ) -> Job | None:
        """Claim ``job``, even before it is due, or else the first job that is due; None if there is none.

        The claim holds for ``lease`` seconds, or until this process ends; see `extend`.

        Args:
            job: As `enqueue` or `jobs` returned it.
            who: The name of the owner; the default is this process.
            flows: The names of the flows whose jobs may be claimed; None: all.
            lease: Seconds.

        Raises:
            InvalidState: if it is claimed or complete.
            FlowError: if it is not there any more.
        """
        claim = self._claim(who, lease)
        if job is None:
            rows = await self.store.take(flows, claim, 1)
            return Job.claimed(self, rows[0]) if rows else None
        while True:
            row = await self._row(job.id)
            job.see(row)
            _check(row, JobState.CLAIMED)
            mine = claimed(row, claim)
            if await self.store.compare_and_set(row, mine, now=claim.now):
                job.see(mine)
                return job

    async def begin(self, flows: Collection[str], lease: float, limit: int) -> list[tuple[Job, Snapshot | None]]:
        """Claim at most ``limit`` jobs of those flows that are due, and take their flows; for a worker."""
        begun = await self.store.begin(flows, self._claim(None, lease), limit)
        return [(Job.claimed(self, row), snapshot) for row, snapshot in begun]

    async def extend(self, job: Job, lease: float) -> None:
        """Extend the claim on ``job`` to ``lease`` seconds from now.

        Raises:
            ClaimLost: if the claim has ended.
        """
        claim = self._claim(job.owner, lease)
        if await self.store.renew([job.row], now=claim.now, until=claim.until):
            raise lost_job(job.row)

    async def complete(self, job: Job, who: str | None = None, *, outcome: str = "SUCCESS", error: str = "") -> None:
        """Complete a claimed job, with its outcome.

        Raises:
            InvalidState: if it is not claimed.
            ClaimLost: if another owner has claimed it.
        """
        await self._end(job, who, lambda row: completed(row, outcome, error, now=self.now()))

    async def discard(self, job: Job, who: str | None = None, *, error: str = "") -> None:
        """Complete a claimed job that cannot be done: it stays as a dead letter, with the outcome ``discarded``.

        Raises:
            InvalidState: if it is not claimed.
            ClaimLost: if another owner has claimed it.
        """
        await self._end(job, who, lambda row: completed(row, DISCARDED, error or row.error, now=self.now()))

    async def release(self, job: Job, who: str | None = None, *, error: str = "", after: float | None = None) -> None:
        """Give up a claim.

        Without ``error`` and ``after``, it is as if the job had not been claimed: it is due at once, and the attempt
        does not count. With one of them the attempt counts: the job is due after a while, and one that was claimed too
        often is discarded.

        Args:
            job: As `claim` returned it.
            who: The name in which it was claimed.
            error: Why.
            after: Seconds; None with an error: by the queue's backoff and how often it was claimed.

        Raises:
            InvalidState: if it is not claimed.
            ClaimLost: if another owner has claimed it.
        """

        def change(row: JobRow) -> JobRow:
            if not error and after is None:
                return released(row, row.error)._replace(attempts=row.attempts - 1)
            if row.attempts >= row.max_attempts:
                return completed(row, DISCARDED, error, now=self.now())
            wait = self._backoff.delay(row.attempts - 1) if after is None else after
            return released(row, error)._replace(due=self.now() + wait if wait else 0.0)

        await self._end(job, who, change)

    async def work(self, flows: Mapping[str, Item], *, concurrency: int = 8, lease: float = 30.0) -> None:
        """Claim jobs of those flows and carry them out, ``concurrency`` at a time, until cancelled."""
        from lifecycle.flows.worker import Worker

        await Worker(self, flows, concurrency=concurrency, lease=lease).run()

    def _claim(self, who: str | None, lease: float) -> Claim:
        owner = self.flows.presence.name if who is None else who
        if not owner:
            raise ValueError(f"claim(who={who!r}) is empty; give the name of the owner")
        if not 0 < lease < math.inf:
            raise ValueError(f"claim(lease={lease!r}) is no time to work; give more than 0 seconds")
        now = self.now()
        return Claim(owner, self.flows.presence.token, now, now + lease)

    async def _end(self, job: Job, who: str | None, change: Callable[[JobRow], JobRow]) -> None:
        """End a claim: write what ``change`` makes of the row."""
        owner = self.flows.presence.name if who is None else who
        while not await self._write(job, owner, change(job.row)):
            # It may have been claimed in the same name elsewhere; then the stored row counts.
            found = await self._row(job.id)
            _check(found, JobState(change(found).state))
            if found.owner != owner:
                raise ClaimLost(f"job {found.id!r} is claimed by {found.owner}, not by {owner}; leave it to them")
            job.see(found)
        self.flows.presence.notify(_end_of(job.id) if job.state is JobState.COMPLETE else jobs_of(job.flow))

    async def _write(self, job: Job, owner: str, row: JobRow) -> bool:
        """Write ``row``; False if the job is not known to be claimed by ``owner``."""
        old = job.row
        if (old.state, old.owner) != (JobState.CLAIMED, owner):
            return False
        if not await self.store.compare_and_set(old, row, now=self.now()):
            raise lost_job(old)
        job.see(row)
        return True

    async def _row(self, id: str) -> JobRow:  # noqa: A002  # what it is
        row = await self.store.get(id, now=self.now())
        if row is None:
            raise FlowError(f"there is no job {id!r} here; give the id that it was enqueued with")
        return row


def _rank_of(priority: str) -> int:
    """Return the place of a priority, the highest first.

    Raises:
        ValueError: for an unknown one.
    """
    try:
        return PRIORITIES.index(Priority(priority))
    except ValueError:
        raise ValueError(f"priority={priority!r} is not known; give one of {', '.join(PRIORITIES)}") from None


def _check(row: JobRow, state: JobState) -> None:
    """Refuse a move that the table of jobs does not have, or that would change nothing."""
    if not JOBS.check(row.id, JobState(row.state), state):
        whose = f" by {row.owner}" if row.owner else ""
        raise InvalidState(f"job {row.id!r} is {row.state}{whose} already")

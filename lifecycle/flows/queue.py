"""`JobQueue`: a job queue shared by all processes that have the same store open.

A job is a flow that any of these processes can run. The loop that claims jobs and runs their flows is in `worker`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, overload

from lifecycle import hooks
from lifecycle._async import wait_within
from lifecycle._durations import in_seconds, in_seconds_or_none
from lifecycle.backoff import Backoff
from lifecycle.errors import ClaimLost, FlowError, InvalidState
from lifecycle.flows.client import registry_of
from lifecycle.flows.records import DISCARDED, PRIORITIES, UNLIMITED, Claim, JobRow, Limits, Priority
from lifecycle.flows.states import JOBS, JobState
from lifecycle.flows.stores.base import check_key, claimed, clock_of, completed, id_for, lost_job, released
from lifecycle.flows.stores.presence import end_of_job
from lifecycle.journal.queues import CachedCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Mapping

    from lifecycle._durations import Duration
    from lifecycle.flows.client import Flows
    from lifecycle.flows.definition import Item
    from lifecycle.flows.records import Snapshot
    from lifecycle.flows.stores.base import JobStore

__all__ = ["JOBS_TO_CLAIM", "Job", "JobQueue", "JobQueueState", "jobs_of"]

_log = logging.getLogger("lifecycle.flows")

#: The message announcing that a job for any flow may be available.
JOBS_TO_CLAIM = "jobs"
#: The maximum length of a flow name in a message.
_LONGEST = 100
#: Seconds after which a process waiting for a job checks the job's state, even if no message arrives.
_LOOK = 5.0
#: The number of rows converted to jobs per loop iteration.
_PAGE = 1000
_BACKOFF = Backoff(initial=1.0, maximum=300.0)


def jobs_of(flow: str) -> str:
    """Return the message announcing that a job for ``flow`` may be available."""
    return f"{JOBS_TO_CLAIM} {flow}" if len(flow) <= _LONGEST else JOBS_TO_CLAIM


class Job:
    """A job in a `JobQueue`, as last read from the store.

    Await a job to wait until some process has completed it, and to get its outcome.
    """

    __slots__ = ("_machine", "_queue", "_row")

    def __init__(self, queue: JobQueue, row: JobRow) -> None:
        self._queue, self._row = queue, row
        self._machine = JOBS.machine(row.id, JobState(row.state))

    @classmethod
    def claimed(cls, queue: JobQueue, row: JobRow) -> Job:
        """Return a job that was just claimed, and announce its new state."""
        job = cls(queue, row._replace(state=JobState.UNCLAIMED))
        job.see(row)
        return job

    def __repr__(self) -> str:
        return f"<Job {self.flow!r} {self.id!r}: {self.outcome or self.state}>"

    def __await__(self) -> Generator[Any, None, str]:
        return self._queue.wait(self).__await__()

    @property
    def row(self) -> JobRow:
        """The job's row, as last read from the store."""
        return self._row

    @property
    def id(self) -> str:
        """The id of the job and its flow."""
        return self._row.id

    @property
    def flow(self) -> str:
        """The name of the flow."""
        return self._row.flow

    @property
    def priority(self) -> Priority:
        """The job's priority."""
        return PRIORITIES[self._row.rank]

    @property
    def state(self) -> JobState:
        """The job's state."""
        return self._machine.state

    @property
    def owner(self) -> str | None:
        """The owner's name, or None if the job is not claimed."""
        return self._row.owner or None

    @property
    def attempts(self) -> int:
        """How many times the job was claimed and failed, or ended its process while it ran alone.

        The current claim is included.
        """
        return self._row.attempts

    @property
    def outcome(self) -> str:
        """The state that the flow ended in, or ``discarded``. Empty until the job is complete."""
        return self._row.outcome

    @property
    def error(self) -> str:
        """The last error, or an empty string if there was none."""
        return self._row.error

    @property
    def store(self) -> dict[str, Any]:
        """The values that the flow is started with."""
        values: dict[str, Any] = self._queue.flows.codec.decode(self._row.store)
        return values

    def see(self, row: JobRow) -> None:
        """Update the job from a stored row. The job's state machine goes through any intermediate states."""
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
    """The state of a `JobQueue`."""

    #: The store that holds the jobs.
    name: str
    #: The number of jobs in each state except COMPLETE. Empty before the first count.
    depths: dict[str, int]
    kind: str = "queue"


class JobQueue:
    """A queue of jobs in the same store as ``flows``. Each job consists of the name of a flow to run and its values.

    A store can hold several queues, each with a name. The limits of a queue apply to all processes together, so pass
    the same limits in each process. They are checked when a job is claimed. A job that is completed or released makes
    room in the same transaction, and so does a claim that ends because its process has exited.

    A claimed job belongs to its owner until it is completed, discarded or released, or until the claim expires. If the
    owner's process exits, other processes on the same machine detect this, and its claims end immediately. Workers then
    run each of these jobs alone, so that only a job that makes its process exit loses attempts. A failed job returns to
    the queue after a delay. Complete jobs stay in the store until you call `purge`.

    Args:
        flows: The `Flows` to use. Enter it before you use the queue.
        max_attempts: The maximum number of attempts before a job is discarded. It applies to jobs added with this
            object. A claim that ends without being released counts only if the one before it ended like that, too.
        backoff: The delays before a failed job runs again.
        name: The name of the queue.
        concurrency: The maximum number of jobs that run at the same time. By default, only the workers limit it.
        key_concurrency: The maximum number of jobs with the same key that run at the same time. See `enqueue`.
        limit: The maximum number of jobs that start in any period of ``per`` seconds.
        per: The period that ``limit`` applies to.
    """

    def __init__(  # the settings of a queue
        self,
        flows: Flows,
        *,
        max_attempts: int = 10,
        backoff: Backoff = _BACKOFF,
        name: str = "",
        concurrency: int | None = None,
        key_concurrency: int | None = None,
        limit: int | None = None,
        per: Duration | None = None,
    ) -> None:
        if max_attempts < 1:
            raise ValueError(f"max_attempts must be 1 or more, got {max_attempts!r}")
        #: The name of the queue.
        self.name: Final = name
        self._limits = _limits(concurrency, key_concurrency, limit, per)
        #: The `Flows` that run claimed jobs.
        self.flows = flows
        self._store = flows.store.jobs(flows.presence)
        self._max_attempts, self._backoff = max_attempts, backoff
        #: The cached job counts, which are updated while a worker runs.
        self.count: Final = CachedCounts(
            lambda: self._store.counts(name), lambda: hooks.component_changed.announce(self, component=self)
        )

    def __repr__(self) -> str:
        named = f" {self.name!r}" if self.name else ""
        return f"<JobQueue{named} in {self.flows.store!r}>"

    @property
    def store(self) -> JobStore:
        """The store that holds the jobs.

        Raises:
            FlowError: if the `Flows` are not open.
        """
        registry_of(self.flows)
        return self._store

    @cached_property
    def now(self) -> Callable[[], float]:
        """Return the time in seconds since the epoch, by the clock shared by all processes using this store."""
        return clock_of(self.flows.store)

    def state(self) -> JobQueueState:
        """Return the current state. While a worker runs, the counts are at most one second old."""
        self.count.renew()
        return JobQueueState(repr(self.flows.store), dict(self.count.figures))

    # -- adding jobs --------------------------------------------------------------------------------------------------

    async def enqueue(
        self,
        flow: str,
        /,
        *,
        priority: str = "normal",
        after: Duration = 0.0,
        id: str | None = None,  # noqa: A002  # the natural name
        key: str = "",
        **store: Any,
    ) -> Job:
        """Add a job that runs ``flow`` with these values.

        Args:
            flow: The name of the flow, as in the mapping passed to `work`.
            priority: ``"very_high"``, ``"high"``, ``"normal"``, ``"low"`` or ``"very_low"``.
            after: Seconds until the job is due.
            id: An id for the job. If a job with this id already exists, that job is returned with its original values.
                By default, a new id is generated.
            key: A key such as the id of a customer. At most ``key_concurrency`` jobs with the same key run at the same
                time.
            store: Values for the flow, by name.

        Raises:
            ValueError: if the priority is unknown, if ``after`` is negative or not finite, or if there is a key, but
                the queue has no ``key_concurrency``.
            FlowError: if a value cannot be stored, or if the id belongs to a job for a different flow or in a different
                queue.
        """
        if not isinstance(flow, str):
            raise TypeError(f"flow must be the name of a flow, as in the mapping passed to `work`, got {flow!r}")
        if key and self._limits.key_concurrency is None:
            raise ValueError(f"the key {key!r} needs a queue with a limit; pass JobQueue(…, key_concurrency=1)")
        wait = in_seconds("after", after, least=0, finite=True)
        now = self.now()
        row = JobRow(
            id_for(id),
            check_key("the name of a flow", flow),
            _rank_of(priority),
            self.flows.codec.encode(store),
            now,
            self._max_attempts,
            due=now + wait if wait else 0.0,
            queue=check_key("the name of a queue", self.name),
            key=check_key("a key", key),
        )
        kept = await self.store.add(row)
        if kept.flow != flow:
            raise FlowError(f"the id {id!r} belongs to a job for flow {kept.flow!r}, not {flow!r}; use a different id")
        if kept.queue != self.name:
            raise FlowError(
                f"the id {id!r} belongs to a job in queue {kept.queue!r}, not {self.name!r}; use a different id"
            )
        self.flows.presence.notify(jobs_of(flow))
        return Job(self, kept)

    async def get(self, id: str) -> Job:  # noqa: A002  # the natural name
        """Return the job with this id.

        Raises:
            FlowError: if no such job exists.
        """
        return Job(self, await self._row(id))

    async def jobs(self, *states: str, limit: int | None = None, after: Job | None = None) -> list[Job]:
        """Return the jobs in this queue, in the order in which they are claimed.

        Args:
            states: The states to include: ``UNCLAIMED``, ``CLAIMED`` or ``COMPLETE``. By default, jobs that are not
                complete.
            limit: The maximum number of jobs to return. By default, there is no limit.
            after: The last job of the previous page.

        Raises:
            ValueError: if the limit is below 1 or a state is unknown.
        """
        if limit is not None and limit < 1:
            raise ValueError(f"limit must be 1 or more, or None, got {limit!r}")
        wanted = [JobState(state) for state in states] or [JobState.UNCLAIMED, JobState.CLAIMED]
        place = None if after is None else (after.row.rank, after.row.number)
        rows = await self.store.rows(*wanted, now=self.now(), queue=self.name, after=place, limit=limit)
        jobs: list[Job] = []
        for row in rows:
            jobs.append(Job(self, row))
            if not len(jobs) % _PAGE:
                # Converting a hundred thousand jobs without yielding would block the loop.
                await asyncio.sleep(0)
        return jobs

    async def wait(self, job: Job) -> str:
        """Wait until some process has completed ``job``, and return the job's outcome."""
        news = asyncio.Event()
        silence = self.flows.presence.listen(end_of_job(job.id), news.set)
        try:
            while True:
                news.clear()
                job.see(await self._row(job.id))
                if job.state is JobState.COMPLETE:
                    return job.outcome
                await wait_within(_LOOK, news)
        finally:
            silence()

    async def purge(self, older_than: Duration) -> int:
        """Delete this queue's complete jobs and their flows, and return the number of deleted jobs.

        Args:
            older_than: Only delete jobs that were completed at least this many seconds ago.
        """
        before = self.now() - in_seconds("older_than", older_than, least=0)
        try:
            return await self.store.purge(before=before, queue=self.name)
        finally:
            registry_of(self.flows).forget_ended()

    # -- claiming jobs ------------------------------------------------------------------------------------------------

    @overload
    async def claim(self, job: Job, who: str | None = None, *, lease: Duration = 30.0) -> Job: ...
    @overload
    async def claim(
        self, job: None = None, who: str | None = None, *, flows: Collection[str] | None = None, lease: Duration = 30.0
    ) -> Job | None: ...

    async def claim(
        self,
        job: Job | None = None,
        who: str | None = None,
        *,
        flows: Collection[str] | None = None,
        lease: Duration = 30.0,
    ) -> Job | None:
        """Claim a job and return it, or return None if no job is due.

        The claim ends after ``lease`` seconds, or earlier if this process exits. Call `extend` to keep it longer.

        Args:
            job: A job returned by `enqueue` or `jobs`, which you can claim even before it is due and regardless of
                the limits. By default, the first job that is due and that the limits allow.
            who: The owner's name. By default, the name of this process.
            flows: The names of the flows to consider. By default, all flows.
            lease: Seconds until the claim expires.

        Raises:
            InvalidState: if the job is already claimed or complete.
            FlowError: if the job no longer exists.
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

    async def begin(self, flows: Collection[str], lease: Duration, limit: int) -> list[tuple[Job, Snapshot | None]]:
        """Claim up to ``limit`` due jobs for these flows, and take the jobs' flows. Workers call this."""
        begun = await self.store.begin(flows, self._claim(None, lease), limit)
        return [(Job.claimed(self, row), snapshot) for row, snapshot in begun]

    async def extend(self, job: Job, lease: Duration) -> None:
        """Extend the claim on ``job`` to ``lease`` seconds from now.

        Raises:
            ClaimLost: if the claim has ended.
        """
        claim = self._claim(job.owner, lease)
        if await self.store.renew([job.row], now=claim.now, until=claim.until):
            raise lost_job(job.row)

    async def complete(self, job: Job, who: str | None = None, *, outcome: str = "SUCCESS", error: str = "") -> None:
        """Complete a claimed job.

        Args:
            job: The job returned by `claim`.
            who: The owner's name, as passed to `claim`.
            outcome: The outcome to store.
            error: The error to store.

        Raises:
            InvalidState: if the job is not claimed.
            ClaimLost: if another owner has claimed the job.
        """
        await self._end(job, who, lambda row: completed(row, outcome, error, now=self.now()))

    async def discard(self, job: Job, who: str | None = None, *, error: str = "") -> None:
        """Complete a claimed job that cannot run. It becomes a dead letter with the outcome ``discarded``.

        Raises:
            InvalidState: if the job is not claimed.
            ClaimLost: if another owner has claimed the job.
        """
        await self._end(job, who, lambda row: completed(row, DISCARDED, error or row.error, now=self.now()))

    async def release(
        self, job: Job, who: str | None = None, *, error: str = "", after: Duration | None = None
    ) -> None:
        """Release the claim on a job.

        If you pass neither ``error`` nor ``after``, the job is due immediately, and the claim is not recorded as an
        attempt. Otherwise, the claim is recorded, and the job becomes due after a delay. If the job has no attempts
        left, it is discarded instead.

        Args:
            job: The job returned by `claim`.
            who: The owner's name, as passed to `claim`.
            error: The reason for the release.
            after: Seconds until the job is due. By default, the queue's backoff determines the delay.

        Raises:
            InvalidState: if the job is not claimed.
            ClaimLost: if another owner has claimed the job.
        """
        delay = in_seconds_or_none("after", after, least=0, finite=True)

        def change(row: JobRow) -> JobRow:
            if not error and delay is None:
                return released(row, row.error)._replace(attempts=row.attempts - 1)
            if row.attempts >= row.max_attempts:
                return completed(row, DISCARDED, error, now=self.now())
            wait = self._backoff.delay(row.attempts - 1) if delay is None else delay
            return released(row, error)._replace(due=self.now() + wait if wait else 0.0)

        await self._end(job, who, change)

    async def park(self, job: Job) -> None:
        """Return a claimed job whose workflow waits to the queue. This does not count as an attempt.

        Raises:
            ClaimLost: if the claim has ended.
        """
        if not await self.store.park(job.row, now=self.now()):
            raise lost_job(job.row)
        job.see(await self._row(job.id))
        self._announce(job)

    async def give_back(self, job: Job, seconds: float) -> None:
        """Return a claimed job that this process's code cannot continue to the queue. This is not an attempt.

        The job is due again after ``seconds``.

        Raises:
            ClaimLost: if the claim has ended.
        """

        def change(row: JobRow) -> JobRow:
            return released(row, row.error)._replace(attempts=row.attempts - 1, due=self.now() + seconds)

        await self._end(job, None, change)

    async def acquit(self, job: Job, until: float) -> None:
        """Stop suspecting a claimed job, whose claim ends at ``until``. Workers call this."""
        row = job.row._replace(error="", until=until)
        if await self.store.compare_and_set(job.row, row, now=self.now()):
            job.see(row)

    async def work(self, flows: Mapping[str, Item], *, concurrency: int = 8, lease: Duration = 30.0) -> None:
        """Claim and run jobs until cancelled.

        Args:
            flows: The flows to run, by name. Jobs for other flows stay in the queue. If no worker claims one of them,
                a warning is logged once per name.
            concurrency: The maximum number of jobs that run at the same time.
            lease: How many seconds each claim lasts. Claims are extended while their jobs run.
        """
        from lifecycle.flows.worker import Worker

        await Worker(self, flows, concurrency=concurrency, lease=in_seconds("lease", lease, finite=True)).run()

    def _claim(self, who: str | None, lease: Duration) -> Claim:
        owner = self.flows.presence.name if who is None else who
        if not owner:
            raise ValueError(f"an owner's name must not be empty, got {who!r}")
        now = self.now()
        until = now + in_seconds("lease", lease, finite=True)
        return Claim(owner, self.flows.presence.token, now, until, self.name, self._limits)

    async def next(self, now: float) -> float | None:
        """Return when a job may be claimed next, as far as that is known. Workers call this."""
        return await self.store.next(now=now, queue=self.name, limits=self._limits)

    async def _end(self, job: Job, who: str | None, change: Callable[[JobRow], JobRow]) -> None:
        """End a claim by writing the row returned by ``change``."""
        owner = self.flows.presence.name if who is None else who
        while not await self._write(job, owner, change(job.row)):
            # Use the stored row, because another process may have claimed the job under the same owner name.
            found = await self._row(job.id)
            _check(found, JobState(change(found).state))
            if found.owner != owner:
                raise ClaimLost(f"job {found.id!r} is claimed by {found.owner}, not by {owner}; pass that owner's name")
            job.see(found)
        if job.outcome == DISCARDED:
            _log_discarded(job.row)
        self._announce(job)

    def _announce(self, job: Job) -> None:
        """Notify the workers of all processes that a claim has ended."""
        self.flows.presence.notify(end_of_job(job.id) if job.state is JobState.COMPLETE else jobs_of(job.flow))
        if self._limits != UNLIMITED:
            # Workers that wait for room may run other flows.
            self.flows.presence.notify(JOBS_TO_CLAIM)

    async def _write(self, job: Job, owner: str, row: JobRow) -> bool:
        """Write ``row``. Return False if the claim did not belong to ``owner`` when the row was last read."""
        old = job.row
        if (old.state, old.owner) != (JobState.CLAIMED, owner):
            return False
        if not await self.store.compare_and_set(old, row, now=self.now()):
            raise lost_job(old)
        job.see(row)
        return True

    async def _row(self, id: str) -> JobRow:  # noqa: A002  # the natural name
        row = await self.store.get(id, now=self.now())
        if row is None:
            raise FlowError(f"no job {id!r} exists in this store; pass the id that it was enqueued with")
        return row


def _limits(concurrency: int | None, key_concurrency: int | None, limit: int | None, per: Duration | None) -> Limits:
    """Return the limits of a queue.

    Raises:
        ValueError: if a limit is below 1, or if only one of ``limit`` and ``per`` is given.
    """
    limits = {"concurrency": concurrency, "key_concurrency": key_concurrency, "limit": limit}
    for name, most in limits.items():
        if most is not None and most < 1:
            raise ValueError(f"{name} must be 1 or more, or None, got {most!r}")
    if (limit is None) != (per is None):
        raise ValueError(f"limit and per belong together, as in limit=10, per=60; got limit={limit!r}, per={per!r}")
    return Limits(concurrency, key_concurrency, limit, 0.0 if per is None else in_seconds("per", per, finite=True))


def _log_discarded(row: JobRow) -> None:
    from lifecycle._masking import masked  # rarely needed, since few jobs are discarded

    tries = f"{row.attempts} attempt{'s'[: row.attempts != 1]}"
    _log.warning(
        "discarded job %r of flow %r after %s: %s", row.id, row.flow, tries, masked(row.error) or "no error given"
    )


def _rank_of(priority: str) -> int:
    """Return the rank of a priority; the highest priority has rank 0.

    Raises:
        ValueError: if the priority is unknown.
    """
    try:
        return PRIORITIES.index(Priority(priority))
    except ValueError:
        raise ValueError(f"priority must be one of {', '.join(PRIORITIES)}, got {priority!r}") from None


def _check(row: JobRow, state: JobState) -> None:
    """Raise an error if the job cannot change to ``state``, or is already in that state."""
    if not JOBS.check(row.id, JobState(row.state), state):
        whose = f" by {row.owner}" if row.owner else ""
        raise InvalidState(f"job {row.id!r} is already {row.state}{whose}")

"""`JobQueue`: where jobs are posted, claimed and finished, by this process or by others that have the same store."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, overload

from lifecycle import hooks
from lifecycle._async import wait_within
from lifecycle.backoff import Backoff
from lifecycle.errors import FlowError
from lifecycle.flows.jobs.claims import Claims, end_of, jobs_of
from lifecycle.flows.jobs.jobs import Job
from lifecycle.flows.jobs.rows import DISCARDED, JobRow, ended, freed, rank_of
from lifecycle.flows.states import JobState
from lifecycle.flows.stores import clock_of, id_for
from lifecycle.journal.queues import CachedCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from lifecycle.flows.client import Flows
    from lifecycle.flows.definition import Item
    from lifecycle.flows.jobs.stores import JobStore

__all__ = ["JobQueue", "JobQueueState"]

#: Seconds after which who waits for the end of a job looks even if nobody rang.
_LOOK = 5.0

#: Jobs that are made of their rows in one turn of the loop.
_PAGE = 1000

_BACKOFF = Backoff(initial=1.0, maximum=300.0)


@dataclass(frozen=True, slots=True)
class JobQueueState:
    """What can be seen of a `JobQueue`."""

    #: Where its jobs are kept.
    name: str
    #: How many jobs are in each state, but for those that are complete; empty before the first count.
    depths: dict[str, int]
    kind: str = "queue"


class JobQueue:
    """Jobs in the store of ``flows``, each done by a flow whose name it was posted with.

    A job belongs to who claims it until it is completed, discarded or released, the claim runs out, or, on one machine,
    the process dies. One that failed comes back after a while, and one that was claimed ``max_attempts`` times
    in vain is discarded; a job that is complete stays, with its outcome, until `purge`.

    Args:
        flows: To be entered before anything is asked.
        max_attempts: Of the jobs that are posted here.
        backoff: How long a job that failed has to wait.
    """

    def __init__(self, flows: Flows, *, max_attempts: int = 10, backoff: Backoff = _BACKOFF) -> None:
        if max_attempts < 1:
            raise ValueError(f"JobQueue(max_attempts={max_attempts!r}) could do nothing; give 1 or more")
        #: Who carries out what is claimed.
        self.flows = flows
        self._store = flows.store.jobs(flows.owners)
        self._claims = Claims(self)
        self._max_attempts, self._backoff = max_attempts, backoff
        #: How many jobs there are, as long as this works.
        self.tally: Final = CachedCounts(
            self._store.counts, lambda: hooks.component_changed.announce(self, component=self)
        )

    def __repr__(self) -> str:
        return f"<JobQueue in {self.flows.store!r}>"

    @property
    def store(self) -> JobStore:
        """What keeps the jobs.

        Raises:
            FlowError: unless the flows are entered.
        """
        self.flows.check_open()
        return self._store

    @cached_property
    def now(self) -> Callable[[], float]:
        """What tells the time that all go by who have the store open, in seconds since the epoch."""
        return clock_of(self.flows.store)

    def state(self) -> JobQueueState:
        """What can be seen of it now; how many jobs there are was counted a second ago or less, while this works."""
        self.tally.renew()
        return JobQueueState(repr(self.flows.store), dict(self.tally.figures))

    # -- for who has work -------------------------------------------------------------------------------------------

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
        """Have somebody carry out the flow of that name with those values, not before ``after`` seconds.

        The same id again is the same job; then what it was posted with first counts.

        Raises:
            ValueError: for a priority that is none, or a delay that is no number of seconds.
            FlowError: for a value that cannot be kept, or an id that is that of a job of another flow.
        """
        if not isinstance(flow, str):
            raise TypeError(f"enqueue({flow!r}) is not the name of a flow; give the name that `work` knows it by")
        if not 0 <= after < math.inf:
            raise ValueError(f"enqueue(after={after!r}) is no time to wait; give 0 or more seconds")
        now = self.now()
        row = JobRow(
            id_for(id),
            flow,
            rank_of(priority),
            self.flows.codec.encode(store),
            now,
            self._max_attempts,
            due=now + after if after else 0.0,
        )
        kept = await self.store.add(row)
        if kept.flow != flow:
            raise FlowError(f"the id {id!r} is that of a job of flow {kept.flow!r}, not {flow!r}; give another id")
        self.flows.owners.ring(jobs_of(flow))
        return Job(self, kept)

    async def get(self, id: str) -> Job:  # noqa: A002  # what it is
        """The job that was posted with that id.

        Raises:
            FlowError: where there is none.
        """
        return Job(self, await self._claims.row(id))

    async def jobs(self, *states: str, limit: int | None = None, after: Job | None = None) -> list[Job]:
        """The jobs in those states, those to be done first first; without any, all that are not complete.

        Args:
            states: ``UNCLAIMED``, ``CLAIMED``, ``COMPLETE``.
            limit: How many at most; None: all.
            after: The last job of the page before.

        Raises:
            ValueError: for a limit below 1, and for what is no state.
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
        """Wait until ``job`` is complete, whoever completes it, and give its outcome; the same as awaiting it."""
        news = asyncio.Event()
        silence = self.flows.owners.listen(end_of(job.id), news.set)
        try:
            while True:
                news.clear()
                job.see(await self._claims.row(job.id))
                if job.state is JobState.COMPLETE:
                    return job.outcome
                await wait_within(_LOOK, news)
        finally:
            silence()

    async def purge(self, older_than: float) -> int:
        """Forget the jobs that were completed more than that many seconds ago, with their flows; how many they were."""
        return await self.store.purge(before=self.now() - older_than)

    # -- for who does it ----------------------------------------------------------------------------------------------

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
        """Take ``job``, even before it is due, or else the first that is due; None where there is none.

        It is ours for ``lease`` seconds, or until this process ends; see `extend`.

        Args:
            job: As `enqueue` or `jobs` gave it.
            who: In whose name; the default is this process.
            flows: The names of those that are of interest; None: all.
            lease: Seconds.

        Raises:
            InvalidState: where it is claimed or complete.
            FlowError: where it is not there any more.
        """
        if job is None:
            return await self._claims.next(who, flows, lease)
        return await self._claims.take(job, who, lease)

    async def extend(self, job: Job, lease: float) -> None:
        """Keep a job that was claimed for ``lease`` seconds from now.

        Raises:
            ClaimLost: where the claim is over.
        """
        await self._claims.extend(job, lease)

    async def complete(self, job: Job, who: str | None = None, *, outcome: str = "SUCCESS", error: str = "") -> None:
        """Complete a job that was claimed: it is done, and this has become of it.

        Raises:
            InvalidState: where it is not claimed.
            ClaimLost: where somebody else has claimed it.
        """
        await self._claims.let_go(job, who, lambda row: ended(row, outcome, error, now=self.now()))

    async def discard(self, job: Job, who: str | None = None, *, error: str = "") -> None:
        """Complete a job that was claimed: it cannot be done; it is kept, and its outcome is ``discarded``.

        Raises:
            InvalidState: where it is not claimed.
            ClaimLost: where somebody else has claimed it.
        """
        await self._claims.let_go(job, who, lambda row: ended(row, DISCARDED, error or row.error, now=self.now()))

    async def release(self, job: Job, who: str | None = None, *, error: str = "", after: float | None = None) -> None:
        """Give up a job that was claimed.

        Without ``error`` and ``after``, it is as if it had not been claimed: it is due at once, and the attempt does
        not count. With one of them the attempt counts: the job is due after a while, and one that was claimed too often
        is discarded.

        Args:
            job: As `claim` gave it.
            who: In whose name it was claimed.
            error: Why.
            after: Seconds; None with an error: by the queue's backoff and how often it was claimed.

        Raises:
            InvalidState: where it is not claimed.
            ClaimLost: where another process has claimed it.
        """

        def change(row: JobRow) -> JobRow:
            if not error and after is None:
                return freed(row, row.error)._replace(attempts=row.attempts - 1)
            if row.attempts >= row.max_attempts:
                return ended(row, DISCARDED, error, now=self.now())
            wait = self._backoff.delay(row.attempts - 1) if after is None else after
            return freed(row, error)._replace(due=self.now() + wait if wait else 0.0)

        await self._claims.let_go(job, who, change)

    async def work(self, flows: Mapping[str, Item], *, concurrency: int = 8, lease: float = 30.0) -> None:
        """Claim jobs of those flows and carry them out, ``concurrency`` at a time, until cancelled."""
        from lifecycle.flows.jobs.workers import Worker

        await Worker(self, flows, concurrency=concurrency, lease=lease).run()

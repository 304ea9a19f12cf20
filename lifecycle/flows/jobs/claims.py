"""`Claims`: how the jobs of a queue get an owner, and how it lets go of them; whoever has lost one hears so."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lifecycle.errors import ClaimLost, FlowError, InvalidState
from lifecycle.flows.jobs.jobs import Job
from lifecycle.flows.jobs.rows import Claim, taken
from lifecycle.flows.jobs.stores import lost_job
from lifecycle.flows.states import JOBS, JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from lifecycle.flows.jobs.queues import JobQueue
    from lifecycle.flows.jobs.rows import JobRow
    from lifecycle.flows.records import Snapshot

__all__ = ["JOBS_TO_CLAIM", "Claims", "end_of", "jobs_of"]

#: What is rung when there may be something to claim, of whichever flow.
JOBS_TO_CLAIM = "jobs"
#: Characters of a name that is rung.
_LONGEST = 100


def jobs_of(flow: str) -> str:
    """What is rung when there may be something to claim of ``flow``."""
    return f"{JOBS_TO_CLAIM} {flow}" if len(flow) <= _LONGEST else JOBS_TO_CLAIM


def end_of(id: str) -> str:  # noqa: A002  # what it is
    """What is rung when a job is complete."""
    return f"end of {id}"


class Claims:
    """The claims that are made on ``queue``."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue

    async def next(self, who: str | None, flows: Collection[str] | None, lease: float) -> Job | None:
        """Claim the first job that is due, of those flows if there are any to choose from."""
        row = await self._queue.store.take(flows, self._claim(who, lease))
        return None if row is None else Job.claimed(self._queue, row)

    async def some(self, flows: Collection[str], lease: float, limit: int) -> list[tuple[Job, Snapshot | None]]:
        """Claim as many jobs of those flows as are due, at most ``limit``, and take their flows."""
        begun = await self._queue.store.begin_many(flows, self._claim(None, lease), limit)
        return [(Job.claimed(self._queue, row), snapshot) for row, snapshot in begun]

    async def take(self, job: Job, who: str | None, lease: float) -> Job:
        """Claim that one, due or not."""
        claim = self._claim(who, lease)
        while True:
            row = await self.row(job.id)
            job.see(row)
            _check(row, JobState.CLAIMED)
            claimed = taken(row, claim)
            if await self._queue.store.swap(row, claimed, now=claim.now):
                job.see(claimed)
                return job

    async def extend(self, job: Job, lease: float) -> None:
        """Keep a claim for longer."""
        claim = self._claim(job.owner, lease)
        if await self._queue.store.renew([job.row], now=claim.now, until=claim.until):
            raise lost_job(job.row)

    def _claim(self, who: str | None, lease: float) -> Claim:
        owner = self._queue.flows.owners.name if who is None else who
        if not owner:
            raise ValueError(f"claim(who={who!r}) names nobody; say who claims")
        if not 0 < lease < math.inf:
            raise ValueError(f"claim(lease={lease!r}) is no time to work; give more than 0 seconds")
        now = self._queue.now()
        return Claim(owner, self._queue.flows.owners.token, now, now + lease)

    async def let_go(self, job: Job, who: str | None, change: Callable[[JobRow], JobRow]) -> None:
        """End a claim; ``change`` makes of the row what it is to be then."""
        owner = self._queue.flows.owners.name if who is None else who
        while not await self._change(job, owner, change(job.row)):
            # Perhaps it was claimed in the same name elsewhere; what is found is gone on with.
            found = await self.row(job.id)
            _check(found, JobState(change(found).state))
            if found.owner != owner:
                raise ClaimLost(f"job {found.id!r} is claimed by {found.owner}, not by {owner}; leave it to them")
            job.see(found)
        self._queue.flows.owners.ring(end_of(job.id) if job.state is JobState.COMPLETE else jobs_of(job.flow))

    async def _change(self, job: Job, owner: str, row: JobRow) -> bool:
        """Write ``row``; False where the job is not known as claimed by ``owner``."""
        old = job.row
        if (old.state, old.owner) != (JobState.CLAIMED, owner):
            return False
        if not await self._queue.store.swap(old, row, now=self._queue.now()):
            raise lost_job(old)
        job.see(row)
        return True

    async def row(self, id: str) -> JobRow:  # noqa: A002  # what it is
        """What is kept of a job."""
        row = await self._queue.store.get(id, now=self._queue.now())
        if row is None:
            raise FlowError(f"there is no job {id!r} here; give the id that it was posted with")
        return row


def _check(row: JobRow, state: JobState) -> None:
    """Refuse what the table of jobs does not know, and what would change nothing."""
    if not JOBS.check(row.id, JobState(row.state), state):
        whose = f" by {row.owner}" if row.owner else ""
        raise InvalidState(f"job {row.id!r} is {row.state}{whose} already")

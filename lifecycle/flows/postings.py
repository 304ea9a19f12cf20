"""`JobStore`: what keeps jobs, beside the flows that do them. Every method is one transaction.

A claim is a lease: who made it is in the row until the lease ends or, told by `Owners`, the process has. Each method
first ends the claims that are over, so that nobody sees one. A claim raises the epoch of the job and of its flow in
one step: from then on what the owner before wants to write to either is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from lifecycle.errors import ClaimLost
from lifecycle.flows.tables import JobState

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lifecycle.flows.jobs import JobRow
    from lifecycle.flows.records import FlowRow, Snapshot

__all__ = ["Claim", "JobStore", "ended", "freed", "lapsed", "lost_job", "taken"]


class Claim(NamedTuple):
    """Who claims, and until when."""

    owner: str
    token: str
    now: float
    until: float


class JobStore(Protocol):
    """Jobs in order: the highest priority first, then the oldest."""

    async def add(self, row: JobRow) -> JobRow:
        """Keep a job that is new; what is kept under its id, which may be another."""
        ...

    async def get(self, id: str, *, now: float) -> JobRow | None:  # noqa: A002  # what it is
        """One job."""
        ...

    async def rows(self, *states: str, now: float) -> list[JobRow]:
        """The jobs in those states, in order."""
        ...

    async def take(self, flows: Collection[str] | None, claim: Claim) -> JobRow | None:
        """Claim the first job that is due and that one of ``flows`` does, or any; None where there is none."""
        ...

    async def swap(self, old: JobRow, new: JobRow, *, now: float) -> bool:
        """Write ``new`` where the job has the state and the epoch of ``old``; False where it has not."""
        ...

    async def renew(self, rows: Sequence[JobRow], *, now: float, until: float) -> list[JobRow]:
        """Have those claims end later; gives those that are lost."""
        ...

    async def adopt(self, row: JobRow, flow: FlowRow, *, now: float) -> Snapshot:
        """Take the flow of a job that was claimed, or begin it.

        Raises:
            ClaimLost: where the claim is lost.
        """
        ...

    async def next(self, *, now: float) -> float | None:
        """When a job will be due, or a claim may end, without anybody doing something."""
        ...

    async def unfinished(self, ids: Collection[str]) -> set[str]:
        """Which of those are ids of jobs that are not complete."""
        ...

    async def purge(self, *, before: float) -> int:
        """Forget the jobs that were completed before then, with their flows; how many that were."""
        ...

    async def counts(self) -> dict[str, int]:
        """How many jobs are in each state, but for those that are complete."""
        ...

    def doubt(self) -> None:
        """Ask of all owners whether they live, before anything else is done."""
        ...


def taken(row: JobRow, claim: Claim) -> JobRow:
    """The row once it is claimed."""
    return row._replace(
        state=JobState.CLAIMED,
        owner=claim.owner,
        token=claim.token,
        until=claim.until,
        epoch=row.epoch + 1,
        attempts=row.attempts + 1,
        due=0.0,
    )


def ended(row: JobRow, outcome: str, error: str, *, now: float) -> JobRow:
    """The row once it is complete."""
    return row._replace(state=JobState.COMPLETE, owner="", token="", until=0.0, outcome=outcome, error=error, ended=now)


def lapsed(row: JobRow, *, now: float) -> JobRow:
    """The row once its claim is over without anybody having said what became of it."""
    error = f"{row.owner} claimed it and was gone before it was done"
    if row.attempts >= row.max_attempts:
        return ended(row, "trashed", error, now=now)
    return freed(row, error)


def freed(row: JobRow, error: str) -> JobRow:
    """The row once nobody has it any more, and it is not complete."""
    return row._replace(state=JobState.UNCLAIMED, owner="", token="", until=0.0, error=error)


def lost_job(row: JobRow) -> ClaimLost:
    """The error for who no longer has the job."""
    return ClaimLost(
        f"{row.owner} has lost job {row.id!r}: its claim ended, or another was made since (epoch {row.epoch}); what it "
        "still wanted to write is refused"
    )

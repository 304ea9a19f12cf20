"""`JobStore`: what keeps jobs, beside the flows that do them. Every method is one transaction.

A claim is a lease: who made it is in the row until the lease ends or, told by `Owners`, the process has. Each method
first ends the claims that are over, so that no caller sees one.

The flow of a job is the flow with the job's id and the name that the job was posted for. The end of a claim without a
word from its owner raises the epoch of that flow in the same transaction, so that a late write of the owner is refused.
A job that is discarded ends its flow as FAILURE in the same transaction, unless the flow is at its end. A flow that has
not begun stays PENDING, with an error, and is not recovered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lifecycle.errors import ClaimLost, FlowError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lifecycle.flows.jobs.rows import Claim, JobRow
    from lifecycle.flows.records import FlowRow, Snapshot

__all__ = ["JobStore", "lost_job", "other_flow"]


class JobStore(Protocol):
    """Jobs in order: the highest priority first, then the oldest."""

    async def add(self, row: JobRow) -> JobRow:
        """Keep a job that is new; what is kept under its id, which may be another."""
        ...

    async def get(self, id: str, *, now: float) -> JobRow | None:  # noqa: A002  # what it is
        """One job."""
        ...

    async def rows(
        self, *states: str, now: float, after: tuple[int, int] | None = None, limit: int | None = None
    ) -> list[JobRow]:
        """The jobs in those states, in order: at most ``limit``, and those ``after`` a rank and a number."""
        ...

    async def take(self, flows: Collection[str] | None, claim: Claim) -> JobRow | None:
        """Claim the first job that is due and that one of ``flows`` does, or any; None where there is none."""
        ...

    async def take_many(self, flows: Collection[str] | None, claim: Claim, limit: int) -> list[JobRow]:
        """Claim the first ``limit`` jobs that are due and that one of ``flows`` does, or any; fewer if there are."""
        ...

    async def begin_many(
        self, flows: Collection[str], claim: Claim, limit: int
    ) -> list[tuple[JobRow, Snapshot | None]]:
        """As `take_many` and `adopt` in one transaction; None for a flow that `adopt` has to be asked for."""
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
            ClaimLost: if the claim is lost.
            FlowError: if the id is that of a flow with another name, which is left alone.
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


def lost_job(row: JobRow) -> ClaimLost:
    """The error for who no longer has the job."""
    return ClaimLost(
        f"{row.owner} has lost job {row.id!r}: its claim ended, or another was made since (epoch {row.epoch}); what it "
        "still wanted to write is refused"
    )


def other_flow(row: JobRow, name: str) -> FlowError:
    """The error for a job whose id is that of a flow called ``name``."""
    return FlowError(
        f"job {row.id!r} is for flow {row.flow!r}, and its id is that of a flow {name!r}; post it with another id"
    )

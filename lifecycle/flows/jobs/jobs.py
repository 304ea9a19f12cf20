"""`Job`: work that was posted and that somebody shall do, as it was seen last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lifecycle.flows.jobs.rows import PRIORITIES
from lifecycle.flows.states import JOBS, JobState

if TYPE_CHECKING:
    from collections.abc import Generator

    from lifecycle.flows.jobs.queues import JobQueue
    from lifecycle.flows.jobs.rows import JobRow, Priority

__all__ = ["Job"]


class Job:
    """A job on a `JobQueue`, which makes them. What it says of itself is what was seen last.

    Awaited, it waits until the job is complete, whoever completes it, and gives the outcome.
    """

    __slots__ = ("_machine", "_queue", "_row")

    def __init__(self, queue: JobQueue, row: JobRow) -> None:
        self._queue, self._row = queue, row
        self._machine = JOBS.machine(row.id, JobState(row.state))

    @classmethod
    def claimed(cls, queue: JobQueue, row: JobRow) -> Job:
        """One that was claimed a moment ago, which is announced."""
        job = cls(queue, row._replace(state=JobState.UNCLAIMED))
        job.see(row)
        return job

    def __repr__(self) -> str:
        return f"<Job {self.flow!r} {self.id!r}: {self.outcome or self.state}>"

    def __await__(self) -> Generator[Any, None, str]:
        return self._queue.wait(self).__await__()

    @property
    def row(self) -> JobRow:
        """What was seen of it last, as it is stored."""
        return self._row

    @property
    def id(self) -> str:
        """What it was posted with; its flow has the same."""
        return self._row.id

    @property
    def flow(self) -> str:
        """The name of the flow that does it."""
        return self._row.flow

    @property
    def priority(self) -> Priority:
        """Who is first."""
        return PRIORITIES[self._row.rank]

    @property
    def state(self) -> JobState:
        """Whether somebody works on it."""
        return self._machine.state

    @property
    def owner(self) -> str | None:
        """Who has claimed it, if somebody has."""
        return self._row.owner or None

    @property
    def attempts(self) -> int:
        """How often it was claimed and not given back."""
        return self._row.attempts

    @property
    def outcome(self) -> str:
        """What became of it: the state in which its flow ended, or ``discarded``; empty while it is not complete."""
        return self._row.outcome

    @property
    def error(self) -> str:
        """What it failed with last, if it failed."""
        return self._row.error

    @property
    def store(self) -> dict[str, Any]:
        """What its flow is given."""
        values: dict[str, Any] = self._queue.flows.codec.decode(self._row.store)
        return values

    def see(self, row: JobRow) -> None:
        """Learn what is stored; what happened between is gone through."""
        old, self._row = self._row, row
        if self._machine.is_final:
            return
        if old.epoch != row.epoch:
            self._machine.to(JobState.UNCLAIMED)
        if row.state != JobState.UNCLAIMED:
            self._machine.to(JobState.CLAIMED)
        self._machine.to(JobState(row.state))

"""`Job`: work that was posted and that somebody shall do; what is stored of it, and the states that it goes through."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from lifecycle.flows.tables import JOBS, JobState

if TYPE_CHECKING:
    from collections.abc import Generator

    from lifecycle.flows.boards import Board

__all__ = ["Job", "JobRow", "Priority", "rank_of"]


class Priority(StrEnum):
    """Who is first; among equals it is the oldest."""

    VERY_HIGH = "very_high"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"
    VERY_LOW = "very_low"


_ORDER = list(Priority)


def rank_of(priority: str) -> int:
    """The place of a priority, the highest first.

    Raises:
        ValueError: for what is none.
    """
    try:
        return _ORDER.index(Priority(priority))
    except ValueError:
        raise ValueError(f"priority={priority!r} is not known; give one of {', '.join(_ORDER)}") from None


class JobRow(NamedTuple):
    """A job, as it is stored; times are in seconds since the epoch."""

    id: str
    #: The name of the flow that does it; the flow has the id of the job.
    flow: str
    #: The place of its priority.
    rank: int
    #: What the flow is given, encoded.
    store: str
    #: When it was posted.
    posted: float
    #: How often it may be claimed before it is given up.
    max_attempts: int
    #: Its place among equals; given by the store.
    number: int = 0
    state: str = "UNCLAIMED"
    #: Who has claimed it, and the process that did, as `Owners` knows it.
    owner: str = ""
    token: str = ""
    #: Raised by each claim: who comes with an older one has lost it.
    epoch: int = 0
    #: The end of the claim.
    until: float = 0.0
    #: How often it was claimed.
    attempts: int = 0
    #: Not to be claimed before, unless by its id.
    due: float = 0.0
    #: What became of it: the state of its flow, or ``trashed``.
    outcome: str = ""
    #: What it failed with last.
    error: str = ""
    #: When it was completed.
    ended: float = 0.0


class Job:
    """A job on a `Board`, which makes them. What it says of itself is what was seen last.

    Awaited, it waits until the job is complete, whoever completes it, and gives the outcome.
    """

    __slots__ = ("_board", "_machine", "_row")

    def __init__(self, board: Board, row: JobRow) -> None:
        self._board, self._row = board, row
        self._machine = JOBS.machine(row.id, JobState(row.state))

    @classmethod
    def claimed(cls, board: Board, row: JobRow) -> Job:
        """One that was claimed a moment ago, which is announced."""
        job = cls(board, row._replace(state=JobState.UNCLAIMED))
        job.see(row)
        return job

    def __repr__(self) -> str:
        return f"<Job {self.flow!r} {self.id!r}: {self.outcome or self.state}>"

    def __await__(self) -> Generator[Any, None, str]:
        return self._board.wait(self).__await__()

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
        return _ORDER[self._row.rank]

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
        """What became of it: the state in which its flow ended, or ``trashed``; empty while it is not complete."""
        return self._row.outcome

    @property
    def error(self) -> str:
        """What it failed with last, if it failed."""
        return self._row.error

    @property
    def store(self) -> dict[str, Any]:
        """What its flow is given."""
        values: dict[str, Any] = self._board.flows.codec.decode(self._row.store)
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

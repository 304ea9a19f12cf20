"""What is stored of a job, in plain rows, and what becomes of a row when it is claimed, freed or ended.

Nothing here asks a store or a clock: what writes a row compares it with the one that it was made of.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from lifecycle.flows.records import FlowRow
from lifecycle.flows.states import FlowState, JobState
from lifecycle.flows.stores import storable

__all__ = [
    "DISCARDED",
    "PRIORITIES",
    "Claim",
    "JobRow",
    "Priority",
    "discarded",
    "ended",
    "flow_of",
    "freed",
    "lapsed",
    "rank_of",
    "taken",
]

#: The outcome of a job that is given up.
DISCARDED = "discarded"
# States of a flow whose owner died before it completed the job.
_DONE = (FlowState.SUCCESS, FlowState.REVERTED)


class Priority(StrEnum):
    """Who is first; among equals it is the oldest."""

    VERY_HIGH = "very_high"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"
    VERY_LOW = "very_low"


#: The highest first.
PRIORITIES = list(Priority)


def rank_of(priority: str) -> int:
    """The place of a priority, the highest first.

    Raises:
        ValueError: for what is none.
    """
    try:
        return PRIORITIES.index(Priority(priority))
    except ValueError:
        raise ValueError(f"priority={priority!r} is not known; give one of {', '.join(PRIORITIES)}") from None


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
    #: What became of it: the state of its flow, or ``discarded``.
    outcome: str = ""
    #: What it failed with last.
    error: str = ""
    #: When it was completed.
    ended: float = 0.0


class Claim(NamedTuple):
    """Who claims, and until when."""

    owner: str
    token: str
    now: float
    until: float


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


def flow_of(row: JobRow) -> FlowRow:
    """The flow of a job that was claimed, if it is new."""
    return FlowRow(row.id, row.flow, epoch=1, owner=row.token, store=row.store)


def ended(row: JobRow, outcome: str, error: str, *, now: float) -> JobRow:
    """The row once it is complete."""
    error = storable(error)
    return row._replace(state=JobState.COMPLETE, owner="", token="", until=0.0, outcome=outcome, error=error, ended=now)


def lapsed(row: JobRow, *, now: float, flow: str = "") -> JobRow:
    """The row once its claim is over without a word from its owner; ``flow`` is the state of its flow, if any."""
    error = f"{row.owner} claimed it and was gone before it was done"
    if row.attempts < row.max_attempts:
        return freed(row, error)
    if flow in _DONE:
        return ended(row, flow, "" if flow == FlowState.SUCCESS else error, now=now)
    return ended(row, DISCARDED, error, now=now)


def discarded(row: JobRow) -> str:
    """The error of a flow whose job was discarded."""
    return f"its job was discarded: {row.error}" if row.error else "its job was discarded"


def freed(row: JobRow, error: str) -> JobRow:
    """The row once nobody has it any more, and it is not complete."""
    return row._replace(state=JobState.UNCLAIMED, owner="", token="", until=0.0, error=storable(error))

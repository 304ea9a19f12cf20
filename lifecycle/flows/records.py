"""What is stored of a flow, and what is told of it: plain rows. Values in them are text; stores know no others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["UNENDED", "Batch", "Change", "FailedDelivery", "FlowRow", "OutboxRow", "Snapshot", "StepRow", "taken"]


class StepRow(NamedTuple):
    """A task or a retry of one flow, as it is stored."""

    name: str
    #: ``task`` or ``retry``.
    kind: str
    state: str = "PENDING"
    intention: str = "EXECUTE"
    #: How often it was started, executing.
    attempt: int = 0
    #: How often it was started afresh: one that a crash or a cancellation interrupted goes on with the same.
    round: int = 0
    result: str | None = None
    failure: str | None = None
    revert_result: str | None = None
    revert_failure: str | None = None
    #: Of a retry: what it gave in each attempt, and what failed then.
    history: str | None = None
    #: The last round that was undone: its revert succeeded, or the flow was reset. The idempotency key follows from it.
    undone: int = 0
    #: Of a retry that waits before its next attempt: the end of the wait, by the clock of the store; else 0.
    due: float = 0.0


class FlowRow(NamedTuple):
    """A flow, as it is stored."""

    id: str
    #: Of its definition.
    name: str
    state: str = "PENDING"
    version: int = 1
    #: Raised by whoever takes the flow; writes that come with an older one are refused.
    epoch: int = 0
    #: Who has taken it; empty: nobody in particular.
    owner: str = ""
    #: The number of its last change.
    seq: int = 0
    #: What it was given, encoded.
    store: str = "{}"
    #: What stopped it, where that was neither a task nor a wish.
    error: str = ""
    #: When its state changed last, in seconds since the epoch.
    at: float = 0.0


class Snapshot(NamedTuple):
    """A flow and its steps at one moment."""

    flow: FlowRow
    steps: dict[str, StepRow]


class Change(NamedTuple):
    """Something changed its state; told when it is stored."""

    #: ``flow``, ``task`` or ``retry``.
    kind: str
    name: str
    old: str
    new: str
    #: What it gave, or the `Failure`.
    result: Any = None
    #: Empty where the states say it all; ``restarted`` (runs again after a crash: `old` is `new`), ``cancelled`` or
    #: ``reset``.
    reason: str = ""
    #: Of a step: how often it was started.
    attempt: int = 0
    #: The id of the flow, and the number of the change in it.
    flow: str = ""
    seq: int = 0
    #: Seconds since the epoch.
    at: float = 0.0
    #: The result as it is stored.
    text: str | None = None


class OutboxRow(NamedTuple):
    """An event that a task has sent, as it is stored until it is delivered."""

    id: str
    topic: str
    #: What is told, encoded.
    data: str
    #: Its place; given by the store.
    number: int = 0
    #: How often its delivery failed, and how it failed last.
    failures: int = 0
    error: str = ""


#: The error of an event while its last delivery has no result. No error and a lease mean the same.
UNENDED = "its delivery began and never ended"


def taken(row: OutboxRow, until: float) -> OutboxRow:
    """Return `row` as it is stored when it is taken. A lease that ran out, at ``until``, is a failure."""
    if not until:
        return row if row.error == UNENDED else row._replace(error="")
    if row.error in ("", UNENDED):
        return row._replace(failures=row.failures + 1, error=UNENDED)
    return row._replace(error="")


class FailedDelivery(NamedTuple):
    """An event of the outbox whose delivery failed, as it is written."""

    number: int
    failures: int
    error: str
    #: When it may be delivered again; None: it is a dead letter.
    until: float | None


class Batch(NamedTuple):
    """What one phase of the engine writes, in one transaction."""

    flow: str
    epoch: int
    state: str
    seq: int
    at: float
    steps: list[StepRow]
    changes: list[Change]
    #: None: as it was.
    store: str | None = None
    error: str = ""
    #: What was sent by those who have succeeded.
    sent: Sequence[OutboxRow] = ()
    #: The number from which on the changes that are stored are forgotten; 0: none.
    taken_back: int = 0

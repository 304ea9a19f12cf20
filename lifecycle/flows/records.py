"""Records of flows: as they are stored, and as they describe themselves to a watcher.

Values of tasks are kept as text. Nothing here needs the engine or a store.
"""

from __future__ import annotations

import json
import traceback as tracebacks
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from lifecycle._util import message_of
from lifecycle.errors import StepFailed
from lifecycle.flows.states import Intention, StepState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "DISCARDED",
    "PRIORITIES",
    "UNENDED",
    "Batch",
    "Change",
    "Claim",
    "FailedDelivery",
    "Failure",
    "FlowRow",
    "FlowsState",
    "ItemInfo",
    "JobRow",
    "OutboxRow",
    "Priority",
    "RunInfo",
    "Snapshot",
    "StepRow",
    "StepView",
    "TaskContext",
    "taken",
]

#: Characters of a traceback that are kept, from its end.
_TRACEBACK_KEPT = 8000


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that a task, a retry or a revert raised; its ``type`` is the name of its class."""

    type: str
    message: str
    traceback: str = field(default="", repr=False)
    #: The exception itself, as long as the process lives in which it was raised.
    error: BaseException | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe ``error``."""
        try:
            text = "".join(tracebacks.format_exception(error))
        except Exception:  # noqa: BLE001  # as `message_of`
            text = ""
        return cls(type(error).__name__, message_of(error), text[-_TRACEBACK_KEPT:], error)

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"

    def encode(self) -> str:
        """Return the text that is stored."""
        return json.dumps([self.type, self.message, self.traceback])

    @classmethod
    def decode(cls, text: str) -> Failure:
        """Return the failure that `encode` made ``text`` of."""
        return cls(*json.loads(text))

    def exception(self, name: str) -> BaseException:
        """Return the error itself, or, after a reload, a `StepFailed` with what ``name`` raised."""
        if self.error is not None:
            return self.error
        error = StepFailed(f"{name!r} failed: {self}")
        if self.traceback:
            error.add_note(self.traceback)
        return error


class Change(NamedTuple):
    """A change of state, announced once it is stored."""

    #: ``flow``, ``task`` or ``retry``.
    kind: str
    name: str
    old: str
    new: str
    #: The result, or the `Failure`.
    result: Any = None
    #: ``restarted`` (runs again after a crash: `old` is `new`), ``cancelled``, ``reset``, or empty.
    reason: str = ""
    #: How often the step was started.
    attempt: int = 0
    #: The id of the flow, and the number of the change in it.
    flow: str = ""
    seq: int = 0
    #: Seconds since the epoch.
    at: float = 0.0
    #: The result as it is stored.
    text: str | None = None


# -- descriptions ------------------------------------------------------------------------------------------------------


class TaskContext(NamedTuple):
    """A task, a retry or a revert that runs."""

    #: The id of the flow.
    flow: str
    #: The name of the task or retry.
    name: str
    #: How often it was started, this time included; above 1 it is tried again, or a crash has interrupted it.
    attempt: int
    #: An idempotency key for effects that must happen once: give it to the service that carries them out. It stays the
    #: same for all attempts, until the task is known to be undone: its revert has succeeded, or the flow was reset.
    key: str
    #: Whether the task is being undone.
    reverting: bool = False


class StepView(NamedTuple):
    """A task or a retry of a run."""

    kind: str
    state: StepState = StepState.PENDING
    intention: Intention = Intention.EXECUTE
    #: How often it was started.
    attempt: int = 0
    #: The error of its execution or of its revert; empty if there is none.
    error: str = ""


@dataclass(frozen=True, slots=True)
class ItemInfo:
    """A task, a retry, or a flow in another.

    The items of a flow are in the order in which they are done, each with those that follow it, so that this record is
    enough to draw a diagram.
    """

    name: str
    #: ``task``, ``retry``, or of a flow ``linear``, ``unordered``, ``graph``.
    kind: str
    #: The state of a task or a retry; a flow in another has none of its own.
    state: str = ""
    #: The next action on it.
    intention: str = ""
    #: How often it was started.
    attempt: int = 0
    #: The error of its execution or of its revert.
    error: str = ""
    #: The retry of a flow, if it has one, and its items, each after those that it waits for.
    items: tuple[ItemInfo, ...] = ()
    #: For each of these the places of those that follow at once.
    follow: tuple[tuple[int, ...], ...] = ()

    def counts(self) -> dict[str, int]:
        """Count the tasks and retries in each state."""
        return dict(Counter(_states(self)))


def _states(item: ItemInfo) -> Iterator[str]:
    if item.state:
        yield str(item.state)
    for each in item.items:
        yield from _states(each)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A flow that was started."""

    id: str
    name: str
    state: str
    #: The error that stopped it, if it was neither a failed task nor a suspension.
    error: str
    #: The flow itself, or the one task that it is.
    root: ItemInfo


@dataclass(frozen=True, slots=True)
class FlowsState:
    """A `Flows` at one moment."""

    #: Where flows are kept.
    store: str
    #: The runs that have not ended, in the order of their start.
    runs: tuple[RunInfo, ...] = field(default=())


# -- rows of stores ----------------------------------------------------------------------------------------------------


class StepRow(NamedTuple):
    """A task or a retry of one flow, as it is stored."""

    name: str
    #: ``task`` or ``retry``.
    kind: str
    state: str = "PENDING"
    intention: str = "EXECUTE"
    #: How often it was started, executing.
    attempt: int = 0
    #: How often it was started afresh: after a crash or a cancellation it continues with the same round.
    round: int = 0
    result: str | None = None
    failure: str | None = None
    revert_failure: str | None = None
    #: The values of a retry in each attempt, and the failures of that attempt.
    history: str | None = None
    #: The last round that was undone: its revert succeeded, or the flow was reset. The idempotency key follows from it.
    undone: int = 0
    #: The end of the wait of a retry before its next attempt, by the clock of the store; else 0.
    due: float = 0.0


class FlowRow(NamedTuple):
    """A flow, as it is stored."""

    id: str
    #: Of its definition.
    name: str
    state: str = "PENDING"
    #: Raised by each process that takes the flow; writes with an older one are refused.
    epoch: int = 0
    #: The process that has taken it; empty: none in particular.
    owner: str = ""
    #: The number of its last change.
    seq: int = 0
    #: The values that it was started with, encoded.
    store: str = "{}"
    #: The error that stopped it, if it was neither a failed task nor a suspension.
    error: str = ""
    #: When its state changed last, in seconds since the epoch.
    at: float = 0.0


class Snapshot(NamedTuple):
    """A flow and its steps at one moment."""

    flow: FlowRow
    steps: dict[str, StepRow]


class OutboxRow(NamedTuple):
    """An event that a task has sent, as it is stored until it is delivered."""

    id: str
    topic: str
    #: Its data, encoded.
    data: str
    #: Its place; given by the store.
    number: int = 0
    #: How often its delivery failed, and the last error.
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
    """The changes of one phase of the engine, written in one transaction."""

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
    #: The events that steps which have succeeded have sent.
    sent: Sequence[OutboxRow] = ()
    #: The number from which on the changes that are stored are forgotten; 0: none.
    taken_back: int = 0


# -- jobs --------------------------------------------------------------------------------------------------------------

#: The outcome of a job that is given up.
DISCARDED = "discarded"


class Priority(StrEnum):
    """The priority of a job; of equals the oldest is first."""

    VERY_HIGH = "very_high"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"
    VERY_LOW = "very_low"


#: The highest first.
PRIORITIES = list(Priority)


class JobRow(NamedTuple):
    """A job, as it is stored; times are in seconds since the epoch."""

    id: str
    #: The name of its flow; the flow has the id of the job.
    flow: str
    #: The place of its priority.
    rank: int
    #: The values that the flow is started with, encoded.
    store: str
    #: When it was enqueued.
    enqueued: float
    #: How often it may be claimed before it is discarded.
    max_attempts: int
    #: Its place among equals; given by the store.
    number: int = 0
    state: str = "UNCLAIMED"
    #: The name of its owner, and the process of the owner, by its token in `Presence`.
    owner: str = ""
    token: str = ""
    #: Raised by each claim; a write with an older one is refused.
    epoch: int = 0
    #: The end of the claim.
    until: float = 0.0
    #: How often it was claimed.
    attempts: int = 0
    #: The time before which it is claimed only by its id.
    due: float = 0.0
    #: The state in which its flow ended, or ``discarded``.
    outcome: str = ""
    #: Its last error.
    error: str = ""
    #: When it was completed.
    ended: float = 0.0


class Claim(NamedTuple):
    """The owner of a claim, its process, and the time from which and until which the claim holds."""

    owner: str
    token: str
    now: float
    until: float

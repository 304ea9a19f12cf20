"""Records that describe flows: stored rows, and snapshots for observers.

The rows contain task values as text. This module does not depend on the engine or on a store.
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
from lifecycle.flows.states import FlowState, Intention, StepState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "CANCEL",
    "DISCARDED",
    "DUE_NOW",
    "FAILURE",
    "PRIORITIES",
    "UNENDED",
    "UNLIMITED",
    "Batch",
    "Change",
    "Claim",
    "FailedDelivery",
    "Failure",
    "FlowInfo",
    "FlowRow",
    "FlowsState",
    "ItemInfo",
    "JobRow",
    "Limits",
    "OutboxRow",
    "Priority",
    "RunInfo",
    "SignalRow",
    "Snapshot",
    "StepRow",
    "StepView",
    "TaskContext",
    "status_of",
    "step_failed",
    "taken",
]

#: The maximum number of characters kept from the end of a traceback.
_TRACEBACK_KEPT = 8000


@dataclass(frozen=True, slots=True)
class Failure:
    """An error raised by a task, a retry or a revert. ``type`` is the name of the error's class."""

    type: str
    message: str
    traceback: str = field(default="", repr=False)
    #: The exception itself, or None if the failure was loaded from a store.
    error: BaseException | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return a failure that describes ``error``."""
        try:
            text = "".join(tracebacks.format_exception(error))
        except Exception:  # noqa: BLE001  # repr() may raise anything
            text = ""
        return cls(type(error).__name__, message_of(error), text[-_TRACEBACK_KEPT:], error)

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"

    def encode(self) -> str:
        """Return the text to store."""
        return json.dumps([self.type, self.message, self.traceback])

    @classmethod
    def decode(cls, text: str) -> Failure:
        """Return the failure that is encoded in ``text``."""
        return cls(*json.loads(text))

    def exception(self, name: str) -> BaseException:
        """Return the original error, or a `StepFailed` if the failure was loaded from a store.

        ``name`` is the name of the task or workflow. A workflow's `StepFailed` keeps its message, which already names
        the failed step.
        """
        if self.error is not None:
            return self.error
        error = step_failed(name, self)
        if self.type == StepFailed.__name__:
            error.args = (self.message,)
        return error


def step_failed(name: str, failure: Failure) -> StepFailed:
    """Return the error that the step or child ``name`` of a workflow raises."""
    error = StepFailed(f"{name!r} failed: {failure}", step=name, type=failure.type, message=failure.message)
    if failure.traceback:
        error.add_note(failure.traceback)
    return error


class Change(NamedTuple):
    """A change of state, which is stored before it is announced."""

    #: ``flow``, or the kind of the step.
    kind: str
    name: str
    old: str
    new: str
    #: The step's result, or the `Failure`.
    result: Any = None
    #: The reason for the change: ``restarted`` if the step runs again after a crash (`old` then equals `new`),
    #: ``cancelled``, ``reset``, or empty.
    reason: str = ""
    #: How many times the step was started.
    attempt: int = 0
    #: The flow's id, and the change's number within the flow.
    flow: str = ""
    seq: int = 0
    #: Seconds since the epoch.
    at: float = 0.0
    #: The result as stored.
    text: str | None = None


# -- descriptions ------------------------------------------------------------------------------------------------------


class TaskContext(NamedTuple):
    """The context of a running task, retry or revert."""

    #: The flow's id.
    flow: str
    #: The name of the task or retry.
    name: str
    #: How many times the step was started, including this time. It is more than 1 after a failed attempt. In a flow of
    #: tasks, it is also more than 1 after a crash. A workflow stores a step when it ends, so a crash is not counted.
    attempt: int
    #: An idempotency key for effects that must happen only once. Pass it to the service that performs them. The key
    #: stays the same in all attempts until the task is known to be undone, either because its revert succeeded or
    #: because the flow was reset.
    key: str
    #: True if the task is being reverted.
    reverting: bool = False


class StepView(NamedTuple):
    """A task or a retry in a run."""

    kind: str
    state: StepState = StepState.PENDING
    intention: Intention = Intention.EXECUTE
    #: How many times the step was started.
    attempt: int = 0
    #: The error raised by the step or its revert, or empty.
    error: str = ""


@dataclass(frozen=True, slots=True)
class ItemInfo:
    """A task, a retry, or a nested flow.

    A flow's items are listed in execution order along with the items that directly follow each of them, so this record
    is enough to draw a diagram.
    """

    name: str
    #: The kind of item: ``task`` or ``retry``, or, for a flow, ``linear``, ``unordered`` or ``graph``.
    kind: str
    #: The state of the task or retry. Empty for a nested flow.
    state: str = ""
    #: The action to perform on the step next.
    intention: str = ""
    #: How many times the step was started.
    attempt: int = 0
    #: The error raised by the step or its revert, or empty.
    error: str = ""
    #: The flow's retry, if any, followed by the flow's items in execution order.
    items: tuple[ItemInfo, ...] = ()
    #: For each item, the indexes of the items that directly follow it.
    follow: tuple[tuple[int, ...], ...] = ()

    def counts(self) -> dict[str, int]:
        """Return the number of tasks and retries in each state."""
        return dict(Counter(_states(self)))


def _states(item: ItemInfo) -> Iterator[str]:
    if item.state:
        yield str(item.state)
    for each in item.items:
        yield from _states(each)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A snapshot of a flow that was started."""

    id: str
    name: str
    state: str
    #: The error that stopped the flow, other than a failed task or a suspension.
    error: str
    #: The flow itself, or its single task.
    root: ItemInfo


def status_of(state: str, error: str) -> str:
    """Return the status to show for a stored flow: its state, or ``STOPPED`` and the class of the error.

    A flow that waits has an error only if it was stopped by one.
    """
    return f"STOPPED ({error.partition(':')[0]})" if state == FlowState.WAITING and error else str(state)


@dataclass(frozen=True, slots=True)
class FlowInfo:
    """A stored flow or workflow. Times are in seconds since the epoch."""

    id: str
    #: The name of the definition.
    name: str
    #: ``flow`` or ``workflow``.
    kind: str
    state: FlowState
    #: The return value of a workflow that has succeeded. None for a flow.
    result: Any = None
    #: The error that ended or stopped it, or empty.
    error: str = ""
    #: When it was started.
    created: float = 0.0
    #: When its state last changed.
    changed: float = 0.0
    #: When a WAITING workflow continues, or 0 if only a signal or a child continues it.
    due: float = 0.0
    #: The id of the workflow that started it as a child, or empty.
    parent: str = ""

    @property
    def status(self) -> str:
        """The state, or ``STOPPED (WorkflowChanged)`` if it waits for a process with the code that it matches."""
        return status_of(self.state, self.error)


@dataclass(frozen=True, slots=True)
class FlowsState:
    """A snapshot of a `Flows` object."""

    #: The store that holds the flows.
    store: str
    #: The unfinished runs, in start order.
    runs: tuple[RunInfo, ...] = field(default=())


# -- rows of stores ----------------------------------------------------------------------------------------------------


class StepRow(NamedTuple):
    """The stored row of a task or a retry."""

    name: str
    #: ``task`` or ``retry``. In a workflow: ``step``, ``sleep``, ``wait``, ``child``, ``undo`` or ``patch``.
    kind: str
    state: str = "PENDING"
    intention: str = "EXECUTE"
    #: How many times the step was started, excluding reverts.
    attempt: int = 0
    #: How many times the step was started from the beginning. After a crash or a cancellation, the same round
    #: continues.
    round: int = 0
    result: str | None = None
    failure: str | None = None
    revert_failure: str | None = None
    #: For a retry, the value and the failures of each attempt. For a step that is tried again, the number of its
    #: attempts. For a child, the id of its flow.
    history: str | None = None
    #: The last round that a successful revert or a reset has undone. The idempotency key is derived from it.
    undone: int = 0
    #: When the next attempt may start, or when a sleep or a wait ends, by the store's clock. Otherwise 0.
    due: float = 0.0


class FlowRow(NamedTuple):
    """The stored row of a flow."""

    id: str
    #: The name of the flow's definition.
    name: str
    state: str = "PENDING"
    #: Incremented each time a process takes the flow. Writes with an older epoch are rejected.
    epoch: int = 0
    #: The token of the process that has taken the flow, or empty.
    owner: str = ""
    #: The number of the flow's last change.
    seq: int = 0
    #: The encoded values that the flow was started with.
    store: str = "{}"
    #: The error that stopped the flow, other than a failed task or a suspension.
    error: str = ""
    #: When the state last changed, in seconds since the epoch.
    at: float = 0.0
    #: When a WAITING flow must continue, by the store's clock, or 0 if only a signal or a child continues it.
    due: float = 0.0
    #: The id of the workflow that started this flow as its child, or empty.
    parent: str = ""
    #: The encoded return value of a workflow.
    result: str | None = None
    #: When the flow was started, in seconds since the epoch.
    created: float = 0.0
    #: ``flow`` or ``workflow``.
    kind: str = "flow"


class Snapshot(NamedTuple):
    """A consistent snapshot of a flow and its steps."""

    flow: FlowRow
    steps: dict[str, StepRow]
    #: The signals that have not been received, oldest first, or None if they were not read.
    signals: Sequence[SignalRow] | None = None


#: The `due` of a flow or a job that must continue at once. It is in the past by every clock.
DUE_NOW = 1e-9
#: The row of a workflow, of kind ``undo``, that records why the workflow has failed or is being undone.
FAILURE = "failure"
#: The name of the signal that cancels a workflow.
CANCEL = "lifecycle.cancel"


class SignalRow(NamedTuple):
    """The stored row of a signal to a flow."""

    #: The id of the flow.
    flow: str
    name: str
    #: The signal's encoded data.
    data: str
    #: A flow stores signals with the same key only once. If it is empty, the store generates one.
    key: str = ""
    #: When the signal was sent, in seconds since the epoch.
    at: float = 0.0
    #: A sequence number assigned by the store.
    number: int = 0
    #: True once the flow has received the signal.
    taken: bool = False


class OutboxRow(NamedTuple):
    """The stored row of an event that a task has sent. It is deleted when the event has been delivered."""

    id: str
    topic: str
    #: The event's encoded data.
    data: str
    #: A sequence number assigned by the store.
    number: int = 0
    #: The number of failed deliveries, and the last error.
    failures: int = 0
    error: str = ""


#: The error stored for an event if a lease on it expired before its delivery had a result. While a delivery is running,
#: the event has either this error or an empty one.
UNENDED = "its delivery began and never ended"


def taken(row: OutboxRow, until: float) -> OutboxRow:
    """Return ``row`` with a new lease. If an earlier lease has expired, count it as a failed delivery."""
    if not until:
        return row if row.error == UNENDED else row._replace(error="")
    if row.error in ("", UNENDED):
        return row._replace(failures=row.failures + 1, error=UNENDED)
    return row._replace(error="")


class FailedDelivery(NamedTuple):
    """How to update an outbox row after a failed delivery."""

    number: int
    failures: int
    error: str
    #: When to deliver the event again, or None to make it a dead letter.
    until: float | None


class Batch(NamedTuple):
    """The changes from one engine phase, which are written in one transaction."""

    flow: str
    epoch: int
    state: str
    seq: int
    at: float
    steps: list[StepRow]
    changes: list[Change]
    #: The flow's encoded values, or None to leave the stored values unchanged.
    store: str | None = None
    error: str = ""
    #: The events that successful steps have sent.
    sent: Sequence[OutboxRow] = ()
    #: Stored changes with this number or a higher one are deleted. 0 deletes none.
    taken_back: int = 0
    #: ``flow`` or ``workflow``.
    kind: str = "flow"
    #: When a WAITING flow must continue, or 0 if only a signal or a child continues it.
    due: float = 0.0
    #: The encoded return value of a workflow.
    result: str | None = None
    #: The numbers of the signals that the flow has received.
    taken: Sequence[int] = ()
    #: The children to create. A child whose id exists is left unchanged.
    children: Sequence[FlowRow] = ()
    #: The names of the signals and the ids of the children that a WAITING flow waits for. If such a signal or a signal
    #: named `CANCEL` has not been received yet, or if such a child has ended, the flow is due at once.
    awaited: Sequence[str] = ()
    awaited_children: Sequence[str] = ()
    #: The flow's `FlowRow.parent`. If the flow ends and its parent is WAITING, the parent is due at once.
    parent: str = ""

    @property
    def is_success(self) -> bool:
        """True if the batch ends a workflow as SUCCESS, which a stored cancellation prevents."""
        return self.kind == "workflow" and self.state == "SUCCESS"


# -- jobs --------------------------------------------------------------------------------------------------------------

#: The outcome of a discarded job.
DISCARDED = "discarded"


class Priority(StrEnum):
    """The priority of a job. Among jobs with the same priority, the oldest comes first."""

    VERY_HIGH = "very_high"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"
    VERY_LOW = "very_low"


#: All priorities, highest first.
PRIORITIES = list(Priority)


class JobRow(NamedTuple):
    """The stored row of a job. Times are in seconds since the epoch."""

    id: str
    #: The name of the job's flow. The flow's id is the job's id.
    flow: str
    #: The rank of the job's priority; 0 is the highest.
    rank: int
    #: The encoded values that the flow starts with.
    store: str
    #: When the job was enqueued.
    enqueued: float
    #: The maximum number of claims before the job is discarded.
    max_attempts: int
    #: A sequence number assigned by the store.
    number: int = 0
    state: str = "UNCLAIMED"
    #: The owner's name, and the `Presence` token of the owner's process.
    owner: str = ""
    token: str = ""
    #: Incremented by each claim. A write with an older epoch is rejected.
    epoch: int = 0
    #: When the claim expires.
    until: float = 0.0
    #: How many times the job was attempted.
    attempts: int = 0
    #: When the job becomes due. Until then, it can only be claimed by id.
    due: float = 0.0
    #: The state that the flow ended in, or ``discarded``.
    outcome: str = ""
    #: The job's last error.
    error: str = ""
    #: When the job was completed.
    ended: float = 0.0
    #: The name of the job's queue.
    queue: str = ""
    #: The key that `Limits.key_concurrency` applies to, or empty.
    key: str = ""


class Limits(NamedTuple):
    """The limits of a queue. They apply to all processes together. None means no limit."""

    #: The maximum number of jobs that are claimed at the same time.
    concurrency: int | None = None
    #: The maximum number of jobs with the same key that are claimed at the same time.
    key_concurrency: int | None = None
    #: The maximum number of claims in any period of ``per`` seconds.
    limit: int | None = None
    per: float = 0.0


#: The limits of a queue without limits.
UNLIMITED = Limits()


class Claim(NamedTuple):
    """A claim's owner, the owner's process, when the claim starts and ends, and its queue with the limits."""

    owner: str
    token: str
    now: float
    until: float
    queue: str = ""
    limits: Limits = UNLIMITED

"""Tables of the allowed transitions for flows, tasks, retries, jobs and the engine.

The transitions are the same as in TaskFlow, except that a step also returns to its previous state when it is cancelled,
and before another attempt. A `Table`
checks transitions, and creates a `states.Machine` for each object.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lifecycle.errors import InvalidState
from lifecycle.states import Machine

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ENDS",
    "ENGINES",
    "FLOWS",
    "JOBS",
    "RETRIES",
    "TASKS",
    "WORKFLOWS",
    "WORKFLOW_ENGINES",
    "EngineState",
    "FlowState",
    "Intention",
    "JobState",
    "StepState",
    "Table",
]

S = TypeVar("S", bound=str)


class FlowState(StrEnum):
    """The state of a flow."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    REVERTED = "REVERTED"
    SUSPENDING = "SUSPENDING"
    SUSPENDED = "SUSPENDED"
    RESUMING = "RESUMING"
    #: The workflow waits in the store for a time, a signal or a child. No process runs it.
    WAITING = "WAITING"
    #: The workflow was cancelled, and its undo steps have run.
    CANCELLED = "CANCELLED"


#: The states in which a flow has ended.
ENDS = (FlowState.SUCCESS, FlowState.FAILURE, FlowState.REVERTED, FlowState.CANCELLED)


class StepState(StrEnum):
    """The state of a task or a retry. Only retries can be `RETRYING`."""

    PENDING = "PENDING"
    IGNORE = "IGNORE"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    REVERTING = "REVERTING"
    REVERTED = "REVERTED"
    REVERT_FAILURE = "REVERT_FAILURE"
    RETRYING = "RETRYING"


class Intention(StrEnum):
    """The next action on a task or a retry, which is stored along with its state."""

    EXECUTE = "EXECUTE"
    IGNORE = "IGNORE"
    REVERT = "REVERT"
    RETRY = "RETRY"


class EngineState(StrEnum):
    """The phase of a flow's engine."""

    UNDEFINED = "UNDEFINED"
    RESUMING = "RESUMING"
    SCHEDULING = "SCHEDULING"
    WAITING = "WAITING"
    ANALYZING = "ANALYZING"
    GAME_OVER = "GAME_OVER"
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    REVERTED = "REVERTED"
    SUSPENDED = "SUSPENDED"
    CANCELLED = "CANCELLED"


class JobState(StrEnum):
    """The state of a job."""

    UNCLAIMED = "UNCLAIMED"
    CLAIMED = "CLAIMED"
    COMPLETE = "COMPLETE"


class Table(Generic[S]):
    """The states of one kind of object, and the allowed moves between them.

    Args:
        kind: The name for this kind of object in messages.
        initial: The initial state.
        moves: The states that may follow each state.
        ignored: Moves that can be requested without an error, but have no effect.
        cancelled: Moves that only happen on cancellation. This includes cancellation before a step starts, and after a
            claim is lost.
        retried: Moves that only happen before another attempt.
        reset: States that return to the initial state only on a reset.
    """

    kind: str
    moves: Mapping[S, frozenset[S]]
    cancelled: frozenset[tuple[S, S]]
    ignored: frozenset[tuple[S, S]]
    retried: frozenset[tuple[S, S]]
    reset: frozenset[S]

    def __init__(
        self,
        kind: str,
        initial: S,
        *,
        moves: Mapping[S, frozenset[S]],
        ignored: frozenset[tuple[S, S]] = frozenset(),
        cancelled: frozenset[tuple[S, S]] = frozenset(),
        retried: frozenset[tuple[S, S]] = frozenset(),
        reset: frozenset[S] = frozenset(),
    ) -> None:
        self.kind, self.initial, self.moves = kind, initial, moves
        self.ignored, self.cancelled, self.retried, self.reset = ignored, cancelled, retried, reset
        guarded = {state: set(row) for state, row in moves.items()}
        for old, new in cancelled | retried:
            guarded[old].add(new)
        for old in reset:
            guarded[old].add(initial)
        self._machine_moves = {state: frozenset(row) for state, row in guarded.items()}

    def check(self, name: str, old: S, new: S, reason: str = "") -> bool:
        """Return True if ``old`` may move to ``new``, or False if the table ignores the move.

        Raises:
            InvalidState: if the move is not allowed. The error shows both states and the allowed moves.
        """
        if new in self.moves[old]:
            return True
        if reason == "cancelled" and (old, new) in self.cancelled:
            return True
        if reason == "retry" and (old, new) in self.retried:
            return True
        if reason == "reset" and old in self.reset and new == self.initial:
            return True
        if (old, new) in self.ignored:
            return False
        legal = ", ".join(sorted(self.moves[old])) or f"nothing, {old} is final"
        raise InvalidState(f"{self.kind} {name!r} cannot go from {old} to {new}; legal: {legal}")

    def machine(self, name: str, state: S | None = None) -> Machine[S]:
        """Return a machine that starts in ``state`` and allows all moves, including cancellations and resets."""
        start = self.initial if state is None else state
        return Machine(name, self._machine_moves, start, ignored=self.ignored, history=8, error=InvalidState)


def _rows(states: type[StrEnum], text: str) -> dict[Any, frozenset[Any]]:
    """Parse lines such as ``A: B C``. States without a line are final."""
    rows = {state: frozenset[Any]() for state in states}
    for line in text.strip().splitlines():
        old, new = line.split(":")
        rows[states(old.strip())] = frozenset(map(states, new.split()))
    return rows


def _pairs(states: type[StrEnum], text: str) -> frozenset[tuple[Any, Any]]:
    rows = _rows(states, text)
    return frozenset((old, new) for old, row in rows.items() for new in row)


def _without(rows: dict[Any, frozenset[Any]], *states: StrEnum) -> dict[Any, frozenset[Any]]:
    return {old: row for old, row in rows.items() if old not in states}


FLOWS: Table[FlowState] = Table(
    "flow",
    FlowState.PENDING,
    moves=_without(
        _rows(
            FlowState,
            """
            PENDING: RUNNING
            RUNNING: SUCCESS FAILURE REVERTED SUSPENDING RESUMING
            SUCCESS: RUNNING PENDING
            FAILURE: RUNNING
            REVERTED: PENDING
            SUSPENDING: SUSPENDED SUCCESS FAILURE REVERTED RESUMING
            SUSPENDED: RUNNING
            RESUMING: SUSPENDED
            """,
        ),
        FlowState.WAITING,
        FlowState.CANCELLED,
    ),
    ignored=_pairs(
        FlowState,
        """
        PENDING: PENDING SUSPENDING SUSPENDED RESUMING
        RUNNING: RUNNING
        SUCCESS: SUCCESS SUSPENDING SUSPENDED RESUMING
        FAILURE: FAILURE SUSPENDING SUSPENDED RESUMING
        REVERTED: REVERTED SUSPENDING SUSPENDED RESUMING
        SUSPENDING: SUSPENDING
        SUSPENDED: SUSPENDED SUSPENDING RESUMING
        RESUMING: RESUMING
        """,
    ),
    reset=frozenset({FlowState.FAILURE}),
)

_STEP_MOVES = """
    PENDING: RUNNING IGNORE
    RUNNING: SUCCESS FAILURE
    FAILURE: REVERTING
    SUCCESS: REVERTING
    REVERTING: REVERTED REVERT_FAILURE
    REVERTED: PENDING
    IGNORE: PENDING
"""
_RETRY_MOVES = _STEP_MOVES.replace("SUCCESS: REVERTING", "SUCCESS: REVERTING RETRYING") + "RETRYING: RUNNING"
_STEP_CANCELLED = """
    RUNNING: PENDING
    REVERTING: SUCCESS FAILURE
"""
_STEP_RESET = frozenset({StepState.SUCCESS, StepState.FAILURE, StepState.REVERT_FAILURE})


TASKS: Table[StepState] = Table(
    "task",
    StepState.PENDING,
    moves=_without(_rows(StepState, _STEP_MOVES), StepState.RETRYING),
    cancelled=_pairs(StepState, _STEP_CANCELLED),
    retried=frozenset({(StepState.RUNNING, StepState.PENDING)}),
    reset=_STEP_RESET,
)

RETRIES: Table[StepState] = Table(
    "retry",
    StepState.PENDING,
    moves=_rows(StepState, _RETRY_MOVES),
    cancelled=_pairs(StepState, _STEP_CANCELLED),
    reset=_STEP_RESET,
)

JOBS: Table[JobState] = Table(
    "job",
    JobState.UNCLAIMED,
    moves=_rows(
        JobState,
        """
        UNCLAIMED: CLAIMED
        CLAIMED: UNCLAIMED COMPLETE
        """,
    ),
    ignored=frozenset((state, state) for state in JobState),
)

ENGINES: Table[EngineState] = Table(
    "engine",
    EngineState.UNDEFINED,
    moves=_without(
        _rows(
            EngineState,
            """
            UNDEFINED: RESUMING
            RESUMING: SCHEDULING
            SCHEDULING: WAITING
            WAITING: ANALYZING
            ANALYZING: SCHEDULING WAITING GAME_OVER
            GAME_OVER: SUCCESS FAILURE REVERTED SUSPENDED
            """,
        ),
        EngineState.CANCELLED,
    ),
)

#: The states of a workflow. A crash leaves it RUNNING or SUSPENDING, and the next process continues it from there.
WORKFLOWS: Table[FlowState] = Table(
    "workflow",
    FlowState.PENDING,
    moves=_rows(
        FlowState,
        """
        PENDING: RUNNING
        RUNNING: SUCCESS FAILURE REVERTED CANCELLED WAITING SUSPENDING
        WAITING: RUNNING
        SUSPENDING: SUCCESS FAILURE REVERTED CANCELLED SUSPENDED RUNNING
        SUSPENDED: RUNNING
        SUCCESS: RUNNING PENDING
        FAILURE: RUNNING
        REVERTED: PENDING
        CANCELLED: PENDING
        """,
    ),
    ignored=frozenset((state, state) for state in FlowState),
    reset=frozenset({FlowState.FAILURE}),
)

#: The phases of a workflow's engine. It is SCHEDULING while the function runs.
WORKFLOW_ENGINES: Table[EngineState] = Table(
    "engine",
    EngineState.UNDEFINED,
    moves=_rows(
        EngineState,
        """
        UNDEFINED: RESUMING
        RESUMING: SCHEDULING
        SCHEDULING: WAITING GAME_OVER
        GAME_OVER: SUCCESS FAILURE REVERTED CANCELLED SUSPENDED
        """,
    ),
)

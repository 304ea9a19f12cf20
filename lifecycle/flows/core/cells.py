"""`Cell`: one node of a plan in one run of it: how far it is, what it gave, and how many others it waits for."""

from __future__ import annotations

import json
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from lifecycle.errors import FlowError
from lifecycle.flows.records import Failure, StepRow
from lifecycle.flows.retries import Attempt
from lifecycle.flows.states import RETRIES, TASKS, Intention, StepState

if TYPE_CHECKING:
    from lifecycle.flows.plans.compiling import Node
    from lifecycle.flows.plans.steps import Step
    from lifecycle.flows.serializers import Codec
    from lifecycle.flows.states import Table

__all__ = ["NOTHING", "Cell"]

#: In the place of a value that there is none of, or that was not decoded yet.
NOTHING: Any = object()

_SETTLED = frozenset({StepState.SUCCESS, StepState.IGNORE})
_AHEAD = frozenset({Intention.EXECUTE, Intention.IGNORE})
_QUIET = frozenset({StepState.PENDING, StepState.REVERTED, StepState.IGNORE})
_ENDED = frozenset({StepState.SUCCESS, StepState.FAILURE})
_BACK = frozenset({Intention.REVERT, Intention.RETRY})
_READY = frozenset({StepState.PENDING, StepState.RETRYING})


class Cell:
    """A node, and its state."""

    __slots__ = (
        "after",
        "answered",
        "attempt",
        "before",
        "due",
        "failure",
        "history",
        "intention",
        "name",
        "node",
        "number",
        "queued",
        "quiet",
        "restart",
        "result",
        "revert_failure",
        "revert_result",
        "round",
        "settled",
        "state",
        "step",
        "table",
        "undone",
        "unquiet",
        "unsettled",
        "value",
    )

    def __init__(self, node: Node) -> None:
        self.node: Node = node
        self.number: int = node.number
        self.step: Step | None = node.step
        self.name: str = node.step.name if node.step else ""
        self.table: Table[StepState] = RETRIES if node.kind == "retry" else TASKS
        self.before: tuple[Cell, ...] = ()
        self.after: tuple[Cell, ...] = ()
        self.state: StepState = StepState.PENDING
        self.intention: Intention = Intention.EXECUTE
        self.attempt: int = 0
        self.round: int = 0
        # The last round that was undone, and the end of the wait before the next attempt of a retry.
        self.undone: int = 0
        self.due: float = 0.0
        self.result: str | None = None
        self.value: Any = NOTHING
        self.failure: Failure | None = None
        self.revert_result: str | None = None
        self.revert_failure: Failure | None = None
        self.history: list[Attempt] = []
        # Of a retry: what those after it were told because of its last answer, in this process.
        self.answered: Intention | None = None
        # How many right before it are not settled, and how many right after it are not quiet.
        self.unsettled: int = 0
        self.unquiet: int = 0
        # It and all before it are done; it and all after it have left nothing to undo.
        self.settled: bool = False
        self.quiet: bool = True
        # Whether it waits among those that are ready, and whether it was at work when the process died.
        self.queued: bool = False
        self.restart: bool = False

    def __repr__(self) -> str:
        return f"<Cell {self.name or self.node.kind!r}: {self.state}/{self.intention}>"

    def saved(self) -> tuple[Any, ...]:
        """Its state now, for `restore`; what follows from those around it is counted again."""
        return _STATE(self)

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Be again what it was."""
        for name, value in zip(_STATE_NAMES, saved, strict=True):
            setattr(self, name, value)

    def is_settled(self) -> bool:
        """Whether those after it need not wait for it, or for any before it."""
        return not self.unsettled and (self.step is None or (self.state in _SETTLED and self.intention in _AHEAD))

    def is_quiet(self) -> bool:
        """Whether those before it may be undone, as far as it and those after it matter."""
        return not self.unquiet and (self.step is None or self.state in _QUIET)

    def can_execute(self) -> bool:
        """Whether it is its turn."""
        return not self.unsettled and self.intention is Intention.EXECUTE and self.state in _READY

    def can_revert(self) -> bool:
        """Whether it is its turn, backwards."""
        return not self.unquiet and self.intention in _BACK and self.state in _ENDED

    def is_ready(self) -> bool:
        """Whether there is something to be done with it now."""
        return self.step is not None and (self.restart or self.can_execute() or self.can_revert())

    def clear(self) -> None:
        """Forget what it gave; not how often it was started."""
        self.result = self.revert_result = None
        self.value = NOTHING
        self.failure = self.revert_failure = None
        self.history = []
        self.answered = None
        self.due = 0.0

    @property
    def effect(self) -> int:
        """The number in its idempotency key: that of the first round since it was undone last.

        An attempt that failed may have had its effect, so that the next one has the same key, unless a revert has
        undone it. A retry has no such effect; each of its attempts is another.
        """
        return self.round if self.node.kind == "retry" else self.undone + 1

    def row(self, codec: Codec) -> StepRow:
        """As it is stored."""
        return StepRow(
            self.name,
            self.node.kind,
            self.state.value,
            self.intention.value,
            self.attempt,
            self.round,
            self.result,
            self.failure.encode() if self.failure else None,
            self.revert_result,
            self.revert_failure.encode() if self.revert_failure else None,
            _history_text(self.history, codec) if self.history else None,
            self.undone,
            self.due,
        )

    def load(self, row: StepRow, codec: Codec) -> None:
        """Go on from what is stored.

        Raises:
            FlowError: when that was a task and this is a retry, or the other way round.
        """
        if row.kind != self.node.kind:
            raise FlowError(
                f"{self.name!r} is a {self.node.kind} now, and was a {row.kind} when the flow was stored; give it "
                "another name"
            )
        self.state, self.intention = StepState(row.state), Intention(row.intention)
        self.attempt, self.round = row.attempt, row.round
        self.undone, self.due = row.undone, row.due
        self.result, self.revert_result = row.result, row.revert_result
        self.failure = Failure.decode(row.failure) if row.failure else None
        self.revert_failure = Failure.decode(row.revert_failure) if row.revert_failure else None
        self.history = _history(row.history, codec) if row.history else []


_STATE_NAMES = (
    "answered",
    "attempt",
    "due",
    "failure",
    "history",
    "intention",
    "restart",
    "result",
    "revert_failure",
    "revert_result",
    "round",
    "state",
    "undone",
    "value",
)
_STATE = attrgetter(*_STATE_NAMES)


def _history_text(history: list[Attempt], codec: Codec) -> str:
    return json.dumps(
        [[codec.encode(each.value), {name: one.encode() for name, one in each.failures.items()}] for each in history]
    )


def _history(text: str, codec: Codec) -> list[Attempt]:
    return [
        Attempt(codec.decode(value), {name: Failure.decode(one) for name, one in failures.items()})
        for value, failures in json.loads(text)
    ]

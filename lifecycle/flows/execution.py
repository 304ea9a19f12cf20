"""One flow's state while it runs: node states, arguments, and changes to write.

This module does not await, read a clock or use a store. `decisions` makes every state change through `UnitOfWork`,
which checks the change against a table and collects the changes for one transaction.

Each node counts the neighbors that it is waiting for, so that a change never requires walking the whole graph. A node
is *done* when it and all nodes before it are finished, which reduces the counts of its direct successors. A node is
*reverted* when neither it nor any node after it has anything left to undo, which reduces the counts of its direct
predecessors. Whether a node is done depends on all earlier nodes, not only on its direct predecessors. If a task is
inserted before a finished one, the tasks after them therefore wait until the inserted task has run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from lifecycle.errors import FlowError, MissingDependencies
from lifecycle.flows.records import Batch, Change, Failure, StepRow
from lifecycle.flows.retries import Attempt
from lifecycle.flows.serializers import is_plain
from lifecycle.flows.states import FLOWS, RETRIES, TASKS, FlowState, Intention, StepState

if TYPE_CHECKING:
    from lifecycle.flows.definition import Step, StepFunction
    from lifecycle.flows.plan import Node, Plan
    from lifecycle.flows.records import FlowRow, OutboxRow
    from lifecycle.flows.serializers import Codec
    from lifecycle.flows.states import Table

__all__ = ["NOTHING", "NodeState", "UnitOfWork", "Values"]

#: A placeholder for a value that does not exist or has not been decoded yet.
NOTHING: Any = object()

_FINISHED = frozenset({StepState.SUCCESS, StepState.IGNORE})
_FORWARD = frozenset({Intention.EXECUTE, Intention.IGNORE})
_NOTHING_TO_UNDO = frozenset({StepState.PENDING, StepState.REVERTED, StepState.IGNORE})
_ENDED = frozenset({StepState.SUCCESS, StepState.FAILURE})
_BACK = frozenset({Intention.REVERT, Intention.RETRY})
_READY = frozenset({StepState.PENDING, StepState.RETRYING})


class NodeState:
    """The state of one node of a plan."""

    __slots__ = (
        "answered",
        "attempt",
        "done",
        "due",
        "failure",
        "history",
        "intention",
        "kind",
        "name",
        "number",
        "planned",
        "predecessors",
        "predecessors_left",
        "queued",
        "restart",
        "result",
        "revert_failure",
        "reverted",
        "round",
        "state",
        "step",
        "successors",
        "successors_left",
        "table",
        "undone",
        "value",
    )

    def __init__(self, planned: Node) -> None:
        self.planned: Node = planned
        self.number: int = planned.number
        self.kind: str = planned.kind
        self.step: Step | None = planned.step
        self.name: str = planned.step.name if planned.step else ""
        self.table: Table[StepState] = RETRIES if planned.kind == "retry" else TASKS
        self.predecessors: tuple[NodeState, ...] = ()
        self.successors: tuple[NodeState, ...] = ()
        self.state: StepState = StepState.PENDING
        self.intention: Intention = Intention.EXECUTE
        self.attempt: int = 0
        self.round: int = 0
        # The number of the last round that was reverted.
        self.undone: int = 0
        # For a retry, when its next attempt may start.
        self.due: float = 0.0
        self.result: str | None = None
        self.value: Any = NOTHING
        self.failure: Failure | None = None
        self.revert_failure: Failure | None = None
        self.history: list[Attempt] = []
        # For a retry, the intention that it last set for its steps in this process.
        self.answered: Intention | None = None
        # The number of direct predecessors that are not done.
        self.predecessors_left: int = 0
        # The number of direct successors that are not reverted.
        self.successors_left: int = 0
        # True if this node and all nodes before it are finished.
        self.done: bool = False
        # True if this node and all nodes after it have nothing to undo.
        self.reverted: bool = True
        # True if this node is in the queue of ready nodes.
        self.queued: bool = False
        # True if this node was running when the process exited.
        self.restart: bool = False

    def __repr__(self) -> str:
        return f"<NodeState {self.name or self.kind!r}: {self.state}/{self.intention}>"

    def saved(self) -> tuple[Any, ...]:
        """Return the node's state for `restore`, without the values that are derived from neighboring nodes."""
        return _SAVED(self)

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Restore a state that `saved` returned."""
        for name, value in zip(_SAVED_NAMES, saved, strict=True):
            setattr(self, name, value)

    def is_done(self) -> bool:
        """Return True if this node and all nodes before it are finished."""
        return not self.predecessors_left and (
            self.step is None or (self.state in _FINISHED and self.intention in _FORWARD)
        )

    def is_reverted(self) -> bool:
        """Return True if this node and all nodes after it have nothing to undo."""
        return not self.successors_left and (self.step is None or self.state in _NOTHING_TO_UNDO)

    def can_revert(self) -> bool:
        """Return True if the node can be reverted now."""
        return not self.successors_left and self.intention in _BACK and self.state in _ENDED

    def is_ready(self) -> bool:
        """Return True if the node can be executed or reverted now."""
        if self.step is None:
            return False
        can_execute = not self.predecessors_left and self.intention is Intention.EXECUTE and self.state in _READY
        return self.restart or can_execute or self.can_revert()

    @property
    def before_work(self) -> StepState:
        """The state that the node was in before it started to run."""
        if self.state is StepState.REVERTING:
            return StepState.SUCCESS if self.failure is None else StepState.FAILURE
        return StepState.PENDING

    @property
    def undo(self) -> StepFunction | None:
        """The function that reverts the node, or None if there is no function to call."""
        undo = None if self.step is None else self.step.undo
        return None if undo is None or (undo.only_if_done and self.failure is not None) else undo

    def clear(self) -> None:
        """Delete the node's results and failures, but keep its attempt count."""
        self.result, self.value = None, NOTHING
        self.failure = self.revert_failure = None
        self.history = []
        self.answered = None
        self.due = 0.0

    @property
    def effect(self) -> int:
        """The round number in the idempotency key: the first round since the node was last reverted.

        A failed attempt may already have had its effect, so the next attempt uses the same key unless a revert has
        undone the effect. A retry has no such effect, so each of its attempts gets a new key.
        """
        return self.round if self.kind == "retry" else self.undone + 1

    def row(self, codec: Codec) -> StepRow:
        """Return the row to store."""
        return StepRow(
            self.name,
            self.kind,
            self.state.value,
            self.intention.value,
            self.attempt,
            self.round,
            self.result,
            self.failure.encode() if self.failure else None,
            self.revert_failure.encode() if self.revert_failure else None,
            _encode_history(self.history, codec) if self.history else None,
            self.undone,
            self.due,
        )

    def load(self, row: StepRow, codec: Codec) -> None:
        """Load the state from a stored row.

        Raises:
            FlowError: if the row is for a task and this node is a retry, or vice versa.
        """
        if row.kind != self.kind:
            raise FlowError(
                f"{self.name!r} is a {self.kind} now, but was a {row.kind} when the flow was stored; use a "
                "different name"
            )
        self.state, self.intention = StepState(row.state), Intention(row.intention)
        self.attempt, self.round = row.attempt, row.round
        self.undone, self.due, self.result = row.undone, row.due, row.result
        self.failure = Failure.decode(row.failure) if row.failure else None
        self.revert_failure = Failure.decode(row.revert_failure) if row.revert_failure else None
        self.history = _decode_history(row.history, codec) if row.history else []


_SAVED_NAMES = (
    "answered",
    "attempt",
    "due",
    "failure",
    "history",
    "intention",
    "restart",
    "result",
    "revert_failure",
    "round",
    "state",
    "undone",
    "value",
)
_SAVED = attrgetter(*_SAVED_NAMES)


def _encode_history(history: list[Attempt], codec: Codec) -> str:
    return json.dumps(
        [[codec.encode(each.value), {name: one.encode() for name, one in each.failures.items()}] for each in history]
    )


def _decode_history(text: str, codec: Codec) -> list[Attempt]:
    return [
        Attempt(codec.decode(value), {name: Failure.decode(one) for name, one in failures.items()})
        for value, failures in json.loads(text)
    ]


class UnitOfWork:
    """Changes the state of a flow and its steps, and collects the changes to store."""

    def __init__(self, flow: FlowRow, codec: Codec, nodes: list[NodeState]) -> None:
        self._flow, self._codec = flow, codec
        self.state: FlowState = FlowState(flow.state)
        #: The current time in seconds since the epoch. The engine sets it.
        self.now: float = 0.0
        #: The nodes that became ready, in order. Some of them may no longer be ready.
        self.became_ready: list[NodeState] = []
        # The nodes to write, by number.
        self._dirty: dict[int, NodeState] = {}
        # The changes to write, in order.
        self._changes: list[Change] = []
        self._sent: list[OutboxRow] = []
        self._seq = flow.seq
        # The number of the first stored change to delete, or 0.
        self._taken_back = 0
        for node in nodes:
            node.predecessors = tuple(nodes[number] for number in node.planned.predecessors)
            node.successors = tuple(nodes[number] for number in node.planned.successors)
        self.count(nodes)

    # -- transitions --------------------------------------------------------------------------------------------------

    def move_flow(self, state: FlowState, reason: str = "") -> bool:
        """Change the flow's state. Return False if the transition is ignored.

        Raises:
            InvalidState: if the transition is not allowed.
        """
        if not FLOWS.check(self._flow.id, self.state, state, reason):
            return False
        old, self.state = self.state, state
        self._changes.append(Change("flow", self._flow.name, old, state, None, reason, 0, *self._next()))
        return True

    def move(  # the parts of a change
        self,
        node: NodeState,
        state: StepState,
        *,
        intention: Intention | None = None,
        reason: str = "",
        result: Any = None,
        text: str | None = None,
    ) -> None:
        """Change a step's state.

        Raises:
            InvalidState: if the transition is not allowed.
        """
        old = node.state
        node.table.check(node.name, old, state, reason)
        node.state = state
        if intention is not None:
            node.intention = intention
        kind, attempt = node.kind, node.attempt
        self._changes.append(Change(kind, node.name, old, state, result, reason, attempt, *self._next(), text))
        self.touch(node)

    def set_intention(self, node: NodeState, intention: Intention) -> None:
        """Set what to do with a step next."""
        if node.intention is not intention:
            node.intention = intention
            self.touch(node)

    def renew(self, node: NodeState, reason: str = "") -> None:
        """Move a step back to PENDING, and delete its results."""
        node.clear()
        if reason and node.undone != node.round:
            node.undone = node.round
            self.add(node)
        if node.state is StepState.PENDING:
            self.set_intention(node, Intention.EXECUTE)
        else:
            self.move(node, StepState.PENDING, intention=Intention.EXECUTE, reason=reason)

    def restarted(self, node: NodeState) -> None:
        """Record that a step interrupted by a crash is starting again."""
        self.add(node)
        kind, state = node.kind, node.state
        self._changes.append(Change(kind, node.name, state, state, None, "restarted", node.attempt, *self._next()))

    def touch(self, node: NodeState) -> None:
        """Mark ``node`` to be written, and update the counts that depend on its state and intention."""
        self._dirty[node.number] = node
        if node.is_done() is not node.done:
            self._count_done(node)
        if node.is_reverted() is not node.reverted:
            self._count_reverted(node)
        if node.is_ready():
            self.became_ready.append(node)

    def add(self, node: NodeState) -> None:
        """Mark ``node`` to be written, without updating its neighbors' counts."""
        self._dirty[node.number] = node

    def _next(self) -> tuple[str, int, float]:
        """Return the flow id, number and time for the next change."""
        self._seq += 1
        return self._flow.id, self._seq, self.now

    # -- readiness ----------------------------------------------------------------------------------------------------

    def count(self, nodes: list[NodeState]) -> None:
        """Recompute all counts from the states of ``nodes``."""
        for node in nodes:
            node.predecessors_left = sum(not each.done for each in node.predecessors)
            node.done = node.is_done()
        for node in reversed(nodes):
            node.successors_left = sum(not each.reverted for each in node.successors)
            node.reverted = node.is_reverted()
        self.became_ready = [node for node in nodes if node.is_ready()]

    def _count_done(self, node: NodeState) -> None:
        turned = [node]
        while turned:
            each = turned.pop()
            if each.is_done() is each.done:
                continue
            each.done = not each.done
            for other in each.successors:
                other.predecessors_left += -1 if each.done else 1
                if other.is_done() is not other.done:
                    turned.append(other)
                elif not other.predecessors_left and other.is_ready():
                    self.became_ready.append(other)

    def _count_reverted(self, node: NodeState) -> None:
        turned = [node]
        while turned:
            each = turned.pop()
            if each.is_reverted() is each.reverted:
                continue
            each.reverted = not each.reverted
            for other in each.predecessors:
                other.successors_left += -1 if each.reverted else 1
                if other.is_reverted() is not other.reverted:
                    turned.append(other)
                elif not other.successors_left and other.is_ready():
                    self.became_ready.append(other)

    # -- writing ------------------------------------------------------------------------------------------------------

    def send(self, rows: Sequence[OutboxRow]) -> None:
        """Write these sent events along with the next changes."""
        self._sent += rows

    @property
    def is_open(self) -> bool:
        """True if any changes or rows have not been written yet."""
        return bool(self._dirty or self._changes)

    @property
    def pending(self) -> int:
        """The number of changes, excluding rows, that have not been written yet."""
        return len(self._changes)

    def take_back(self, seq: int) -> None:
        """Have the next batch delete the stored changes, starting with number ``seq``."""
        self._taken_back = seq

    def drain(self) -> Batch | None:
        """Return all new changes for one transaction, or None if there are none."""
        if not self.is_open:
            return None
        nodes, self._dirty = self._dirty.values(), {}
        changes, self._changes = self._changes, []
        sent, self._sent = self._sent, []
        taken_back, self._taken_back = self._taken_back, 0
        rows = [node.row(self._codec) for node in nodes]
        return Batch(
            self._flow.id,
            self._flow.epoch,
            self.state.value,
            self._seq,
            self.now,
            rows,
            changes,
            sent=sent,
            taken_back=taken_back,
            parent=self._flow.parent,
        )


class Values:
    """The values that a flow was started with, and the results of its steps."""

    def __init__(self, plan: Plan, nodes: list[NodeState], codec: Codec, store: dict[str, Any]) -> None:
        self._plan, self._nodes, self._codec = plan, nodes, codec
        #: The values that the flow was started with.
        self.store = store

    def result_of(self, node: NodeState) -> Any:
        """Return the result of ``node``. Return `NOTHING` if it has none, or if its revert has succeeded or failed."""
        if node.result is None or node.state is StepState.REVERT_FAILURE:
            return NOTHING
        # Each step gets its own copy. Otherwise, a step that changes a value in place would affect other steps.
        return node.value if is_plain(node.value) else self._codec.decode(node.result)

    def arguments(
        self, node: NodeState, function: StepFunction, failures: Callable[[], dict[str, Failure]]
    ) -> dict[str, Any]:
        """Return the arguments for a function of ``node``.

        Raises:
            MissingDependencies: if the step that provides an argument was skipped, or if its result lacks the argument.
        """
        arguments: dict[str, Any] = {}
        for parameter, name in function.arguments.items():
            value = self._find(node, name)
            if value is not NOTHING:
                arguments[parameter] = value
            elif parameter not in function.optional:
                raise MissingDependencies(
                    f"{node.kind} {node.name!r} requires {name!r}, but no earlier step provided it; its provider may "
                    "have been skipped or reverted, or may have returned too few values"
                )
        for name in function.specials:
            if name == "history":
                arguments[name] = list(node.history)
            elif name in ("failures", "flow_failures"):
                arguments[name] = failures()
            else:
                arguments[name] = node.failure if node.failure is not None else self.result_of(node)
        return arguments

    def _find(self, node: NodeState, name: str) -> Any:
        """Return the value of ``name`` from the nearest provider."""
        assert node.step is not None
        if name in node.step.inject:
            return node.step.inject[name]
        if name in self.store:
            given = self.store[name]
            return given if is_plain(given) else self._codec.decode(self._codec.encode(given))
        for giver in self._plan.givers(node.planned, name):
            value = self._provided(self._nodes[giver.number], name)
            if value is not NOTHING:
                return value
        return NOTHING

    def _provided(self, node: NodeState, name: str) -> Any:
        value = self.result_of(node)
        return value if value is NOTHING or node.step is None else _part(value, node.step.provides[name])

    def provided(self) -> dict[str, Any]:
        """Return all values that steps provide, by name.

        If several steps provide a name, the last one in the flow wins.
        """
        return {name: values[-1] for name, values in self._gathered().items()}

    def known(self) -> dict[str, list[Any]]:
        """Return all values for each name, with those passed to the flow first."""
        known = {name: [value] for name, value in self.store.items()}
        for name, values in self._gathered().items():
            known.setdefault(name, []).extend(values)
        return known

    def _gathered(self) -> dict[str, list[Any]]:
        gathered: dict[str, list[Any]] = {}
        for name, nodes in self._plan.providers.items():
            values = (self._provided(self._nodes[node.number], name) for node in nodes)
            if there := [value for value in values if value is not NOTHING]:
                gathered[name] = there
        return gathered

    def results(self, numbers: Sequence[int]) -> dict[str, Any]:
        """Return the results of the executed steps among ``numbers``, by step name."""
        nodes = [self._nodes[number] for number in numbers]
        return {node.name: self.result_of(node) for node in nodes if node.result is not None}


def _part(value: Any, part: int | str | None) -> Any:
    """Return part of a result, or `NOTHING` if the result has no such part."""
    if part is None:
        return value
    if not isinstance(value, Mapping if isinstance(part, str) else (list, tuple)):
        return NOTHING
    try:
        return cast("Any", value)[part]
    except LookupError:
        return NOTHING

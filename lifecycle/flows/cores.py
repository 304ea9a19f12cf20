"""`Core`: the engine without its wheels. It is told what happened and says what is to be done; it never waits.

All moves of a flow and its atoms are made here, checked by the tables, and noted; `drain` gives what has to be written
in one transaction. Nothing here awaits, reads a clock or touches a store, so that every question about the engine can
be asked in a test without one. User code that is called here, deciders and ``on_failure``, is plain and quick.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from lifecycle.errors import InvalidState
from lifecycle.flows.cells import NOTHING, Cell
from lifecycle.flows.deciding import left_out
from lifecycle.flows.failures import Failure, joined
from lifecycle.flows.readiness import Readiness
from lifecycle.flows.records import Batch, Change
from lifecycle.flows.resolutions import resolve
from lifecycle.flows.retries import Attempt
from lifecycle.flows.tables import FLOWS, AtomState, FlowState, Intention
from lifecycle.flows.values import Values

if TYPE_CHECKING:
    from lifecycle.flows.codecs import Codec
    from lifecycle.flows.plans import Plan
    from lifecycle.flows.records import AtomRow, Snapshot

__all__ = ["Call", "Core", "Options"]

#: States of atoms that were at work.
_WORKING = frozenset({AtomState.RUNNING, AtomState.REVERTING, AtomState.RETRYING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How flows are run."""

    #: How many atoms of one flow may be at work at once; None: all that can.
    concurrency: int | None = None
    #: Whether a failure ends the flow as it is, with nothing undone.
    never_resolve: bool = False
    #: Whether a retry that says to revert leaves it to the one above, or else has everything undone.
    defer_reverts: bool = False

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"Options(concurrency={self.concurrency!r}) lets nothing run; give 1 or more, or None")


class Call(NamedTuple):
    """A function that is to be called now."""

    cell: Cell
    #: Whether it is undone, and not executed.
    back: bool
    arguments: dict[str, Any]


class Core:
    """One run of ``plan``, from what ``snapshot`` says on."""

    def __init__(self, plan: Plan, snapshot: Snapshot, codec: Codec, options: Options) -> None:
        self.plan, self.options = plan, options
        self.flow = snapshot.flow
        self.state = FlowState(snapshot.flow.state)
        #: Seconds since the epoch; set by who knows.
        self.now = 0.0
        #: What ends the flow as it is: reverts that failed, and what could not be asked or given.
        self.errors: list[tuple[str, Failure]] = []
        self.cells = [Cell(node) for node in plan.nodes]
        self.atoms = [cell for cell in self.cells if cell.atom is not None]
        self.values = Values(plan, self.cells, codec)
        self.values.store = codec.decode(snapshot.flow.store)
        self._codec = codec
        # What is to be written, by the number of the node; and told, in order.
        self._dirty: dict[int, Cell] = {}
        self._changes: list[Change] = []
        self._seq = snapshot.flow.seq
        # Those whose turn it is: the highest priority first, then the first in the flow.
        self._ready: list[tuple[int, int]] = []
        self._load(snapshot.atoms)
        self._readiness = Readiness(plan, self.cells)

    def _load(self, rows: dict[str, AtomRow]) -> None:
        for cell in self.atoms:
            if (row := rows.get(cell.name)) is not None:
                cell.load(row, self._codec)
            else:
                self._dirty[cell.number] = cell
        names = {cell.name for cell in self.atoms}
        strays = ((name, row.failure or row.revert_failure) for name, row in rows.items() if name not in names)
        #: What failed in atoms that are no longer there.
        self.strays = {name: Failure.decode(text) for name, text in strays if text}

    # -- the flow ------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Bring what was loaded where it can be run from: what a crash left becomes SUSPENDED, REVERTED is reset."""
        if self.state in (FlowState.RUNNING, FlowState.SUSPENDING, FlowState.RESUMING):
            self._go(FlowState.RESUMING)
            self._go(FlowState.SUSPENDED)
        elif self.state is FlowState.REVERTED:
            self.reset()

    def reset(self) -> None:
        """Forget all that was done, but not how often.

        Raises:
            InvalidState: where the flow is neither PENDING nor at its end.
        """
        if self.state not in (FlowState.PENDING, FlowState.SUCCESS, FlowState.FAILURE, FlowState.REVERTED):
            raise InvalidState(
                f"flow {self.flow.id!r} is {self.state} and cannot be reset; it can when it is SUCCESS, FAILURE or "
                "REVERTED"
            )
        for node in self.plan.resets:
            self._renew(self.cells[node.number], "reset")
        self._go(FlowState.PENDING, "reset")
        self.errors.clear()

    def begin(self) -> None:
        """Go to RUNNING.

        Raises:
            InvalidState: from where the table does not lead there.
        """
        self.errors.clear()
        self._go(FlowState.RUNNING)

    def suspend(self) -> bool:
        """Begin nothing more; False where nothing runs."""
        return self._go(FlowState.SUSPENDING)

    def end(self) -> FlowState:
        """Go where the flow has come to, when nothing is at work any more."""
        state = self._ending()
        if state is FlowState.SUSPENDED and self.state is FlowState.RUNNING:
            # Nobody asked for it: what was cancelled from outside.
            self._go(FlowState.SUSPENDING)
        self._go(state)
        return state

    def _ending(self) -> FlowState:
        states = {(cell.state, cell.intention) for cell in self.atoms}
        unresolved = (AtomState.FAILURE, Intention.EXECUTE) in states
        if self.errors or unresolved or any(state is AtomState.REVERT_FAILURE for state, _ in states):
            return FlowState.FAILURE
        if any(cell.is_ready() or cell.state in _WORKING for cell in self.atoms):
            return FlowState.SUSPENDED
        if all(state in (AtomState.SUCCESS, AtomState.IGNORE) for state, _ in states):
            return FlowState.SUCCESS
        return FlowState.REVERTED

    def error(self) -> BaseException | None:
        """What the flow failed with; one error, or a group."""
        if self.state not in (FlowState.FAILURE, FlowState.REVERTED):
            return None
        undone = [(cell.name, cell.revert_failure) for cell in self.atoms if cell.revert_failure]
        if self.state is FlowState.FAILURE and (self.errors or undone):
            return joined(self.plan.name, self.errors or undone)
        failures = [*self.failures().items(), *undone]
        return joined(self.plan.name, failures) if failures else None

    def failures(self) -> dict[str, Failure]:
        """What failed and was not tried again since, by name."""
        return {cell.name: cell.failure for cell in self.atoms if cell.failure is not None} | self.strays

    # -- what the engine does, phase by phase --------------------------------------------------------------------

    def resume(self) -> None:
        """Look at what was loaded: failures that were not answered, and what was at work when the process died."""
        if not self.options.never_resolve:
            for cell in self.atoms:
                if cell.state is AtomState.FAILURE and cell.failure is not None:
                    self._resolve(cell, cell.failure)
        for cell in self.atoms:
            if cell.state is AtomState.RETRYING:
                self._renew_after(cell)
        for cell in self.atoms:
            cell.restart = cell.state in (AtomState.RUNNING, AtomState.REVERTING)
        self._readiness.count(self.cells)
        self.look()

    def look(self) -> None:
        """Find whose turn it is, after something changed; deciders are asked here."""
        found, position = self._readiness.found, 0
        while position < len(found) and not self.errors:
            cell = found[position]
            position += 1
            if cell.queued or not cell.is_ready():
                continue
            if cell.node.votes and self._is_asked_for(cell) and not self._agreed(cell):
                continue
            assert cell.atom is not None
            cell.queued = True
            heapq.heappush(self._ready, (-cell.atom.priority, cell.number))
        found.clear()

    def _is_asked_for(self, cell: Cell) -> bool:
        return cell.state is AtomState.PENDING and cell.can_execute()

    def _agreed(self, cell: Cell) -> bool:
        """Whether its deciders agree to ``cell``; else it and what hangs on it is left out."""
        try:
            numbers = left_out(self.plan, cell.node, self.values, self.cells)
        except Exception as error:  # noqa: BLE001  # a decider's error ends the flow, and nothing else
            self.errors.append((cell.name, Failure.of(error)))
            return False
        for number in numbers:
            other = self.cells[number]
            if other.state is AtomState.PENDING:
                self._move(other, AtomState.IGNORE, intention=Intention.IGNORE)
        return not numbers

    @property
    def may_schedule(self) -> bool:
        """Whether something can begin now."""
        return self.state is FlowState.RUNNING and bool(self._ready) and not self.errors

    def schedule(self, room: int | None) -> list[Call]:
        """Begin those whose turn it is, at most ``room`` of them."""
        calls: list[Call] = []
        while self.may_schedule and (room is None or len(calls) < room):
            _, number = heapq.heappop(self._ready)
            cell = self.cells[number]
            cell.queued = False
            if not cell.is_ready():
                continue
            try:
                calls.append(self._begin(cell))
            except Exception as error:  # noqa: BLE001  # it ends the flow; the cell has not begun
                self.errors.append((cell.name, Failure.of(error)))
        return calls

    def _begin(self, cell: Cell) -> Call:
        if cell.state is AtomState.REVERTING or (cell.can_revert() and cell.intention is Intention.REVERT):
            arguments = self.values.for_reversion(cell, self.failures())
            self._start(cell, AtomState.REVERTING)
            return Call(cell, True, arguments)
        arguments = self.values.for_execution(cell)
        if cell.intention is Intention.RETRY:
            self._move(cell, AtomState.RETRYING, intention=Intention.EXECUTE)
            self._renew_after(cell)
        if not cell.restart:
            cell.round += 1
        cell.attempt += 1
        self._start(cell, AtomState.RUNNING)
        return Call(cell, False, arguments)

    def _start(self, cell: Cell, state: AtomState) -> None:
        if not cell.restart:
            self._move(cell, state)
            return
        cell.restart = False
        self._dirty[cell.number] = cell
        self._tell(cell.node.kind, cell.name, state, state, reason="restarted", attempt=cell.attempt)

    def succeeded(self, cell: Cell, text: str, value: Any) -> None:
        """It was executed, and gave ``value``."""
        cell.result, cell.value = text, value
        if cell.node.kind == "retry":
            cell.history = [*cell.history, Attempt(value)]
        self._move(cell, AtomState.SUCCESS, value, text)

    def failed(self, cell: Cell, failure: Failure) -> None:
        """It was executed, and failed; what is done about it is decided here."""
        cell.failure = failure
        self._move(cell, AtomState.FAILURE, failure, failure.encode())
        if self.options.never_resolve:
            self.errors.append((cell.name, failure))
        else:
            self._resolve(cell, failure)

    def undone(self, cell: Cell, text: str, value: Any) -> None:
        """It was undone; its revert gave ``value``."""
        cell.result, cell.value, cell.revert_result = None, NOTHING, text
        cell.history = []
        self._move(cell, AtomState.REVERTED, value, text)

    def not_undone(self, cell: Cell, failure: Failure) -> None:
        """Its revert failed, and so does the flow."""
        cell.revert_failure = failure
        self._move(cell, AtomState.REVERT_FAILURE, failure, failure.encode())
        self.errors.append((cell.name, failure))

    def cancelled(self, cell: Cell) -> None:
        """It was stopped before it had an end: as if it had not begun."""
        before = AtomState.FAILURE if cell.failure is not None else AtomState.SUCCESS
        self._move(cell, before if cell.state is AtomState.REVERTING else AtomState.PENDING, reason="cancelled")

    # -- moves ---------------------------------------------------------------------------------------------------

    def _resolve(self, cell: Cell, failure: Failure) -> None:
        try:
            intentions = resolve(self, cell, failure)
        except Exception as error:  # noqa: BLE001  # a retry's error ends the flow, and nothing else
            self.errors.append((cell.name, Failure.of(error)))
            return
        for other, intention in intentions:
            if other.intention is not intention:
                other.intention = intention
                self.touch(other)

    def _renew_after(self, retry: Cell) -> None:
        for node in self.plan.after(retry.node):
            self._renew(self.cells[node.number])

    def _renew(self, cell: Cell, reason: str = "") -> None:
        """Back to PENDING, with nothing in it."""
        cell.clear()
        if cell.state is AtomState.PENDING:
            if cell.intention is not Intention.EXECUTE:
                cell.intention = Intention.EXECUTE
                self.touch(cell)
            return
        self._move(cell, AtomState.PENDING, reason=reason, intention=Intention.EXECUTE)

    def _move(  # what a change consists of
        self,
        cell: Cell,
        state: AtomState,
        result: Any = None,
        text: str | None = None,
        *,
        reason: str = "",
        intention: Intention | None = None,
    ) -> None:
        old = cell.state
        cell.table.check(cell.name, old, state, reason)
        cell.state = state
        if intention is not None:
            cell.intention = intention
        self._tell(cell.node.kind, cell.name, old, state, result, text, reason, cell.attempt)
        self.touch(cell)

    def touch(self, cell: Cell) -> None:
        """It is to be written, and others may have to wait for it, or need not any more."""
        self._dirty[cell.number] = cell
        self._readiness.changed(cell)

    def _go(self, state: FlowState, reason: str = "") -> bool:
        if not FLOWS.check(self.flow.id, self.state, state, reason):
            return False
        old, self.state = self.state, state
        self._tell("flow", self.plan.name, old, state, reason=reason)
        return True

    def _tell(  # noqa: PLR0917  # what a change consists of; by position, as it is called twice a task
        self,
        kind: str,
        name: str,
        old: str,
        new: str,
        result: Any = None,
        text: str | None = None,
        reason: str = "",
        attempt: int = 0,
    ) -> None:
        self._seq += 1
        told = Change(kind, name, old, new, result, reason, attempt, self.flow.id, self._seq, self.now, text)
        self._changes.append(told)

    def drain(self) -> Batch | None:
        """What has changed since the last time, for one transaction; None if nothing has."""
        if not self._dirty and not self._changes:
            return None
        cells, self._dirty = self._dirty.values(), {}
        changes, self._changes = self._changes, []
        rows = [cell.row(self._codec) for cell in cells]
        return Batch(self.flow.id, self.flow.epoch, self.state.value, self._seq, self.now, rows, changes)

"""`Core`: the engine without its wheels. It is told what happened and says what is to be done; it never waits.

Nothing here awaits, reads a clock or touches a store, so that every question about the engine can be asked in a test
without one. Moves are made in the ledger, whose `drain` gives what has to be written in one transaction. User code that
is called from here, deciders and ``on_failure``, is plain and quick.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lifecycle.errors import InvalidState
from lifecycle.flows.core.cells import Cell
from lifecycle.flows.core.deciders import left_out
from lifecycle.flows.core.endings import ending
from lifecycle.flows.core.ledgers import Ledger
from lifecycle.flows.core.outcomes import answer
from lifecycle.flows.core.readiness import Readiness
from lifecycle.flows.core.values import Values
from lifecycle.flows.records import Failure
from lifecycle.flows.states import FlowState, Intention, StepState

if TYPE_CHECKING:
    from lifecycle.flows.options import Options
    from lifecycle.flows.plans.compiling import Plan
    from lifecycle.flows.records import OutboxRow, Snapshot, StepRow
    from lifecycle.flows.serializers import Codec

__all__ = ["Call", "Core"]

_STARTED = (FlowState.RUNNING, FlowState.SUSPENDING, FlowState.RESUMING)
_RESETTABLE = (FlowState.PENDING, FlowState.SUCCESS, FlowState.FAILURE, FlowState.REVERTED)


class Call(NamedTuple):
    """A function that is to be called now."""

    cell: Cell
    #: Whether it is undone, and not executed.
    back: bool
    arguments: dict[str, Any]
    #: What it sends while it is at work.
    sent: list[OutboxRow]
    #: Seconds to wait before that.
    pause: float = 0.0


class Core:
    """One run of ``plan``, from what ``snapshot`` says on."""

    options: Options
    plan: Plan

    def __init__(self, plan: Plan, snapshot: Snapshot, codec: Codec, options: Options) -> None:
        self.plan, self.options = plan, options
        self.id: str = snapshot.flow.id
        #: What ends the flow as it is: reverts that failed, and what could not be asked or given.
        self.errors: list[tuple[str, Failure]] = []
        #: Whether all is to be undone already, which nothing turns around but a reset.
        self.doomed: bool = False
        #: Those that failed at some time, by their numbers.
        self.failing: dict[int, Cell] = {}
        self.cells: list[Cell] = [Cell(node) for node in plan.nodes]
        self.steps: list[Cell] = [cell for cell in self.cells if cell.step is not None]
        self.values: Final = Values(plan, self.cells, codec)
        self.values.store = codec.decode(snapshot.flow.store)
        self._readiness = Readiness(plan, self.cells)
        self.ledger: Final = Ledger(snapshot.flow, codec, self._readiness)
        #: What the clock of the store says; set before anything is scheduled.
        self.now: float = 0.0
        # Those whose turn it is: the highest priority first, then the first in the flow.
        self._ready: list[tuple[int, int]] = []
        # Of the last `schedule`: the cells as they were before, those that it began, and the errors that there were.
        self._before: list[tuple[Cell, tuple[Any, ...]]] = []
        self._begun: list[Cell] = []
        self._errors = 0
        self._load(snapshot.steps, codec)

    def _load(self, rows: dict[str, StepRow], codec: Codec) -> None:
        for cell in self.steps:
            if (row := rows.get(cell.name)) is not None:
                cell.load(row, codec)
                if cell.failure is not None:
                    self.failing[cell.number] = cell
            else:
                self.ledger.add(cell)
        names = {cell.name for cell in self.steps}
        strays = ((name, row.failure or row.revert_failure) for name, row in rows.items() if name not in names)
        # What failed in steps that are no longer there.
        self._strays = {name: Failure.decode(text) for name, text in strays if text}

    @property
    def state(self) -> FlowState:
        """Of the flow, as it will be when all is written."""
        return self.ledger.state

    def failures(self) -> dict[str, Failure]:
        """What failed and was not tried again since, by name."""
        failing = [self.failing[number] for number in sorted(self.failing)]
        return {cell.name: cell.failure for cell in failing if cell.failure is not None} | self._strays

    # -- between runs ----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Bring what was loaded where it can be run from: what a crash left becomes SUSPENDED, REVERTED is reset."""
        if self.state in _STARTED:
            self.ledger.go(FlowState.RESUMING)
            self.ledger.go(FlowState.SUSPENDED)
        elif self.state is FlowState.REVERTED:
            self.reset()

    def reset(self) -> None:
        """Forget all that was done, but not how often.

        Raises:
            InvalidState: where the flow is neither PENDING nor at its end.
        """
        if self.state not in _RESETTABLE:
            raise InvalidState(
                f"flow {self.id!r} is {self.state} and cannot be reset; it can when it is SUCCESS, FAILURE or REVERTED"
            )
        for node in self.plan.resets:
            self._stop(self.cells[node.number])
            self.ledger.renew(self.cells[node.number], "reset")
        self.ledger.go(FlowState.PENDING, "reset")
        self.errors.clear()
        self.failing.clear()
        self.doomed = False

    def _stop(self, cell: Cell) -> None:
        """Leave the state of being at work, in which a flow that was discarded has left ``cell``."""
        if cell.state is StepState.RUNNING:
            self.ledger.move(cell, StepState.PENDING, reason="cancelled")
        elif cell.state is StepState.REVERTING:
            before = StepState.SUCCESS if cell.failure is None else StepState.FAILURE
            self.ledger.move(cell, before, reason="cancelled")

    def begin(self) -> None:
        """Go to RUNNING.

        Raises:
            InvalidState: from where the table does not lead there.
        """
        self.errors.clear()
        self.ledger.go(FlowState.RUNNING)

    def suspend(self) -> bool:
        """Begin nothing more; False where nothing runs."""
        return self.ledger.go(FlowState.SUSPENDING)

    def end(self) -> FlowState:
        """Go where the flow has come to, when nothing is at work any more."""
        state = ending(self)
        self.ledger.go(state)
        return state

    # -- what the engine does, phase by phase ------------------------------------------------------------------------

    def resume(self) -> None:
        """Look at what was loaded: failures that were not answered, and what was at work when the process died."""
        if not self.options.never_resolve:
            for cell in self.steps:
                if cell.state is StepState.FAILURE and cell.failure is not None:
                    answer(self, cell, cell.failure)
        for cell in self.steps:
            if cell.revert_failure is not None:
                # As in the run in which it failed: nothing is undone after it.
                self.errors.append((cell.name, cell.revert_failure))
            if cell.state is StepState.RETRYING:
                self._renew_after(cell)
            cell.restart = cell.state in (StepState.RUNNING, StepState.REVERTING)
        self._readiness.count(self.cells)
        self.look()

    def look(self) -> None:
        """Find whose turn it is, after something changed; deciders are asked here."""
        # It grows while it is gone through: what is left out may make room for others.
        found = self._readiness.found
        for cell in found:
            if self.errors:
                break
            if not cell.queued and cell.is_ready() and self._agreed(cell):
                assert cell.step is not None
                cell.queued = True
                heapq.heappush(self._ready, (-cell.step.priority, cell.number))
        found.clear()

    def _agreed(self, cell: Cell) -> bool:
        """Whether the deciders before ``cell`` agree to it; else it is left out, and what hangs on it."""
        if not cell.node.votes or cell.state is not StepState.PENDING:
            return True
        try:
            numbers = left_out(self.plan, cell.node, self.values, self.cells)
        except Exception as error:  # noqa: BLE001  # a decider's error ends the flow, and nothing else
            self.errors.append((cell.name, Failure.of(error)))
            return False
        for number in numbers:
            if self.cells[number].state is StepState.PENDING:
                self.ledger.move(self.cells[number], StepState.IGNORE, intention=Intention.IGNORE)
        return not numbers

    @property
    def may_schedule(self) -> bool:
        """Whether something can begin now."""
        return self.state is FlowState.RUNNING and bool(self._ready) and not self.errors

    def schedule(self, room: int | None) -> list[Call]:
        """Begin those whose turn it is, at most ``room`` of them."""
        self._before, self._begun, self._errors = [], [], len(self.errors)
        calls: list[Call] = []
        while self.may_schedule and (room is None or len(calls) < room):
            cell = self.cells[heapq.heappop(self._ready)[1]]
            cell.queued = False
            if not cell.is_ready():
                continue
            self._before.append((cell, cell.saved()))
            self._begun.append(cell)
            try:
                calls.append(self._begin(cell))
            except Exception as error:  # noqa: BLE001  # it ends the flow; the cell has not begun
                self.errors.append((cell.name, Failure.of(error)))
        return calls

    def take_back(self, seq: int) -> None:
        """Undo the last `schedule`: nothing of it was done or told. Its changes were stored, from that number on."""
        for cell, saved in reversed(self._before):
            cell.restore(saved)
            self.ledger.add(cell)
        del self.errors[self._errors :]
        self._readiness.count(self.cells)
        self._readiness.found.clear()
        for cell in self._begun:
            assert cell.step is not None
            cell.queued = True
            heapq.heappush(self._ready, (-cell.step.priority, cell.number))
        self.ledger.take_back(seq)

    def _begin(self, cell: Cell) -> Call:
        if cell.state is StepState.REVERTING or (cell.can_revert() and cell.intention is Intention.REVERT):
            arguments = self.values.for_reversion(cell, self.failures)
            self._start(cell, StepState.REVERTING)
            return Call(cell, True, arguments, [])
        arguments, pause = self.values.for_execution(cell), self._pause(cell)
        if cell.intention is Intention.RETRY:
            cell.answered = None
            self.ledger.move(cell, StepState.RETRYING, intention=Intention.EXECUTE)
            self._renew_after(cell)
        if not cell.restart:
            cell.round += 1
        cell.attempt += 1
        self._start(cell, StepState.RUNNING)
        return Call(cell, False, arguments, [], pause)

    def _pause(self, cell: Cell) -> float:
        """Seconds that a retry waits before its next attempt; what a crash has interrupted is not waited for again."""
        delay = getattr(getattr(cell.step, "retry", None), "delay", None)
        seconds: float = delay(list(cell.history)) if delay else 0.0
        if seconds <= 0:
            return 0.0
        if not cell.due:
            cell.due = self.now + seconds
            return seconds
        # A clock that was set meanwhile does not make it longer.
        return min(max(0.0, cell.due - self.now), seconds)

    def _start(self, cell: Cell, state: StepState) -> None:
        if cell.restart:
            cell.restart = False
            self.ledger.restarted(cell)
        else:
            self.ledger.move(cell, state)

    def _renew_after(self, retry: Cell) -> None:
        """Make ready for another attempt what follows ``retry``."""
        for node in self.plan.after(retry.node):
            cell = self.cells[node.number]
            self._before.append((cell, cell.saved()))
            self.ledger.renew(cell)

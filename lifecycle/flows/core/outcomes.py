"""What follows from the end of a function: of a task, of a retry, or of what undoes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from lifecycle.flows.core.cells import NOTHING
from lifecycle.flows.core.resolutions import resolve
from lifecycle.flows.records import Failure
from lifecycle.flows.retries import Attempt
from lifecycle.flows.states import StepState

if TYPE_CHECKING:
    from lifecycle.flows.core.cells import Cell
    from lifecycle.flows.core.cores import Core

__all__ = ["Given", "answer", "cancelled", "ended"]


class Given(NamedTuple):
    """What a function returned, and how that is kept."""

    text: str
    #: `NOTHING` where it is only decoded once it is asked for.
    value: Any


def ended(core: Core, cell: Cell, outcome: Given | Failure, *, back: bool) -> None:
    """It was executed or, going ``back``, undone; and gave something, or failed."""
    if isinstance(outcome, Given):
        (_undone if back else _succeeded)(core, cell, outcome)
    else:
        (_not_undone if back else _failed)(core, cell, outcome)


def _succeeded(core: Core, cell: Cell, given: Given) -> None:
    cell.result, cell.value = given
    if cell.node.kind == "retry":
        cell.history = [*cell.history, Attempt(given.value, {})]
        cell.due = 0.0
    core.ledger.move(cell, StepState.SUCCESS, result=_told(given), text=given.text)


def _failed(core: Core, cell: Cell, failure: Failure) -> None:
    """It was executed and failed; what is done about it is decided here."""
    cell.failure = failure
    core.failing[cell.number] = cell
    core.ledger.move(cell, StepState.FAILURE, result=failure, text=failure.encode())
    if core.options.never_resolve:
        core.errors.append((cell.name, failure))
    else:
        answer(core, cell, failure)


def answer(core: Core, cell: Cell, failure: Failure) -> None:
    """Ask the retries around ``cell``, and have done what they say."""
    try:
        intentions = resolve(core, cell, failure)
    except Exception as error:  # noqa: BLE001  # a retry's error ends the flow, and nothing else
        core.errors.append((cell.name, Failure.of(error)))
        return
    for other, intention in intentions:
        core.ledger.intend(other, intention)


def _undone(core: Core, cell: Cell, given: Given) -> None:
    cell.result, cell.value, cell.revert_result = None, NOTHING, given.text
    cell.history = []
    if cell.step is not None and cell.step.undo is not None:
        cell.undone = cell.round
    core.ledger.move(cell, StepState.REVERTED, result=_told(given), text=given.text)


def _told(given: Given) -> Any:
    """What is told of it; a large value is not decoded for who does not listen."""
    return None if given.value is NOTHING else given.value


def _not_undone(core: Core, cell: Cell, failure: Failure) -> None:
    """Nothing is undone after it any more."""
    cell.revert_failure = failure
    core.ledger.move(cell, StepState.REVERT_FAILURE, result=failure, text=failure.encode())
    core.errors.append((cell.name, failure))


def cancelled(core: Core, cell: Cell) -> None:
    """It was stopped before it had an end: as if it had not begun."""
    if cell.state is StepState.REVERTING:
        state = StepState.FAILURE if cell.failure is not None else StepState.SUCCESS
    else:
        state = StepState.PENDING
        # What is done then is the same, and not done anew.
        cell.round -= 1
    core.ledger.move(cell, state, reason="cancelled")

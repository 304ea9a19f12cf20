"""What a flow has come to when nothing is at work, and what it failed with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle.flows.states import FlowState, Intention, StepState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lifecycle.flows.core.cores import Core
    from lifecycle.flows.records import Failure

__all__ = ["ending", "error_of"]

_WORKING = frozenset({StepState.RUNNING, StepState.REVERTING, StepState.RETRYING})
_DONE = frozenset({StepState.SUCCESS, StepState.IGNORE})


def ending(core: Core) -> FlowState:
    """The state in which the flow is now.

    FAILURE where something could not be undone, or was not to be; SUSPENDED where something is left to do; SUCCESS
    where all is done; else it was undone, as far as it was to be.
    """
    states = {(cell.state, cell.intention) for cell in core.steps}
    unresolved = (StepState.FAILURE, Intention.EXECUTE) in states
    if core.errors or unresolved or any(state is StepState.REVERT_FAILURE for state, _ in states):
        return FlowState.FAILURE
    if any(cell.is_ready() or cell.state in _WORKING for cell in core.steps):
        return FlowState.SUSPENDED
    return FlowState.SUCCESS if all(state in _DONE for state, _ in states) else FlowState.REVERTED


def error_of(core: Core) -> BaseException | None:
    """What the flow failed with, one error or a group; None where it did not."""
    state = core.state
    if state not in (FlowState.FAILURE, FlowState.REVERTED):
        return None
    undone = [(cell.name, cell.revert_failure) for cell in core.steps if cell.revert_failure]
    if state is FlowState.FAILURE and (core.errors or undone):
        return _joined(core.plan.name, core.errors or undone)
    failures = [*core.failures().items(), *undone]
    return _joined(core.plan.name, failures) if failures else None


def _joined(flow: str, failures: Sequence[tuple[str, Failure]]) -> BaseException:
    """Return the only error, or a group of all."""
    errors = [failure.exception(name) for name, failure in failures]
    if len(errors) == 1:
        return errors[0]
    kind = ExceptionGroup if all(isinstance(each, Exception) for each in errors) else BaseExceptionGroup
    return kind(f"several tasks of the flow {flow!r} failed", errors)  # type: ignore[type-var]  # the kind fits

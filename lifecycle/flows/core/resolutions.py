"""What a failure leads to: the retries around what failed are asked, from the inside out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from lifecycle.errors import FlowError
from lifecycle.flows.retries import Verdict
from lifecycle.flows.states import Intention

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.flows.core.cells import Cell
    from lifecycle.flows.core.cores import Core
    from lifecycle.flows.plans.steps import RetryStep
    from lifecycle.flows.records import Failure

__all__ = ["resolve"]


class _Resolution(NamedTuple):
    verdict: Verdict
    #: Whose flow it is about; None: nobody was there to be asked, or it is about everything.
    retry: Cell | None


def resolve(core: Core, cell: Cell, failure: Failure) -> Iterator[tuple[Cell, Intention]]:
    """The intentions that follow from the failure of ``cell``.

    Raises:
        Exception: what a retry raised, or `FlowError` where it said what is no verdict.
    """
    resolution = _resolution(core, cell, failure)
    return iter(list(_intentions(core, resolution)))


def _resolution(core: Core, cell: Cell, failure: Failure) -> _Resolution:
    if cell.node.retry is None:
        return _Resolution(Verdict.REVERT_ALL, None)
    retry = core.cells[cell.node.retry]
    verdict = _ask(core, retry, cell, failure)
    if verdict is not Verdict.REVERT:
        return _Resolution(verdict, retry)
    above = _resolution(core, retry, failure)
    if core.options.defer_reverts or (above.retry is not None and above.verdict is not Verdict.REVERT):
        return above
    return _Resolution(Verdict.REVERT, retry)


def _ask(core: Core, retry: Cell, cell: Cell, failure: Failure) -> Verdict:
    """What ``retry`` says; it learns of the failure first, and so does the store."""
    step: RetryStep = retry.step  # type: ignore[assignment]  # only retries are asked
    if retry.history:
        failures = cast("dict[str, Failure]", retry.history[-1].failures)
        failures[cell.name] = failure
        core.ledger.touch(retry)
    said = step.retry.on_failure(**core.values.for_question(retry))
    try:
        return Verdict(said)
    except ValueError:
        raise FlowError(
            f"the retry {retry.name!r} said {said!r} of a failure, which is no verdict; return one of Verdict"
        ) from None


def _intentions(core: Core, resolution: _Resolution) -> Iterator[tuple[Cell, Intention]]:
    """What has to be said to whom; what was said before is not said again, however many fail."""
    verdict, retry = resolution
    if core.doomed:
        return
    if verdict is Verdict.REVERT_ALL or retry is None:
        core.doomed = True
        yield from ((cell, Intention.REVERT) for cell in core.steps)
        return
    intention = Intention.REVERT if verdict is Verdict.REVERT else Intention.RETRY
    if retry.answered in (intention, Intention.REVERT):
        return
    retry.answered = intention
    if intention is Intention.REVERT or retry.intention is not Intention.REVERT:
        # What is to be undone already is not turned around.
        yield retry, intention
    yield from ((core.cells[node.number], Intention.REVERT) for node in core.plan.after(retry.node))

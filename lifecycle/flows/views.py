"""What can be seen of flows at one moment, as records: how far each is, and how it is built.

The items of a flow stand in the order in which they are done, each with what follows it, so that who draws them needs
to know nothing of plans.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from lifecycle.flows.failures import Failure
from lifecycle.flows.plans.orders import order_of
from lifecycle.flows.plans.steps import RetryStep
from lifecycle.flows.tables import Intention, StepState
from lifecycle.flows.tasks import Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lifecycle.flows.patterns import Flow, Item
    from lifecycle.flows.records import FlowRow, StepRow

__all__ = ["FlowsState", "ItemInfo", "RunInfo", "StepView", "built", "failure_text", "stored", "unbuilt"]


class StepView(NamedTuple):
    """A task or a retry of a run."""

    kind: str
    state: StepState = StepState.PENDING
    intention: Intention = Intention.EXECUTE
    #: How often it was started.
    attempt: int = 0
    #: What it failed with, executing or being undone; empty where it did not.
    error: str = ""


@dataclass(frozen=True, slots=True)
class ItemInfo:
    """A task, a retry, or a flow in another."""

    name: str
    #: ``task``, ``retry``, or of a flow ``linear``, ``unordered``, ``graph``.
    kind: str
    #: Of a task or a retry; a flow in another has none of its own.
    state: str = ""
    #: What is to be done with it next.
    intention: str = ""
    #: How often it was started.
    attempt: int = 0
    #: What it failed with, executing or being undone.
    error: str = ""
    #: Of a flow: its retry, if it has one, and its items, each after those that it waits for.
    items: tuple[ItemInfo, ...] = ()
    #: For each of these the places of those that follow at once.
    follow: tuple[tuple[int, ...], ...] = ()

    def counts(self) -> dict[str, int]:
        """How many tasks and retries in it are in each state."""
        return dict(Counter(_states(self)))


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A flow that was started."""

    id: str
    name: str
    state: str
    #: What stopped it, where that was neither a task nor a wish.
    error: str
    #: What it consists of: a flow, or the one task that it is.
    root: ItemInfo


@dataclass(frozen=True, slots=True)
class FlowsState:
    """What can be seen of `Flows`."""

    #: Where they are kept.
    store: str
    #: Those that have not come to an end, the first first.
    runs: tuple[RunInfo, ...] = field(default=())


def built(flow: Item, row: FlowRow, steps: Mapping[str, StepView]) -> RunInfo:
    """The run ``row`` of ``flow``, whose tasks and retries are where ``steps`` says; those not there have not begun."""
    return RunInfo(row.id, row.name, row.state, row.error, _info(flow, steps))


def unbuilt(row: FlowRow, steps: Mapping[str, StepView]) -> RunInfo:
    """The same where nobody knows how the flow is built: its tasks and retries as they come, without an order."""
    items = tuple(_step(name, each) for name, each in steps.items())
    return RunInfo(row.id, row.name, row.state, row.error, ItemInfo(row.name, "", items=items))


def stored(row: StepRow) -> StepView:
    """What is stored of a task or a retry, as it is seen in a run."""
    failed = row.revert_failure or row.failure
    error = failure_text(Failure.decode(failed) if failed else None)
    return StepView(row.kind, StepState(row.state), Intention(row.intention), row.attempt, error)


def failure_text(failure: Failure | None) -> str:
    """A failure in a line or two; empty for none."""
    return "" if failure is None else str(failure)


def _info(item: Item, steps: Mapping[str, StepView]) -> ItemInfo:
    if isinstance(item, Task):
        return _step(item.name, steps.get(item.name) or StepView("task"))
    items, follow = order_of(item)
    infos = tuple(_info(each, steps) for each in items)
    if item.retry is None:
        return ItemInfo(item.name, item.pattern, items=infos, follow=follow)
    return _with_retry(item, infos, follow, steps)


def _with_retry(
    flow: Flow, items: tuple[ItemInfo, ...], follow: tuple[tuple[int, ...], ...], steps: Mapping[str, StepView]
) -> ItemInfo:
    """The retry is the first item, and what waits for nothing else follows it."""
    assert flow.retry is not None
    name = RetryStep(flow.retry, flow.name).name
    followers = {place for row in follow for place in row}
    first = tuple(place + 1 for place in range(len(items)) if place not in followers)
    moved = tuple(tuple(place + 1 for place in row) for row in follow)
    retry = _step(name, steps.get(name) or StepView("retry"))
    return ItemInfo(flow.name, flow.pattern, items=(retry, *items), follow=(first, *moved))


def _step(name: str, view: StepView) -> ItemInfo:
    return ItemInfo(name, view.kind, view.state, view.intention, view.attempt, view.error)


def _states(item: ItemInfo) -> Iterator[str]:
    if item.state:
        yield str(item.state)
    for each in item.items:
        yield from _states(each)

"""Descriptions of runs as records: how far each is, and how its flow is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle.flows.definition import Task
from lifecycle.flows.plan import order_of
from lifecycle.flows.records import Failure, ItemInfo, RunInfo, StepView
from lifecycle.flows.states import Intention, StepState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lifecycle.flows.definition import Flow, Item
    from lifecycle.flows.records import FlowRow, StepRow

__all__ = ["run_info", "step_view"]


def run_info(flow: Item | None, row: FlowRow, steps: Mapping[str, StepView]) -> RunInfo:
    """Describe the run ``row``. Without its ``flow`` the steps have no order; steps not in ``steps`` have not begun."""
    if flow is None:
        root = ItemInfo(row.name, "", items=tuple(_step_info(name, each) for name, each in steps.items()))
    else:
        root = _item_info(flow, steps)
    return RunInfo(row.id, row.name, row.state, row.error, root)


def step_view(row: StepRow) -> StepView:
    """Describe a stored task or retry as `Run.steps` does."""
    failed = row.revert_failure or row.failure
    error = str(Failure.decode(failed)) if failed else ""
    return StepView(row.kind, StepState(row.state), Intention(row.intention), row.attempt, error)


def _item_info(item: Item, steps: Mapping[str, StepView]) -> ItemInfo:
    if isinstance(item, Task):
        return _step_info(item.name, steps.get(item.name) or StepView("task"))
    items, follow = order_of(item)
    infos = tuple(_item_info(each, steps) for each in items)
    if item.retry is None:
        return ItemInfo(item.name, item.pattern, items=infos, follow=follow)
    return _with_retry(item, infos, follow, steps)


def _with_retry(
    flow: Flow, items: tuple[ItemInfo, ...], follow: tuple[tuple[int, ...], ...], steps: Mapping[str, StepView]
) -> ItemInfo:
    """Describe a flow whose first item is its retry, followed by the items that wait for nothing else."""
    assert flow.retry is not None
    followers = {place for row in follow for place in row}
    first = tuple(place + 1 for place in range(len(items)) if place not in followers)
    moved = tuple(tuple(place + 1 for place in row) for row in follow)
    retry = _step_info(flow.retry.name, steps.get(flow.retry.name) or StepView("retry"))
    return ItemInfo(flow.name, flow.pattern, items=(retry, *items), follow=(first, *moved))


def _step_info(name: str, view: StepView) -> ItemInfo:
    return ItemInfo(name, view.kind, view.state, view.intention, view.attempt, view.error)

"""Whether what a decider stands before is done, and what else is not if it is not."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from lifecycle.errors import FlowError
from lifecycle.flows.patterns import Depth
from lifecycle.flows.states import StepState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lifecycle.flows.core.cells import Cell
    from lifecycle.flows.core.values import Values
    from lifecycle.flows.plans.compiling import Node, Plan, Vote

__all__ = ["left_out"]

#: The narrowest first.
_WIDTHS = [Depth.STEP, Depth.NEIGHBORS, Depth.FLOW, Depth.ALL]


def left_out(plan: Plan, node: Node, values: Values, cells: Sequence[Cell]) -> list[int]:
    """What is left out if the deciders of ``node`` are asked now, itself included; nothing if all agree.

    A decider behind what was left out is not asked. What a decider raises comes out.
    """
    votes = [vote for vote in node.votes if _counts(vote, cells)]
    numbers = sorted({number for vote in votes for number in vote.sources})
    history = values.results(numbers)
    against = [vote.depth for vote in votes if not _says(vote, dict(history))]
    if not against:
        return []
    return [node.number, *_followers(plan, node, max(against, key=_WIDTHS.index))]


def _says(vote: Vote, history: dict[str, Any]) -> Any:
    verdict = vote.decider(history)
    if inspect.isawaitable(verdict):
        # Which would be a yes, whatever it comes to.
        if inspect.iscoroutine(verdict):
            verdict.close()
        raise FlowError(f"the decider {vote.decider!r} gave what has to be awaited; return whether it is to be done")
    return verdict


def _counts(vote: Vote, cells: Sequence[Cell]) -> bool:
    return not vote.sources or any(cells[number].state is not StepState.IGNORE for number in vote.sources)


def _followers(plan: Plan, node: Node, depth: Depth) -> list[int]:
    if depth is Depth.ALL:
        return [each.number for each in plan.after(node)]
    if depth is Depth.FLOW:
        return _in_flow(plan, node)
    if depth is Depth.NEIGHBORS:
        return [number for number in node.successors if plan.nodes[number].kind == "task"]
    return []


def _in_flow(plan: Plan, node: Node) -> list[int]:
    """What comes after ``node`` without leaving its flow or going into another."""
    seen: set[int] = set()
    ways = [node]
    while ways:
        for number in ways.pop().successors:
            if number not in seen and plan.nodes[number].step is not None:
                seen.add(number)
                ways.append(plan.nodes[number])
    return sorted(seen)

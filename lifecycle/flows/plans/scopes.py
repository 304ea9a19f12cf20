"""Who gives a step what it asks for.

An argument is looked for among what was said for the step alone, then in what the flow was given, then with those that
come before it, the nearest first.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING

from lifecycle.errors import MissingDependencies
from lifecycle.flows.plans.frames import precedes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from lifecycle.flows.plans.compiling import Node, Plan
    from lifecycle.flows.plans.steps import Step

__all__ = ["asked", "check", "givers"]

_number = attrgetter("number")


def givers(plan: Plan, node: Node, name: str) -> Iterator[Node]:
    """Those before ``node`` that give ``name``, the nearest first."""
    all_of_them = plan.providers.get(name, [])
    for number in range(bisect_left(all_of_them, node.number, key=_number) - 1, -1, -1):
        giver = all_of_them[number]
        if precedes((giver.frame, giver.place), (node.frame, node.place)):
            yield giver


def asked(plan: Plan) -> set[str]:
    """The names that something in the plan asks for."""
    return {name for node in plan.steps if node.step for _, _, name, _ in _arguments(node.step)}


def check(plan: Plan, known: Collection[str]) -> None:
    """That everybody will be given what he asks for; ``known`` are the names that the flow was given.

    Raises:
        MissingDependencies: naming all who would not, and what there is.
    """
    missing = [
        f"{kind} {node.step.name!r}{where} asks for {name!r}"
        for node in plan.steps
        if node.step is not None
        for kind, where, name, optional in _arguments(node.step)
        if not optional and name not in known and next(givers(plan, node, name), None) is None
    ]
    if missing:
        given = ", ".join(sorted(known)) or "nothing"
        provided = ", ".join(sorted(plan.providers)) or "nothing"
        raise MissingDependencies(
            f"flow {plan.name!r}: {'; '.join(missing)}; it was given: {given}; its tasks provide, each to those after "
            f"it: {provided}"
        )


def _arguments(step: Step) -> Iterator[tuple[str, str, str, bool]]:
    """Kind, where, name and whether it may be missing, of all that is asked for beyond what was injected."""
    wanted = [("", step.arguments, step.optional), (" (in its revert)", step.undo_arguments, step.undo_optional)]
    if step.kind == "retry":
        wanted.append((" (in on_failure)", getattr(step, "asks", {}), getattr(step, "asks_optional", frozenset())))
    for where, arguments, optional in wanted:
        for parameter, name in arguments.items():
            if name not in step.inject:
                yield step.kind, where, name, parameter in optional

"""In which order the items of one flow come: said by its pattern, by its links, and by what they ask of each other."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

from lifecycle.errors import AmbiguousDependency, FlowError
from lifecycle.flows.plans.steps import RetryStep
from lifecycle.flows.tasks import Task

if TYPE_CHECKING:
    from lifecycle.flows.patterns import Flow, Item
    from lifecycle.flows.plans.steps import Step

__all__ = ["Order", "order_of"]


class Order(NamedTuple):
    """The items so that each comes after what it waits for, and for each the places of those that follow at once."""

    items: list[Item]
    edges: tuple[tuple[int, ...], ...]


def order_of(flow: Flow) -> Order:
    """The order in ``flow``, without that within its items.

    Raises:
        FlowError: for a cycle.
        AmbiguousDependency: for a name that several items of a graph give and another asks for.
    """
    items = list(flow.items)
    if flow.pattern == "linear":
        return Order(items, tuple((place + 1,) if place + 1 < len(items) else () for place in range(len(items))))
    if flow.pattern == "unordered":
        return Order(items, ((),) * len(items))
    return _sorted(flow, _followers(flow))


def _followers(flow: Flow) -> list[set[int]]:
    """For each item of a graph, the places of those that wait for it."""
    places = {id(item): place for place, item in enumerate(flow.items)}
    givers: dict[str, list[int]] = {}
    for place, item in enumerate(flow.items):
        for name in _gives(item):
            givers.setdefault(name, []).append(place)
    followers: list[set[int]] = [set() for _ in flow.items]
    for place, item in enumerate(flow.items):
        for name in _asks(item):
            for giver in _giver(flow, name, place, givers.get(name, [])):
                followers[giver].add(place)
    for link in flow.links:
        followers[places[id(link.before)]].add(places[id(link.after)])
    return followers


def _giver(flow: Flow, name: str, place: int, givers: list[int]) -> list[int]:
    """Who of ``givers`` gives ``name`` to the item at ``place``: one or none."""
    others = [giver for giver in givers if giver != place]
    if len(others) > 1:
        names = ", ".join(repr(flow.items[giver].name) for giver in others)
        raise AmbiguousDependency(
            f"{flow!r}: {flow.items[place].name!r} asks for {name!r}, which {names} provide; rename one with "
            "provides=, or say which with rebind="
        )
    return others


def _sorted(flow: Flow, followers: list[set[int]]) -> Order:
    """Each after what it waits for; else as they were given."""
    waiting = [0] * len(followers)
    for row in followers:
        for place in row:
            waiting[place] += 1
    ready = [place for place, count in enumerate(waiting) if not count]
    order: list[int] = []
    while ready:
        place = heapq.heappop(ready)
        order.append(place)
        for follower in followers[place]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, follower)
    if len(order) < len(followers):
        raise FlowError(f"{flow!r} has a cycle: {_cycle(flow, followers, set(order))}; take one of the links away")
    places = {old: new for new, old in enumerate(order)}
    edges = tuple(tuple(sorted(places[each] for each in followers[old])) for old in order)
    return Order([flow.items[old] for old in order], edges)


def _cycle(flow: Flow, followers: list[set[int]], sorted_ones: set[int]) -> str:
    """One of the cycles among those that could not be sorted."""
    before = {follower: place for place, row in enumerate(followers) if place not in sorted_ones for follower in row}
    place = next(place for place in range(len(followers)) if place not in sorted_ones)
    way: list[int] = []
    while place not in way:
        way.append(place)
        place = before[place]
    names = [flow.items[each].name for each in [*way[way.index(place) :], place]]
    return " → ".join(reversed(names))


def _gives(item: Item) -> set[str]:
    """The names that an item gives to who comes after it."""
    if isinstance(item, Task):
        return set(item.names)
    given = {name for each in item.items for name in _gives(each)}
    return given | set(RetryStep(item.retry, item.name).names) if item.retry else given


def _asks(item: Item) -> set[str]:
    """The names that an item needs, or can use, from outside of it."""
    if isinstance(item, Task):
        return _asked_by(item)
    asked: set[str] = set()
    inside: set[str] = set()
    if item.retry:
        step = RetryStep(item.retry, item.name)
        asked |= _asked_by(step) | set(step.asks.values())
        inside |= set(step.names)
    for each in item.items:
        asked |= _asks(each) - inside
        if item.pattern == "linear":
            inside |= _gives(each)
    if item.pattern == "graph":
        asked -= {name for each in item.items for name in _gives(each)}
    return asked


def _asked_by(step: Step) -> set[str]:
    return (set(step.arguments.values()) | set(step.undo_arguments.values())) - step.inject.keys()

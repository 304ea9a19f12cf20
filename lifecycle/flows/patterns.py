"""`Flow`: what is to be done, in which order; pure description, of which nothing runs.

`linear` does one after the other, `unordered` all at once, `graph` each when what it asks for is there. Flows stand in
flows. What is wrong with one is said when it is made or, where it takes the whole to see it, when it is compiled.
"""

from __future__ import annotations

import inspect
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from lifecycle.errors import FlowError
from lifecycle.flows.retries import Retry
from lifecycle.flows.tasks import Task, task

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Depth", "Flow", "Item", "Link", "graph", "linear", "unordered"]

#: Given the results of what the links come from, by name: whether what they lead to is done at all.
Decider: TypeAlias = "Callable[[dict[str, Any]], object]"

#: What a flow consists of.
Item: TypeAlias = "Task | Flow"


class Depth(StrEnum):
    """What is left out with a task that a decider leaves out; the wider wins."""

    #: All that comes after it, in other flows too.
    ALL = "all"
    #: All that comes after it in its flow.
    FLOW = "flow"
    #: The tasks that come right after it.
    NEIGHBORS = "neighbors"
    #: Nothing else.
    STEP = "step"


class Link(NamedTuple):
    """That ``after`` comes after ``before``, and, with a decider, whether it comes at all."""

    before: Item
    after: Item
    decider: Decider | None
    depth: Depth


class Flow:
    """What is to be done; `linear`, `unordered` and `graph` make them. Also a `Task` alone will do."""

    def __init__(self, pattern: str, name: str, items: tuple[Item, ...], *, retry: Retry | None) -> None:
        self.pattern = pattern
        self.name = name
        self.items = items
        self.retry = retry
        self.links: list[Link] = []

    def __repr__(self) -> str:
        return f"<{self.pattern} {self.name!r}: {len(self.items)} items>"

    def when(self, u: Item, v: Item, decider: Decider | None = None, *, depth: str = Depth.ALL) -> Flow:
        """Do ``v`` after ``u``, and only if ``decider`` says so; returns the flow.

        The decider is given the results of all that such links lead to ``v`` from, by the name of the task, without
        those that were left out. One that says no is enough.

        Args:
            u: What comes before: one of the items.
            v: What comes after: another one.
            decider: Without one it is no more than an order, in a graph.
            depth: What is left out together with ``v``: ``all`` that follows, what follows in the same ``flow``, the
                ``neighbors`` that follow at once, or ``step``: no other.

        Raises:
            FlowError: when ``u`` or ``v`` is not in the flow, or the flow has no such order.
            ValueError: for another depth.
            TypeError: for a decider that is no function, or an async one.
        """
        if decider is not None and not _is_plain(decider):
            raise TypeError(f"when(…, {decider!r}) is no plain function; what has to be awaited is the work of a task")
        for item in (u, v):
            if not any(item is each for each in self.items):
                raise FlowError(f"{item!r} is no item of {self!r}; link what is in it: {_names(self.items)}")
        self._check_order(u, v)
        self.links.append(Link(u, v, decider, _depth(depth)))
        return self

    def _check_order(self, u: Item, v: Item) -> None:
        if self.pattern == "unordered":
            raise FlowError(f"{self!r} has no order, so nothing in it can depend on another; use graph or linear")
        places = {id(each): place for place, each in enumerate(self.items)}
        if self.pattern == "linear" and places[id(u)] + 1 != places[id(v)]:
            raise FlowError(f"in {self!r}, {v.name!r} does not follow right after {u.name!r}; use a graph")


def linear(name: str, *items: Item | Callable[..., Any], retry: Retry | None = None) -> Flow:
    """One after the other, and undone in the reverse order.

    Raises:
        FlowError: when an item is there twice.
        TypeError: for what is neither task, flow nor function.
    """
    return _flow("linear", name, items, retry)


def unordered(name: str, *items: Item | Callable[..., Any], retry: Retry | None = None) -> Flow:
    """All at once; none gets what another gives.

    Raises:
        FlowError: when an item is there twice.
        TypeError: for what is neither task, flow nor function.
    """
    return _flow("unordered", name, items, retry)


def graph(name: str, *items: Item | Callable[..., Any], retry: Retry | None = None) -> Flow:
    """Each as soon as what it asks for is there.

    Raises:
        FlowError: when an item is there twice.
        TypeError: for what is neither task, flow nor function.
    """
    return _flow("graph", name, items, retry)


def _flow(pattern: str, name: Any, items: tuple[Any, ...], retry: Retry | None) -> Flow:
    if not isinstance(name, str) or not name:
        raise TypeError(f"{pattern}({name!r}, …) is no name; give a text that is not empty")
    if retry is not None and not isinstance(retry, Retry):
        raise TypeError(f"{pattern}({name!r}, retry={retry!r}) has no execute and on_failure; give a retry")
    members = tuple(map(_item, items))
    seen: set[int] = set()
    for each in members:
        if id(each) in seen:
            raise FlowError(f"{each!r} is twice in {pattern} {name!r}; make a copy with another name: task(…, name=…)")
        seen.add(id(each))
    return Flow(pattern, name, members, retry=retry)


def _item(given: Any) -> Item:
    if isinstance(given, (Task, Flow)):
        return given
    if callable(given):
        made: Task = task(given)
        return made
    raise TypeError(f"{given!r} is neither task nor flow; write @task above the function")


def _is_plain(given: Any) -> bool:
    return callable(given) and not inspect.iscoroutinefunction(given)


def _depth(given: str) -> Depth:
    try:
        depth = given.lower()
        # TaskFlow calls a step an atom.
        return Depth.STEP if depth == "atom" else Depth(depth)
    except (ValueError, AttributeError):
        raise ValueError(f"when(depth={given!r}) is unknown; give one of {', '.join(Depth)}") from None


def _names(items: tuple[Item, ...]) -> str:
    return ", ".join(each.name for each in items) or "nothing"

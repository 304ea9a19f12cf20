"""`Plan`: a flow compiled into a single graph. Compiling finds mistakes before anything runs.

The nodes are tasks and retries, as well as a start node and an end node for each flow. These two nodes reduce the
number of edges between flows with many items. Earlier nodes have lower numbers, so running nodes in ascending order is
always valid.

An argument is looked up first among the values injected into the task, then among the values passed to the flow, and
then among the results of earlier steps, nearest first.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from lifecycle.errors import AmbiguousDependency, FlowError, MissingDependencies
from lifecycle.flows.definition import Flow, RetryStep, Task, Workflow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from lifecycle.flows.definition import Decider, Depth, Edge, Item, Part, Step, StepFunction

__all__ = ["Condition", "Node", "Plan", "compile_flow", "order_of", "precedes"]


class Condition(NamedTuple):
    """A decider, and the steps whose results it receives."""

    sources: tuple[int, ...]
    decider: Decider
    depth: Depth


class Scope(NamedTuple):
    """A flow, and its position in the enclosing flows."""

    #: The enclosing flow, and this flow's position in it.
    around: Scope | None
    place: int
    pattern: str
    #: For each item, the positions of the items directly after it.
    edges: tuple[tuple[int, ...], ...]
    #: Number of enclosing flows.
    depth: int = 0


class Node:
    """A step, or the start or end of a flow."""

    __slots__ = ("conditions", "kind", "number", "place", "predecessors", "retry", "scope", "step", "successors")

    def __init__(self, number: int, kind: str, *, scope: Scope, place: int, step: Step | None) -> None:
        self.number: int = number
        #: ``task``, ``retry``, ``start`` or ``end``.
        self.kind: str = kind
        #: The flow that contains this node, and the node's position among the flow's items. The position
        #: of a retry is -1.
        self.scope: Scope = scope
        self.place: int = place
        self.step: Step | None = step
        self.successors: list[int] = []
        self.predecessors: list[int] = []
        #: The retry that handles the step's failures. It belongs to the innermost enclosing flow that has a retry.
        self.retry: int | None = None
        #: The conditions that must be met for this node to run.
        self.conditions: list[Condition] = []


class Plan:
    """The nodes of a flow, by number. A workflow has none."""

    def __init__(self, flow: Item) -> None:
        self.flow = flow
        self.name: str = flow.name
        self.nodes: list[Node] = []
        #: The steps in the order in which they are reset: a flow's steps first, then its retry.
        self.resets: list[Node] = []
        #: The steps that provide each name, in order.
        self.providers: dict[str, list[Node]] = {}

    @property
    def steps(self) -> Iterator[tuple[Node, Step]]:
        """The nodes that are tasks or retries."""
        return ((node, node.step) for node in self.nodes if node.step is not None)

    def steps_after(self, node: Node) -> list[Node]:
        """Return the steps after ``node``, in order."""
        seen = {node.number}
        ways = [node]
        while ways:
            for number in ways.pop().successors:
                if number not in seen:
                    seen.add(number)
                    ways.append(self.nodes[number])
        return [self.nodes[number] for number in sorted(seen - {node.number}) if self.nodes[number].step is not None]

    def givers(self, node: Node, name: str) -> Iterator[Node]:
        """Yield the steps before ``node`` that provide ``name``, nearest first."""
        providers = self.providers.get(name, [])
        for number in range(bisect_left(providers, node.number, key=_number) - 1, -1, -1):
            giver = providers[number]
            if precedes((giver.scope, giver.place), (node.scope, node.place)):
                yield giver

    def required(self) -> set[str]:
        """Return the names that at least one step requires, or the parameters of a workflow."""
        if isinstance(self.flow, Workflow):
            return set(self.flow.signature.parameters)
        return {name for _, step in self.steps for _, name, _ in _arguments(step)}

    def check(self, known: Collection[str]) -> None:
        """Check that each step will get its arguments. ``known`` contains the names of the values passed to the flow.

        Raises:
            MissingDependencies: if any step would lack an argument. The error lists these steps and the available
                names.
        """
        if isinstance(self.flow, Workflow):
            self.flow.check(known)
        missing = [
            f"{step.kind} {step.name!r}{where} requires {name!r}"
            for node, step in self.steps
            for where, name, optional in _arguments(step)
            if not optional and name not in known and next(self.givers(node, name), None) is None
        ]
        if missing:
            given = ", ".join(sorted(known)) or "nothing"
            provided = ", ".join(sorted(self.providers)) or "nothing"
            raise MissingDependencies(
                f"flow {self.name!r}: {'; '.join(missing)}; values passed to the flow: {given}; "
                f"values that tasks provide to later tasks: {provided}"
            )


_number = attrgetter("number")


def _functions(step: Step) -> Iterator[tuple[str, StepFunction]]:
    yield "", step.function
    if step.undo is not None:
        yield " (in its revert)", step.undo
    if isinstance(step, RetryStep):
        yield " (in on_failure)", step.question


def _arguments(step: Step) -> Iterator[tuple[str, str, bool]]:
    """For each argument that is not injected, yield the function, the name, and whether it is optional."""
    for where, function in _functions(step):
        for parameter, name in function.arguments.items():
            if name not in step.inject:
                yield where, name, parameter in function.optional


# -- compiling ---------------------------------------------------------------------------------------------------------


def compile_flow(flow: Item) -> Plan:
    """Return the plan for ``flow``.

    Raises:
        FlowError: if a name occurs twice, or the flow has a cycle.
        AmbiguousDependency: if several tasks of a graph provide a name that another task requires.
    """
    if not isinstance(flow, (Flow, Task, Workflow)):
        raise TypeError(f"expected a workflow, a flow or a task, got {flow!r}; decorate a function with @workflow")
    plan = Plan(flow)
    if isinstance(flow, Workflow):
        return plan
    _Compiler(plan).add(flow, Scope(None, 0, "linear", ()), 0)
    _check_names(plan)
    for node, step in plan.steps:
        for name in step.provides:
            plan.providers.setdefault(name, []).append(node)
    return plan


def _check_names(plan: Plan) -> None:
    seen: set[str] = set()
    twice: set[str] = set()
    for _, step in plan.steps:
        (twice if step.name in seen else seen).add(step.name)
    if twice:
        names = ", ".join(map(repr, sorted(twice)))
        raise FlowError(
            f"flow {plan.name!r}: the name {names} occurs twice; state is stored by name, so use unique names: "
            "task(…, name=…), or retry(name=…)"
        )


class _Compiler:
    """Adds items to a plan, starting with the outermost ones."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # The first and last node of each item, by the item's identity.
        self._ends: dict[int, tuple[Node, Node]] = {}

    def add(self, item: Part, scope: Scope, place: int, retry: int | None = None) -> None:
        """Add ``item``. If a step in ``item`` fails, ``retry`` decides what happens."""
        if isinstance(item, Task):
            node = self._node("task", scope, place, item)
            node.retry = retry
            self._plan.resets.append(node)
            self._ends[id(item)] = node, node
            return
        order = order_of(item)
        inner = Scope(scope, place, item.pattern, order.edges, scope.depth + 1)
        start = head = self._node("start", scope, place)
        if item.retry is not None:
            head = self._node("retry", inner, -1, item.retry)
            head.retry = retry
            self._join(start, head)
        for position, each in enumerate(order.items):
            self.add(each, inner, position, retry if item.retry is None else head.number)
        if item.retry is not None:
            self._plan.resets.append(head)
        end = self._node("end", scope, place)
        self._ends[id(item)] = start, end
        self._wire(order, head, end)
        for edge in item.edges:
            self._add_condition(edge)

    def _node(self, kind: str, scope: Scope, place: int, step: Step | None = None) -> Node:
        node = Node(len(self._plan.nodes), kind, scope=scope, place=place, step=step)
        self._plan.nodes.append(node)
        return node

    def _join(self, before: Node, after: Node) -> None:
        before.successors.append(after.number)
        after.predecessors.append(before.number)

    def _wire(self, order: Order, head: Node, end: Node) -> None:
        """Connect the items in ``order`` to each other, ``head`` to the first items, and the last items to ``end``."""
        items, edges = order
        followers = {follower for row in edges for follower in row}
        for place, item in enumerate(items):
            first, last = self._ends[id(item)]
            if place not in followers:
                self._join(head, first)
            for follower in edges[place]:
                self._join(last, self._ends[id(items[follower])][0])
            if not edges[place]:
                self._join(last, end)
        if not items:
            self._join(head, end)

    def _add_condition(self, edge: Edge) -> None:
        if edge.decider is None:
            return
        first, last = self._ends[id(edge.before)]
        inside = self._plan.nodes[first.number : last.number + 1]
        condition = Condition(tuple(node.number for node in inside if node.step), edge.decider, edge.depth)
        for node in self._first_steps(self._ends[id(edge.after)][0]):
            node.conditions.append(condition)

    def _first_steps(self, node: Node) -> Iterator[Node]:
        if node.kind == "start":
            for number in node.successors:
                yield from self._first_steps(self._plan.nodes[number])
        elif node.step is not None:
            yield node


# -- the order of items within a flow ----------------------------------------------------------------------------------


class Order(NamedTuple):
    """Sorted items, and the positions of each item's direct successors."""

    items: list[Part]
    edges: tuple[tuple[int, ...], ...]


def order_of(flow: Flow) -> Order:
    """Return the order of the items in ``flow``, without looking inside nested flows.

    Raises:
        FlowError: if the flow has a cycle.
        AmbiguousDependency: if several items of a graph provide a name that another item requires.
    """
    items = list(flow.items)
    if flow.pattern == "linear":
        return Order(items, tuple((place + 1,) if place + 1 < len(items) else () for place in range(len(items))))
    if flow.pattern == "unordered":
        return Order(items, ((),) * len(items))
    return _sorted(flow, _followers(flow))


def _followers(flow: Flow) -> list[set[int]]:
    """For each item of a graph, return the positions of the items that wait for it."""
    places = {id(item): place for place, item in enumerate(flow.items)}
    givers: dict[str, list[int]] = {}
    for place, item in enumerate(flow.items):
        for name in _provided_by(item):
            givers.setdefault(name, []).append(place)
    followers: list[set[int]] = [set() for _ in flow.items]
    for place, item in enumerate(flow.items):
        for name in _required_by(item):
            for giver in _giver(flow, name, place, givers.get(name, [])):
                followers[giver].add(place)
    for edge in flow.edges:
        followers[places[id(edge.before)]].add(places[id(edge.after)])
    return followers


def _giver(flow: Flow, name: str, place: int, givers: list[int]) -> list[int]:
    """Return a list with at most one item: the provider of ``name`` for the item at position ``place``."""
    others = [giver for giver in givers if giver != place]
    if len(others) > 1:
        names = ", ".join(repr(flow.items[giver].name) for giver in others)
        raise AmbiguousDependency(
            f"{flow!r}: {flow.items[place].name!r} requires {name!r}, which {names} provide; rename one with "
            "provides=, or choose one with rebind="
        )
    return others


def _sorted(flow: Flow, followers: list[set[int]]) -> Order:
    """Sort the items so that each one follows the items it waits for. Keep the given order where possible."""
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
        raise FlowError(f"{flow!r} has a cycle: {_cycle(flow, followers, set(order))}; remove one of the links")
    places = {old: new for new, old in enumerate(order)}
    edges = tuple(tuple(sorted(places[each] for each in followers[old])) for old in order)
    return Order([flow.items[old] for old in order], edges)


def _cycle(flow: Flow, followers: list[set[int]], ordered: set[int]) -> str:
    """Return a cycle among the items that are not in ``ordered``."""
    before = {follower: place for place, row in enumerate(followers) if place not in ordered for follower in row}
    place = next(place for place in range(len(followers)) if place not in ordered)
    way: list[int] = []
    while place not in way:
        way.append(place)
        place = before[place]
    names = [flow.items[each].name for each in [*way[way.index(place) :], place]]
    return " → ".join(reversed(names))


def _provided_by(item: Part) -> set[str]:
    """Return the names that an item provides to later items."""
    if isinstance(item, Task):
        return set(item.provides)
    provided = {name for each in item.items for name in _provided_by(each)}
    return provided | set(item.retry.provides) if item.retry else provided


def _required_by(item: Part) -> set[str]:
    """Return the names that an item requires, or can use, from outside."""
    if isinstance(item, Task):
        return {name for _, name, _ in _arguments(item)}
    required: set[str] = set()
    inside: set[str] = set()
    if item.retry:
        required |= {name for _, name, _ in _arguments(item.retry)}
        inside |= set(item.retry.provides)
    for each in item.items:
        required |= _required_by(each) - inside
        if item.pattern == "linear":
            inside |= _provided_by(each)
    if item.pattern == "graph":
        required -= {name for each in item.items for name in _provided_by(each)}
    return required


# -- the order of steps in different flows -----------------------------------------------------------------------------


def precedes(before: tuple[Scope, int], after: tuple[Scope, int]) -> bool:
    """Return whether ``before`` is always done by the time ``after`` begins."""
    depth = min(before[0].depth, after[0].depth)
    (scope, place), (other, position) = _level(before, depth), _level(after, depth)
    while scope is not other:
        assert scope.around is not None
        assert other.around is not None
        (scope, place), (other, position) = (scope.around, scope.place), (other.around, other.place)
    return _in_order(scope, place, position)


def _level(where: tuple[Scope, int], depth: int) -> tuple[Scope, int]:
    """Return the enclosing flow at ``depth``, and the position in that flow of the item that contains ``where``."""
    scope, place = where
    for _ in range(scope.depth - depth):
        assert scope.around is not None
        scope, place = scope.around, scope.place
    return scope, place


def _in_order(scope: Scope, place: int, position: int) -> bool:
    if place < 0:
        # A retry comes before everything in its flow.
        return position >= 0
    if position < 0 or scope.pattern == "unordered":
        return False
    if scope.pattern == "linear" or position in scope.edges[place]:
        return place < position
    return _reaches(scope.edges, place, position)


def _reaches(edges: tuple[tuple[int, ...], ...], place: int, position: int) -> bool:
    seen, ways = {place}, [place]
    while ways:
        for each in edges[ways.pop()]:
            if each == position:
                return True
            if each < position and each not in seen:
                seen.add(each)
                ways.append(each)
    return False

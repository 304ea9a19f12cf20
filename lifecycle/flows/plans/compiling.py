"""`Plan`: a flow with everything in it as one graph, of which all is checked and nothing has begun.

Nodes are tasks, retries, and a start and an end for each flow, so that a flow of many in a row with another of many has
few edges. They are numbered so that what comes before has the lower number: every list of numbers in order is an order
in which all can be done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from lifecycle.errors import FlowError
from lifecycle.flows.patterns import Flow
from lifecycle.flows.plans.frames import Frame
from lifecycle.flows.plans.orders import order_of
from lifecycle.flows.plans.steps import RetryStep
from lifecycle.flows.tasks import Task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.flows.patterns import Depth, Item, Link
    from lifecycle.flows.plans.steps import Step

__all__ = ["Node", "Plan", "Vote", "compile_flow"]


class Vote(NamedTuple):
    """A decider on a link, and the steps at its beginning."""

    sources: tuple[int, ...]
    decider: Any
    depth: Depth


class Node:
    """A step, or where a flow starts or ends."""

    __slots__ = ("frame", "kind", "number", "place", "predecessors", "retry", "step", "successors", "votes")

    frame: Frame
    place: int

    def __init__(self, number: int, kind: str, *, frame: Frame, place: int, step: Step | None) -> None:
        self.number: int = number
        #: ``task``, ``retry``, ``start`` or ``end``.
        self.kind: str = kind
        #: The flow that it is in, and its place among the items there; a retry is before the first.
        self.frame, self.place = frame, place
        self.step: Step | None = step
        self.successors: list[int] = []
        self.predecessors: list[int] = []
        #: Who is asked when it fails: the retry of the innermost flow around it that has one.
        self.retry: int | None = None
        #: Who must agree before it is done.
        self.votes: list[Vote] = []


class Plan:
    """What is to be done; the nodes by their numbers."""

    def __init__(self, flow: Item) -> None:
        self.flow = flow
        self.name: str = flow.name
        self.nodes: list[Node] = []
        #: The steps in the order in which they are reset: those of a flow, then its retry.
        self.resets: list[Node] = []
        #: Those that give a name, in order.
        self.providers: dict[str, list[Node]] = {}

    @property
    def steps(self) -> Iterator[Node]:
        """The nodes that are tasks and retries."""
        return (node for node in self.nodes if node.step is not None)

    def after(self, node: Node) -> list[Node]:
        """The steps that come after ``node``, in order."""
        seen = {node.number}
        ways = [node]
        while ways:
            for number in ways.pop().successors:
                if number not in seen:
                    seen.add(number)
                    ways.append(self.nodes[number])
        return [self.nodes[number] for number in sorted(seen - {node.number}) if self.nodes[number].step is not None]


def compile_flow(flow: Item) -> Plan:
    """The plan of ``flow``.

    Raises:
        FlowError: for names that are there twice, and for a cycle; `AmbiguousDependency` for a name that several
            tasks of a graph give and another asks for.
    """
    if not isinstance(flow, (Flow, Task)):
        raise TypeError(f"{flow!r} is neither flow nor task; make one with linear, unordered, graph or task")
    plan = Plan(flow)
    _Compiler(plan).add(flow, Frame(None, 0, "linear", ()), 0)
    _check_names(plan)
    for node in plan.steps:
        assert node.step is not None
        for name in node.step.names:
            plan.providers.setdefault(name, []).append(node)
    return plan


def _check_names(plan: Plan) -> None:
    seen: set[str] = set()
    twice: set[str] = set()
    for node in plan.steps:
        assert node.step is not None
        (twice if node.step.name in seen else seen).add(node.step.name)
    if twice:
        names = ", ".join(map(repr, sorted(twice)))
        raise FlowError(
            f"flow {plan.name!r}: the name {names} is there twice; state is kept by name, so give each its own: "
            "task(…, name=…), or retry(name=…)"
        )


class _Compiler:
    """Adds items to a plan, outer before inner."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # Every item that is in the plan, by its identity: where it begins and ends.
        self._ends: dict[int, tuple[Node, Node]] = {}

    def add(self, item: Item, frame: Frame, place: int, retry: int | None = None) -> None:
        """Add ``item``; ``retry`` is who is asked when something in it fails."""
        if isinstance(item, Task):
            node = self._node("task", frame, place, item)
            node.retry = retry
            self._plan.resets.append(node)
            self._ends[id(item)] = node, node
            return
        order = order_of(item)
        inner = Frame(frame, place, item.pattern, order.edges, frame.depth + 1)
        start = head = self._node("start", frame, place)
        if item.retry is not None:
            head = self._node("retry", inner, -1, RetryStep(item.retry, item.name))
            head.retry = retry
            self._join(start, head)
        for position, each in enumerate(order.items):
            self.add(each, inner, position, retry if item.retry is None else head.number)
        if item.retry is not None:
            self._plan.resets.append(head)
        end = self._node("end", frame, place)
        self._ends[id(item)] = start, end
        self._wire(order.items, order.edges, head, end)
        for link in item.links:
            self._vote(link)

    def _node(self, kind: str, frame: Frame, place: int, step: Step | None = None) -> Node:
        node = Node(len(self._plan.nodes), kind, frame=frame, place=place, step=step)
        self._plan.nodes.append(node)
        return node

    def _join(self, before: Node, after: Node) -> None:
        before.successors.append(after.number)
        after.predecessors.append(before.number)

    def _wire(self, items: list[Item], edges: tuple[tuple[int, ...], ...], head: Node, end: Node) -> None:
        """Join the items as ``edges`` say, those before all others to ``head``, those after all to ``end``."""
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

    def _vote(self, link: Link) -> None:
        if link.decider is None:
            return
        first, last = self._ends[id(link.before)]
        inside = self._plan.nodes[first.number : last.number + 1]
        vote = Vote(tuple(node.number for node in inside if node.step is not None), link.decider, link.depth)
        for node in self._first_steps(self._ends[id(link.after)][0]):
            node.votes.append(vote)

    def _first_steps(self, node: Node) -> Iterator[Node]:
        if node.kind == "start":
            for number in node.successors:
                yield from self._first_steps(self._plan.nodes[number])
        elif node.step is not None:
            yield node

"""Diagrams of workers or of a whole program as a ``graph TD``, reduced to a size that Mermaid accepts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from lifecycle._text import plural
from lifecycle.control.records import RouteInfo, RouterState, SourceInfo
from lifecycle.flows.records import RunInfo
from lifecycle.observe.mermaid.labels import (
    lifetime_lines,
    route_lines,
    router_lines,
    source_lines,
    worker_lines,
)
from lifecycle.observe.mermaid.styles import indented, markdown, quoted
from lifecycle.runtime.records import LifetimeState
from lifecycle.workers.model import WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    from lifecycle.observe.mermaid.styles import Look

__all__ = [
    "Node",
    "SystemParts",
    "chart",
    "drawn",
    "fits",
    "fitting",
    "frame",
    "in_rows",
    "limited",
    "shape",
    "system_graph",
    "worker_node",
]

#: The types of records that a program's diagram can show.
_Record: TypeAlias = WorkerState | RunInfo | LifetimeState | RouterState | RouteInfo | SourceInfo

#: The attributes by which we recognize a record that describes a whole program.
_PROGRAM: Final = ("lifetime", "router", "routes", "sources", "workers", "tree", "flows", "runs")

#: The maximum number of lines and characters in a readable diagram. Mermaid's limits are 500 edges and 50,000
#: characters.
_LINES: Final = 540
_CHARACTERS: Final = 40_000
#: The maximum number of childless siblings per row. Invisible links move the remaining siblings to the rows below.
_ROW: Final = 8

#: The node shape for each kind.
_SHAPES: Final = {
    "supervisor": ("{{", "}}"),
    "process": ("[", "]"),
    "task": ("(", ")"),
    "thread": ("([", "])"),
    "container": ("[[", "]]"),
    "router": ("{{", "}}"),
    "route": ("[", "]"),
    "source": ("([", "])"),
    "lifetime": ("([", "])"),
    "flow": ("[[", "]]"),
    "retry": ("{{", "}}"),
}
#: The maximum number of routes, sources or flows that are shown.
_MOST: Final = 40


@dataclass(frozen=True, slots=True)
class Node:
    """A node and its children."""

    lines: Sequence[str]
    kind: str
    classes: tuple[str, ...] = ()
    children: tuple[Node, ...] = ()


def chart(body: Iterable[str], look: Look) -> str:
    """Return the text of a graph."""
    lines = list(body)
    if look.heading is not None:
        lines = frame("heading", look.heading, lines)
    return "\n".join(["graph TD", *indented([*lines, *look.definitions()])]) + "\n"


def frame(name: str, title: str, lines: Iterable[str]) -> list[str]:
    """Return ``lines`` inside a frame. Links can refer to the frame as ``name``."""
    return [f"subgraph {name}[{quoted(title)}]", *indented(lines), "end", f"class {name} frame"]


def fitting(roots: Sequence[Node]) -> list[Node]:
    """Return ``roots``. If they are too large, merge childless siblings with the same status, running ones first."""
    kept = list(roots)
    for calm in (frozenset({("running",)}), None):
        if _fit(kept):
            break
        kept = [_merged(root, calm) for root in roots]
    return kept


def drawn(node: Node, name: str) -> Iterator[str]:
    """Yield the lines for ``node`` and its descendants, whose names all begin with ``name``."""
    yield from shape(node, name)
    for number, child in enumerate(node.children):
        yield from drawn(child, f"{name}_{number}")
        yield f"{name} --> {name}_{number}"
    yield from in_rows(name, [number for number, child in enumerate(node.children) if not child.children])


def shape(node: Node, name: str) -> Iterator[str]:
    """Yield the lines for ``node``, without its children."""
    left, right = _SHAPES.get(node.kind, _SHAPES["task"])
    first, *others = [f":::{each}" for each in node.classes] or [""]
    yield f"{name}{left}{markdown(node.lines)}{right}{first}"
    yield from (f"{name}{each}" for each in others)


def in_rows(name: str, numbers: Sequence[int]) -> Iterator[str]:
    """Yield invisible links that arrange unlinked nodes in rows."""
    yield from (f"{name}_{above} ~~~ {name}_{below}" for above, below in zip(numbers, numbers[_ROW:], strict=False))


def fits(lines: Sequence[str]) -> bool:
    """Return whether a diagram with these ``lines`` is small enough for Mermaid and for readers."""
    return len(lines) <= _LINES and sum(map(len, lines)) <= _CHARACTERS


def _fit(roots: Iterable[Node]) -> bool:
    return fits([text for root in roots for text in drawn(root, "n")])


def _merged(node: Node, calm: Container[tuple[str, ...]] | None) -> Node:
    """Merge childless children of the same class into one node. If ``calm`` is set, merge only the classes in it."""
    alike = Counter(child.classes for child in node.children if not child.children)
    many = {each: number for each, number in alike.items() if number > 1 and (calm is None or each in calm)}
    kept = [_merged(child, calm) for child in node.children if child.children or child.classes not in many]
    merged = [Node([f"{number}", *classes], "process", classes) for classes, number in many.items()]
    return replace(node, children=(*kept, *merged))


# -- nodes ---------------------------------------------------------------------------------------------------------


def worker_node(state: WorkerState, look: Look) -> Node:
    """Return the node for a worker and its descendants."""
    unhealthy = state.health is not None and not state.health.healthy
    return Node(
        look.lines(state, worker_lines(state)),
        str(state.kind),
        (look.name(state, str(state.status)), *(("unhealthy",) if unhealthy else ())),
        tuple(worker_node(child, look) for child in state.children),
    )


def _lifetime_node(state: LifetimeState, look: Look) -> Node:
    status = "stopping" if state.stopping else "running"
    return Node(look.lines(state, lifetime_lines(state)), "lifetime", (look.name(state, status),))


def _router_node(part: RouterParts, look: Look) -> Node:
    state = part.state
    if state is None:
        return Node(["router"], "router", ("created",))
    status = "running" if state.running else "stopped"
    return Node(look.lines(state, router_lines(state)), "router", (look.name(state, status),))


def _route_nodes(part: RouterParts, look: Look) -> list[Node]:
    def node(info: RouteInfo) -> Node:
        name = look.name(info, "")
        return Node(look.lines(info, route_lines(info)), "route", (name,) if name else ())

    return limited(part.routes, node, "route")


def _source_nodes(part: RouterParts, look: Look) -> list[Node]:
    def node(info: SourceInfo) -> Node:
        status = "running" if info.running else "stopped"
        return Node(look.lines(info, source_lines(info)), "source", (look.name(info, status),))

    return limited(part.sources, node, "source")


def limited(records: Sequence[Any], node: Callable[[Any], Node], noun: str) -> list[Node]:
    """Return a node for each of the first ``records``, and one node with the number of remaining records."""
    nodes = [node(record) for record in records[:_MOST]]
    more = len(records) - len(nodes)
    return [*nodes, Node([f"{plural(more, noun)} more"], noun)] if more else nodes


# -- programs ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RouterParts:
    """A router with its routes and sources."""

    state: RouterState | None = None
    routes: list[RouteInfo] = field(default_factory=list[RouteInfo])
    sources: list[SourceInfo] = field(default_factory=list[SourceInfo])


@dataclass(slots=True)
class SystemParts:
    """One program's records, by type."""

    lifetimes: list[LifetimeState] = field(default_factory=list[LifetimeState])
    routers: list[RouterParts] = field(default_factory=list[RouterParts])
    workers: list[WorkerState] = field(default_factory=list[WorkerState])
    flows: list[RunInfo] = field(default_factory=list[RunInfo])

    @classmethod
    def of(cls, state: object) -> SystemParts:
        """Return the records in ``state``, which may be nested.

        Raises:
            TypeError: if an object is not a record. The message names the object.
        """
        parts = cls()
        for record in _records(state):
            parts._add(record)
        return parts

    def _add(self, record: _Record) -> None:
        if isinstance(record, WorkerState):
            self.workers.append(record)
        elif isinstance(record, RunInfo):
            self.flows.append(record)
        elif isinstance(record, LifetimeState):
            self.lifetimes.append(record)
        elif isinstance(record, RouterState):
            # A router's routes may have come before the router itself.
            router = self._last_router()
            if router.state is not None:
                self.routers.append(router := RouterParts())
            router.state = record
        elif isinstance(record, RouteInfo):
            self._last_router().routes.append(record)
        else:
            self._last_router().sources.append(record)

    def _last_router(self) -> RouterParts:
        if not self.routers:
            self.routers.append(RouterParts())
        return self.routers[-1]


def _records(state: Any) -> Iterator[_Record]:
    """Yield the records in mappings, in sequences and in records of whole programs, in order."""
    if isinstance(state, _Record):
        yield state
    elif state is not None:
        for each in _contents(state):
            yield from _records(each)


def _contents(state: Any) -> Sequence[object]:
    if isinstance(state, Mapping):
        return list(cast("Mapping[object, object]", state).values())
    if isinstance(state, Sequence) and not isinstance(state, (str, bytes, bytearray)):
        return cast("Sequence[object]", state)
    # An object with a state() method is a component, not a record.
    if not callable(getattr(state, "state", None)) and any(hasattr(state, name) for name in _PROGRAM):
        return [getattr(state, name, None) for name in _PROGRAM]
    raise TypeError(
        f"{state!r} is not part of a program; pass the state() of a lifetime, a router, a worker, a supervisor or "
        "flows, the routes() or sources() of a router, or a mapping or sequence of these"
    )


def system_graph(parts: SystemParts, flow_nodes: Sequence[Node], look: Look) -> Iterator[str]:
    """Yield the lines for a program: the lifetime at the top, and frames for each router, for workers and for flows."""
    frames = [
        *(f"router{number}" for number, _ in enumerate(parts.routers)),
        *(name for name, records in (("workers", parts.workers), ("flows", parts.flows)) if records),
    ]
    for number, state in enumerate(parts.lifetimes):
        yield from drawn(_lifetime_node(state, look), f"life{number}")
        yield from (f"life{number} --> {frame}" for frame in frames)
    for number, part in enumerate(parts.routers):
        name = "router" if part.state is None else f"router {part.state.name}"
        yield from frame(f"router{number}", name, ["direction LR", *_router_graph(part, f"r{number}", look)])
    if parts.workers:
        roots = fitting([worker_node(state, look) for state in parts.workers])
        trees = [line for number, root in enumerate(roots) for line in drawn(root, f"w{number}")]
        yield from frame("workers", "workers", trees)
    if parts.flows:
        lines = [line for number, node in enumerate(flow_nodes) for line in drawn(node, f"f_{number}")]
        yield from frame("flows", "flows", [*lines, *in_rows("f", range(len(flow_nodes)))])


def _router_graph(part: RouterParts, name: str, look: Look) -> Iterator[str]:
    """Yield the lines for a router, with its sources above and its routes below."""
    yield from drawn(_router_node(part, look), name)
    for number, source in enumerate(_source_nodes(part, look)):
        yield from drawn(source, f"{name}_s{number}")
        yield f"{name}_s{number} --> {name}"
    for number, route in enumerate(_route_nodes(part, look)):
        yield from drawn(route, f"{name}_{number}")
        yield f"{name} --> {name}_{number}"

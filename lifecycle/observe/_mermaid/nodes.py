"""Records as nodes: what each says, its shape, and its class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lifecycle._text import plural
from lifecycle.observe._mermaid.graphs import Node
from lifecycle.observe._mermaid.words import (
    lifetime_lines,
    route_lines,
    router_lines,
    source_lines,
    worker_lines,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lifecycle.control import RouteInfo, SourceInfo
    from lifecycle.observe._mermaid.looks import Look
    from lifecycle.observe._mermaid.records import RouterPart, WorkerRecord
    from lifecycle.runtime import LifetimeState

__all__ = ["lifetime_node", "route_nodes", "router_node", "some", "source_nodes", "worker_node"]

#: Routes, or sources, of one router that are shown.
_MOST: Final = 40


def worker_node(state: WorkerRecord, look: Look) -> Node:
    """A worker and all below it."""
    ill = state.health is not None and not state.health.healthy
    return Node(
        look.lines(state, worker_lines(state)),
        str(state.kind),
        (look.name(state, str(state.status)), *(("unhealthy",) if ill else ())),
        tuple(worker_node(child, look) for child in state.children),
    )


def lifetime_node(state: LifetimeState, look: Look) -> Node:
    """A lifetime."""
    status = "stopping" if state.stopping else "running"
    return Node(look.lines(state, lifetime_lines(state)), "lifetime", (look.name(state, status),))


def router_node(part: RouterPart, look: Look) -> Node:
    """A router, without what belongs to it; one that has said nothing of itself is there for its routes."""
    state = part.state
    if state is None:
        return Node(["router"], "router", ("created",))
    status = "running" if state.running else "stopped"
    return Node(look.lines(state, router_lines(state)), "router", (look.name(state, status),))


def route_nodes(part: RouterPart, look: Look) -> list[Node]:
    """The routes of a router."""

    def node(info: RouteInfo) -> Node:
        name = look.name(info, "")
        return Node(look.lines(info, route_lines(info)), "route", (name,) if name else ())

    return some(part.routes, node, "route")


def source_nodes(part: RouterPart, look: Look) -> list[Node]:
    """The sources of a router."""

    def node(info: SourceInfo) -> Node:
        status = "running" if info.running else "stopped"
        return Node(look.lines(info, source_lines(info)), "source", (look.name(info, status),))

    return some(part.sources, node, "source")


def some(records: Sequence[Any], node: Callable[[Any], Node], noun: str) -> list[Node]:
    """A node for each of ``records``; of very many only the first, and how many more there are."""
    nodes = [node(record) for record in records[:_MOST]]
    more = len(records) - len(nodes)
    return [*nodes, Node([f"{plural(more, noun)} more"], noun)] if more else nodes

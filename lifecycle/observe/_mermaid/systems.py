"""A whole program as one graph: the lifetime above, a frame for each router, one for workers, one for flows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle.observe._mermaid.flows import flow_nodes
from lifecycle.observe._mermaid.graphs import drawn, fitting, frame, in_rows
from lifecycle.observe._mermaid.nodes import lifetime_node, route_nodes, router_node, source_nodes, worker_node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.observe._mermaid.looks import Look
    from lifecycle.observe._mermaid.records import Parts, RouterPart

__all__ = ["system_graph"]


def system_graph(parts: Parts, look: Look) -> Iterator[str]:
    """Its lines: frames hang below the lifetime, as what it starts and stops."""
    frames = [
        *(f"router{number}" for number, _ in enumerate(parts.routers)),
        *(name for name, all_of_it in (("workers", parts.workers), ("flows", parts.flows)) if all_of_it),
    ]
    for number, state in enumerate(parts.lifetimes):
        yield from drawn(lifetime_node(state, look), f"life{number}")
        yield from (f"life{number} --> {frame}" for frame in frames)
    for number, part in enumerate(parts.routers):
        name = "router" if part.state is None else f"router {part.state.name}"
        yield from frame(f"router{number}", name, ["direction LR", *_router(part, f"r{number}", look)])
    if parts.workers:
        roots = fitting([worker_node(state, look) for state in parts.workers])
        trees = [line for number, root in enumerate(roots) for line in drawn(root, f"w{number}")]
        yield from frame("workers", "workers", trees)
    if parts.flows:
        nodes = flow_nodes(parts.flows, look)
        lines = [line for number, node in enumerate(nodes) for line in drawn(node, f"f_{number}")]
        yield from frame("flows", "flows", [*lines, *in_rows("f", range(len(nodes)))])


def _router(part: RouterPart, name: str, look: Look) -> Iterator[str]:
    """Sources lead into it, and it leads to routes."""
    yield from drawn(router_node(part, look), name)
    for number, source in enumerate(source_nodes(part, look)):
        yield from drawn(source, f"{name}_s{number}")
        yield f"{name}_s{number} --> {name}"
    for number, route in enumerate(route_nodes(part, look)):
        yield from drawn(route, f"{name}_{number}")
        yield f"{name} --> {name}_{number}"

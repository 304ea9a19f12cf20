"""Diagrams of what ``state()`` says, as text for `Mermaid <https://mermaid.js.org>`_.

Pure functions, from records to text: a state diagram of one worker or of the lifetime, a supervisor's tree, a flow, a
program. GitHub, documentation tools and many editors draw the text; so does Mermaid on a page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle.observe._mermaid import flows, graphs, machines, systems
from lifecycle.observe._mermaid.looks import Look
from lifecycle.observe._mermaid.nodes import worker_node
from lifecycle.observe._mermaid.records import Parts, check_flow, check_lifetime, check_worker

if TYPE_CHECKING:
    from lifecycle.observe._mermaid.looks import Label, Style
    from lifecycle.observe._mermaid.records import RunRecord, WorkerRecord
    from lifecycle.runtime import LifetimeState

__all__ = ["flow", "signal", "system", "tree", "worker"]


def worker(state: WorkerRecord, *, label: Label | None = None, style: Style | None = None) -> str:
    """A worker's life as a ``stateDiagram-v2``: every legal move, and where it is.

    Args:
        state: what a worker's ``state()`` returned.
        label: a heading, or a function from the record to what the note beside the present status says.
        style: CSS by status, or a function from the record to the status whose look it gets; see `system`.

    Raises:
        TypeError: for what is no worker's state.
        ValueError: for a status that no worker has, and for a style that no diagram can hold.
    """
    check_worker(state)
    return machines.worker_machine(state, Look.of(label, style))


def signal(state: LifetimeState, *, label: Label | None = None, style: Style | None = None) -> str:
    """A lifetime's way from the first signal to its end as a ``stateDiagram-v2``, and where it is.

    Args:
        state: what a lifetime's ``state()`` returned.
        label: as for `worker`.
        style: as for `worker`.

    Raises:
        TypeError: for what is no lifetime's state.
        ValueError: for a style that no diagram can hold.
    """
    check_lifetime(state)
    return machines.lifetime_machine(state, Look.of(label, style))


def tree(state: WorkerRecord, *, label: Label | None = None, style: Style | None = None) -> str:
    """A supervisor and all below it as a ``graph TD``, however deep it is.

    The nodes say name, status, pid, restarts, an open circuit, health and errors; their shapes tell the kinds.
    Mermaid draws some hundred nodes: in a larger tree, childless siblings of one status are one node with their number.

    Args:
        state: what a supervisor's, or any worker's, ``state()`` returned.
        label: a heading, or a function from a record to what its node says; see `system`.
        style: CSS by status, or a function from a record to the status whose look it gets; see `system`.

    Raises:
        TypeError: for what is no worker's state.
        ValueError: for a style that no diagram can hold.
    """
    check_worker(state)
    look = Look.of(label, style)
    [root] = graphs.fitting([worker_node(state, look)])
    return graphs.chart(graphs.drawn(root, "w"), look)


def flow(state: RunRecord, *, label: Label | None = None, style: Style | None = None) -> str:
    """A flow as a ``graph TD``: its tasks and retries with the state of each, what follows what, flows within it.

    Of a flow that is too large to be drawn, tasks of one state are one node with their number; where that is not
    enough, so is each flow within it.

    Args:
        state: what ``run.info()`` returned, or one of ``flows.state().runs``.
        label: a heading, or a function from an item to what its node says; see `system`.
        style: CSS by status, or a function from an item to the status whose look it gets; see `system`.

    Raises:
        TypeError: for what is no flow's.
        ValueError: for a style that no diagram can hold.
    """
    check_flow(state)
    look = Look.of(label, style)
    return graphs.chart(flows.flow_graph(state, look), look)


def system(state: object, *, label: Label | None = None, style: Style | None = None) -> str:
    """A whole program as one ``graph TD``: its lifetime, its routers with sources and routes, its workers, its flows.

    Args:
        state: what ``state()`` of a lifetime, a router, a worker, a supervisor or `Flows` returned, what
            ``routes()`` and ``sources()`` of a router did, or a mapping or sequence of such, in any depth; or a record
            that has some of them as ``lifetime``, ``router``, ``routes``, ``sources``, ``workers``, ``flows``. Routes
            and sources belong to the router that they come after. ``None`` is left out.
        label: a heading; or a function from a record to what its node says, with line ends, and ``None`` for what
            it would say anyway.
        style: a mapping from status to CSS, such as ``{"running": "fill:#ffffff,stroke:#000000"}``, over the look
            that the status has; or a function from a record to the status whose look it gets, and ``None`` for its
            own. Beside the statuses of a worker there is ``unhealthy``, which lies over them.

    Raises:
        TypeError: naming what is none of these.
        ValueError: for a style that no diagram can hold.
    """
    parts, look = Parts.of(state), Look.of(label, style)
    return graphs.chart(systems.system_graph(parts, look), look)

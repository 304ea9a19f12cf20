"""Diagrams of what ``state()`` returns, as text for `Mermaid <https://mermaid.js.org>`_.

Pure functions from records to text: a state diagram of one worker or of the lifetime, a supervisor's tree, a flow, a
program. GitHub, documentation tools and many editors draw the text; so does Mermaid on a page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle.flows.records import RunInfo
from lifecycle.observe.mermaid import graphs, state_diagrams
from lifecycle.observe.mermaid.flow_graphs import flow_graph, flow_nodes
from lifecycle.observe.mermaid.styles import Look
from lifecycle.runtime.lifetimes import LifetimeState
from lifecycle.workers.model import WorkerState

if TYPE_CHECKING:
    from lifecycle.observe.mermaid.styles import Label, Style

__all__ = ["flow", "signal", "system", "tree", "worker"]


def worker(state: WorkerState, *, label: Label | None = None, style: Style | None = None) -> str:
    """Draw a worker as a ``stateDiagram-v2``: every transition, and its present status.

    Args:
        state: what a worker's ``state()`` returned.
        label: a heading, or a function from the record to the note beside the present status.
        style: CSS by status, or a function from the record to the status whose look it gets; see `system`.

    Raises:
        TypeError: if it is not a worker's state.
        ValueError: for an unknown status, and for a style that a diagram cannot contain.
    """
    _check_worker(state)
    return state_diagrams.worker_diagram(state, Look.of(label, style))


def signal(state: LifetimeState, *, label: Label | None = None, style: Style | None = None) -> str:
    """Draw a lifetime as a ``stateDiagram-v2``, from the first signal to its end, and its present state.

    Args:
        state: what a lifetime's ``state()`` returned.
        label: as for `worker`.
        style: as for `worker`.

    Raises:
        TypeError: if it is not a lifetime's state.
        ValueError: for a style that a diagram cannot contain.
    """
    if not isinstance(state, LifetimeState):
        raise TypeError(f"{state!r} is not a lifetime's state; give life.state(), for instance current().state()")
    return state_diagrams.lifetime_diagram(state, Look.of(label, style))


def tree(state: WorkerState, *, label: Label | None = None, style: Style | None = None) -> str:
    """Draw a supervisor and its descendants as a ``graph TD``.

    The nodes show name, status, pid, restarts, an open circuit, health and errors; their shapes show the kinds.
    Mermaid draws some hundred nodes: in a larger tree, childless siblings of one status are one node with their number.

    Args:
        state: what a supervisor's, or any worker's, ``state()`` returned.
        label: a heading, or a function from a record to the label of its node; see `system`.
        style: CSS by status, or a function from a record to the status whose look it gets; see `system`.

    Raises:
        TypeError: if it is not a worker's state.
        ValueError: for a style that a diagram cannot contain.
    """
    _check_worker(state)
    look = Look.of(label, style)
    [root] = graphs.fitting([graphs.worker_node(state, look)])
    return graphs.chart(graphs.drawn(root, "w"), look)


def flow(state: RunInfo, *, label: Label | None = None, style: Style | None = None) -> str:
    """Draw a flow as a ``graph TD``: its tasks and retries with their states and order, and nested flows.

    If it is too large, tasks of one state are one node with their number; if that is not enough, so is each nested
    flow.

    Args:
        state: what ``run.info()`` returned, or one of ``flows.state().runs``.
        label: a heading, or a function from an item to the label of its node; see `system`.
        style: CSS by status, or a function from an item to the status whose look it gets; see `system`.

    Raises:
        TypeError: if it is not the record of a run.
        ValueError: for a style that a diagram cannot contain.
    """
    if not isinstance(state, RunInfo):
        raise TypeError(f"{state!r} is not the record of a run; give run.info(), or one of flows.state().runs")
    look = Look.of(label, style)
    return graphs.chart(flow_graph(state, look), look)


def system(state: object, *, label: Label | None = None, style: Style | None = None) -> str:
    """Draw a whole program as one ``graph TD``: lifetime, routers with sources and routes, workers and flows.

    Args:
        state: what ``state()`` of a lifetime, a router, a worker, a supervisor or `Flows` returned, what
            ``routes()`` and ``sources()`` of a router did, or a mapping or sequence of such, in any depth; or a record
            that has some of them as ``lifetime``, ``router``, ``routes``, ``sources``, ``workers``, ``flows``. Routes
            and sources belong to the router that they come after. ``None`` is left out.
        label: a heading; or a function from a record to the label of its node, with line ends, and ``None`` for the
            usual one.
        style: a mapping from status to CSS, such as ``{"running": "fill:#ffffff,stroke:#000000"}``, over the look
            that the status has; or a function from a record to the status whose look it gets, and ``None`` for its
            own. In addition to the statuses of a worker there is ``unhealthy``, which is applied over them.

    Raises:
        TypeError: naming an object that is none of these.
        ValueError: for a style that a diagram cannot contain.
    """
    parts, look = graphs.SystemParts.of(state), Look.of(label, style)
    return graphs.chart(graphs.system_graph(parts, flow_nodes(parts.flows, look), look), look)


def _check_worker(state: WorkerState) -> None:
    if not isinstance(state, WorkerState):
        raise TypeError(f"{state!r} is not a worker's state; give worker.state(), or supervisor.state()")

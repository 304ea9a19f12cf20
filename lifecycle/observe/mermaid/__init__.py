"""Diagrams of the records returned by ``state()``, as text for `Mermaid <https://mermaid.js.org>`_.

The functions convert records to text. Workers and lifetimes become state diagrams. Supervisor trees, flows and programs
become graphs. GitHub, documentation tools and many editors can render the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle.flows.records import RunInfo
from lifecycle.observe.mermaid import graphs, state_diagrams
from lifecycle.observe.mermaid.flow_graphs import flow_graph, flow_nodes
from lifecycle.observe.mermaid.styles import Look
from lifecycle.runtime.records import LifetimeState
from lifecycle.workers.model import WorkerState

if TYPE_CHECKING:
    from lifecycle.observe.mermaid.styles import Label, Style

__all__ = ["flow", "signal", "system", "tree", "worker"]


def worker(state: WorkerState, *, label: Label | None = None, style: Style | None = None) -> str:
    """Draw a worker as a ``stateDiagram-v2`` that shows all transitions and the current status.

    Args:
        state: The result of a worker's ``state()``.
        label: A heading, or a function that returns the note next to the current status.
        style: CSS per status, or a function that returns the status whose style applies. See `system`.

    Raises:
        TypeError: if ``state`` is not a worker's state.
        ValueError: if the status is unknown, or a style cannot be used in a diagram.
    """
    _check_worker(state)
    return state_diagrams.worker_diagram(state, Look.of(label, style))


def signal(state: LifetimeState, *, label: Label | None = None, style: Style | None = None) -> str:
    """Draw a lifetime as a ``stateDiagram-v2``, from running through shutdown to exit, and mark its current state.

    Args:
        state: The result of a lifetime's ``state()``.
        label: The same as for `worker`.
        style: The same as for `worker`.

    Raises:
        TypeError: if ``state`` is not a lifetime's state.
        ValueError: if a style cannot be used in a diagram.
    """
    if not isinstance(state, LifetimeState):
        raise TypeError(f"{state!r} is not a lifetime's state; pass life.state(), for example current().state()")
    return state_diagrams.lifetime_diagram(state, Look.of(label, style))


def tree(state: WorkerState, *, label: Label | None = None, style: Style | None = None) -> str:
    """Draw a supervisor and its descendants as a ``graph TD``.

    Each node shows a worker's name, status, PID, restarts, open circuit, health and errors. Its shape indicates the
    kind of worker. Mermaid can draw a few hundred nodes. In larger trees, childless siblings with the same status are
    combined into one node with their count.

    Args:
        state: The result of ``state()`` for a supervisor or any other worker.
        label: A heading, or a function that returns the label of each record's node. See `system`.
        style: CSS per status, or a function that returns, for each record, the status whose style applies. See
            `system`.

    Raises:
        TypeError: if ``state`` is not a worker's state.
        ValueError: if a style is invalid in a diagram.
    """
    _check_worker(state)
    look = Look.of(label, style)
    [root] = graphs.fitting([graphs.worker_node(state, look)])
    return graphs.chart(graphs.drawn(root, "w"), look)


def flow(state: RunInfo, *, label: Label | None = None, style: Style | None = None) -> str:
    """Draw a flow as a ``graph TD`` that shows its tasks, retries and nested flows with their states and order.

    If the flow is too large, tasks with the same state are merged into one node that shows how many there are. If the
    graph is still too large, each nested flow also becomes a single node.

    Args:
        state: The result of ``run.info()``, or an element of ``flows.state().runs``.
        label: A heading, or a function that returns the label of each item's node. See `system`.
        style: CSS per status, or a function that returns, for each item, the status whose style applies. See `system`.

    Raises:
        TypeError: if ``state`` is not a run's record.
        ValueError: if a style cannot be used in a diagram.
    """
    if not isinstance(state, RunInfo):
        raise TypeError(f"{state!r} is not a run's record; pass run.info(), or an element of flows.state().runs")
    look = Look.of(label, style)
    return graphs.chart(flow_graph(state, look), look)


def system(state: object, *, label: Label | None = None, style: Style | None = None) -> str:
    """Draw a whole program as one ``graph TD``: its lifetime, routers with sources and routes, workers and flows.

    Args:
        state: The ``state()`` of a lifetime, a router, a worker, a supervisor or `Flows`, or the ``routes()`` or
            ``sources()`` of a router. It can also be a mapping or sequence of these, nested to any depth, or a record
            with some of the attributes ``lifetime``, ``router``, ``routes``, ``sources``, ``workers`` and ``flows``.
            Routes and sources belong to the preceding router. ``None`` is ignored.
        label: A heading, or a function that takes a record and returns the label of its node. A label can have several
            lines. If the function returns ``None``, the node has its default label.
        style: A mapping from status to CSS, such as ``{"running": "fill:#ffffff,stroke:#000000"}``, which replaces the
            default CSS. It can also be a function that takes a record and returns the status whose style applies, or
            ``None`` for the record's own status. The additional status ``unhealthy`` is applied on top of a worker's
            status.

    Raises:
        TypeError: if ``state`` contains any other object. The message names the object.
        ValueError: if a style cannot be used in a diagram.
    """
    parts, look = graphs.SystemParts.of(state), Look.of(label, style)
    return graphs.chart(graphs.system_graph(parts, flow_nodes(parts.flows, look), look), look)


def _check_worker(state: WorkerState) -> None:
    if not isinstance(state, WorkerState):
        raise TypeError(f"{state!r} is not a worker's state; pass worker.state() or supervisor.state()")

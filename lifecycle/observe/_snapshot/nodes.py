"""A snapshot as a flat table: each thing under an id that stays its own, with that of what it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lifecycle.observe._snapshot.encoding import unpacked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lifecycle.observe._snapshot.views import FlowView, ItemView, PoolView, RouterView, Snapshot, WorkerView

__all__ = ["nodes", "router_ids"]

_Node = dict[str, Any]


def nodes(snapshot: Snapshot) -> dict[str, _Node]:
    """``snapshot`` as nodes by id, each after its parent.

    A node has ``id``, ``kind``, ``parent`` (an id, or None), ``name``, ``status`` and the fields of its record. One
    that could not be asked is ``unknown``, and has an ``error``. What grows by itself with time is left out, so that a
    node that is equal has not changed.
    """
    table = _Table()
    program = table.add("program", "program", None, "running", _without(unpacked(snapshot.program), "uptime"))
    if snapshot.lifetime is not None:
        state = _without(unpacked(snapshot.lifetime), "workers")
        table.add("lifetime", "lifetime", program, "stopping" if state["stopping"] else "running", state)
    for router in snapshot.routers:
        _router(table, program, router)
    for worker in snapshot.workers:
        _worker(table, program, worker)
    for pool in snapshot.pools:
        _pool(table, program, pool)
    for flows in snapshot.flows:
        own = {"store": flows.store, "runs": len(flows.runs), "name": flows.store}
        parent = table.add("flows", "component", program, _well(flows.error), own | _told(flows.error))
        for run in flows.runs:
            _flow(table, parent, run)
    for queue in snapshot.queues:
        # Its name says what its store says, which need not stay the same.
        table.add("queue", "queue", program, _well(queue.error), unpacked(queue))
    for inbox in snapshot.inboxes:
        table.add(f"inbox:{inbox.name}", "inbox", program, _well(inbox.error), unpacked(inbox))
    for other in snapshot.others:
        own = {"name": other.name, "class": other.kind, "state": other.state}
        table.add(f"component:{other.name}", "component", program, _well(other.error), own | _told(other.error))
    return table.nodes


def router_ids(names: Iterable[str]) -> list[str]:
    """The ids of the nodes of routers with these names, in the order in which a snapshot has them."""
    table = _Table()
    return [table.add(f"router:{name}", "router", None, "", {}) for name in names]


class _Table:
    """Nodes by their ids, none of which is given twice."""

    def __init__(self) -> None:
        self.nodes: dict[str, _Node] = {}

    def add(self, wanted: str, kind: str, parent: str | None, status: str, own: _Node) -> str:
        """Put a node in, and return its id: ``wanted``, with a number where somebody has that already."""
        given, count = wanted, 1
        while given in self.nodes:
            count += 1
            given = f"{wanted}#{count}"
        own.update(id=given, kind=kind, parent=parent, status=status)
        own.setdefault("name", kind)
        self.nodes[given] = own
        return given


def _without(own: _Node, *names: str) -> _Node:
    """``own`` without what grows by itself, or is a node of its own."""
    for name in names:
        del own[name]
    return own


def _told(error: str | None) -> _Node:
    return {} if error is None else {"error": error}


def _well(error: str | None) -> str:
    return "running" if error is None else "unknown"


def _router(table: _Table, program: str, router: RouterView) -> None:
    own = unpacked(router)
    parts = {each: own.pop(each) for each in ("routes", "lanes", "sources", "taps")}
    status = "unknown" if router.error else "running" if router.running else "stopped"
    parent = table.add(f"router:{router.name}", "router", program, status, own)
    for route in parts["routes"]:
        table.add(f"{parent}/route:{route['pattern']}", "route", parent, "running", {"name": route["pattern"], **route})
    for lane in parts["lanes"]:
        table.add(f"{parent}/lane:{lane['name']}", "lane", parent, _lane_status(lane), lane)
    for source in parts["sources"]:
        table.add(f"{parent}/source:{source['name']}", "source", parent, _source_status(source), source)
    for tap in parts["taps"]:
        table.add(f"{parent}/tap:{tap['pattern']}", "tap", parent, "running", {"name": tap["pattern"], **tap})


def _lane_status(lane: _Node) -> str:
    if lane["waiting"] >= lane["limit"]:
        return "full"
    return "busy" if lane["running"] or lane["waiting"] else "idle"


def _source_status(source: _Node) -> str:
    if source["running"]:
        return "held" if source["held"] else "running"
    return "failed" if source["failures"] else "stopped"


def _worker(table: _Table, parent: str, worker: WorkerView, at: str = "worker:", kind: str = "") -> str:
    own = _without(unpacked(worker, without="children"), "uptime", "children")
    what = kind or ("supervisor" if worker.kind == "supervisor" else "worker")
    own["type"] = own["kind"]
    node = table.add(f"{at}{worker.name}", what, parent, worker.status, own)
    for each in worker.children:
        _worker(table, node, each, f"{node}/", "member" if each.kind == "member" else "")
    return node


def _pool(table: _Table, program: str, pool: PoolView) -> None:
    node = _worker(table, program, pool.worker, "pool:", "pool")
    table.nodes[node] |= {"stats": pool.stats, **_told(pool.error)}


def _flow(table: _Table, parent: str, run: FlowView) -> None:
    own = {"name": run.name, "flow": run.id, "state": run.state, "error": run.error}
    node = table.add(f"flow:{run.id}", "flow", parent, run.state.lower(), own)
    _item(table, node, run.root)


def _item(table: _Table, parent: str, item: ItemView) -> None:
    own = _without(unpacked(item, without="items"), "items")
    own["type"] = own["kind"]
    node = table.add(f"{parent}/{item.name}", "item", parent, item.state.lower(), own)
    for each in item.items:
        _item(table, node, each)

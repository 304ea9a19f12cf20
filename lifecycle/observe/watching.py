"""`nodes` flattens a snapshot to a table, and `watch` yields changes, at most once per interval.

All watchers of a lifetime share one observation. After each snapshot, it listens to hooks only until the first change,
so even under load, it handles at most one hook call per interval.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from lifecycle import hooks
from lifecycle._async import start_task
from lifecycle._durations import in_seconds
from lifecycle.observe.snapshots import needed_lifetime, snapshot_of, to_dict

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Self

    from lifecycle._durations import Duration
    from lifecycle.flows.records import ItemInfo, RunInfo
    from lifecycle.observe.snapshots import PoolView, RouterView, Snapshot, WorkerView
    from lifecycle.runtime.lifetimes import Lifetime

__all__ = ["Update", "Watch", "nodes", "router_ids", "watch"]

_Node = dict[str, Any]
_Nodes = dict[str, _Node]
_Changes = dict[str, _Node | None]


# -- the table -----------------------------------------------------------------------------------------------------


def nodes(snapshot: Snapshot) -> dict[str, _Node]:
    """Return the nodes in ``snapshot`` by id, each one after its parent.

    A node has ``id``, ``kind``, ``parent`` (an id or None), ``name``, ``status`` and the fields of its record. If a
    component's state could not be read, its node has the status ``unknown`` and an ``error``. Values that change merely
    because time passes are left out, so two nodes are equal unless something else has changed.
    """
    table = _Table()
    program = table.add("program", "program", None, "running", _without(to_dict(snapshot.program), "uptime"))
    if snapshot.lifetime is not None:
        state = _without(to_dict(snapshot.lifetime), "workers")
        table.add("lifetime", "lifetime", program, "stopping" if state["stopping"] else "running", state)
    for router in snapshot.routers:
        _router(table, program, router)
    for worker in snapshot.workers:
        _worker(table, program, worker)
    for pool in snapshot.pools:
        _pool(table, program, pool)
    for flows in snapshot.flows:
        own = {"store": flows.store, "runs": len(flows.runs), "name": flows.store}
        parent = table.add("flows", "component", program, _status(flows.error), own | _error(flows.error))
        for run in flows.runs:
            _flow(table, parent, run)
    for queue in snapshot.queues:
        # The id does not contain the queue's name, because that is the name of the queue's store and may change.
        table.add("queue", "queue", program, _status(queue.error), to_dict(queue))
    for inbox in snapshot.inboxes:
        table.add(f"inbox:{inbox.name}", "inbox", program, _status(inbox.error), to_dict(inbox))
    for other in snapshot.others:
        own = {"name": other.name, "class": other.kind, "state": other.state}
        table.add(f"component:{other.name}", "component", program, _status(other.error), own | _error(other.error))
    return table.nodes


def router_ids(names: Iterable[str]) -> list[str]:
    """Return the ids of routers with these names, in the order in which a snapshot lists them."""
    table = _Table()
    return [table.add(f"router:{name}", "router", None, "", {}) for name in names]


class _Table:
    """A collection of nodes with unique ids."""

    def __init__(self) -> None:
        self.nodes: dict[str, _Node] = {}

    def add(self, wanted: str, kind: str, parent: str | None, status: str, own: _Node) -> str:
        """Add a node and return its id: ``wanted``, with a number appended if another node already has that id."""
        id_, count = wanted, 1
        while id_ in self.nodes:
            count += 1
            id_ = f"{wanted}#{count}"
        own.update(id=id_, kind=kind, parent=parent, status=status)
        own.setdefault("name", kind)
        self.nodes[id_] = own
        return id_


def _without(own: _Node, *names: str) -> _Node:
    """Remove fields that change as time passes, and fields that become separate nodes."""
    for name in names:
        del own[name]
    return own


def _error(error: str | None) -> _Node:
    return {} if error is None else {"error": error}


def _status(error: str | None) -> str:
    return "running" if error is None else "unknown"


def _router(table: _Table, program: str, router: RouterView) -> None:
    own = to_dict(router)
    parts = {each: own.pop(each) for each in ("routes", "lanes", "sources")}
    status = "unknown" if router.error else "running" if router.running else "stopped"
    parent = table.add(f"router:{router.name}", "router", program, status, own)
    for route in parts["routes"]:
        table.add(f"{parent}/route:{route['pattern']}", "route", parent, "running", {"name": route["pattern"], **route})
    for lane in parts["lanes"]:
        table.add(f"{parent}/lane:{lane['name']}", "lane", parent, _lane_status(lane), lane)
    for source in parts["sources"]:
        table.add(f"{parent}/source:{source['name']}", "source", parent, _source_status(source), source)


def _lane_status(lane: _Node) -> str:
    if lane["waiting"] >= lane["limit"]:
        return "full"
    return "busy" if lane["running"] or lane["waiting"] else "idle"


def _source_status(source: _Node) -> str:
    if source["running"]:
        return "held" if source["held"] else "running"
    return "failed" if source["failures"] else "stopped"


def _worker(table: _Table, parent: str, worker: WorkerView, at: str = "worker:", kind: str = "") -> str:
    own = _without(to_dict(worker, without="children"), "uptime", "children")
    what = kind or ("supervisor" if worker.kind == "supervisor" else "worker")
    own["type"] = own["kind"]
    node = table.add(f"{at}{worker.name}", what, parent, worker.status, own)
    for each in worker.children:
        _worker(table, node, each, f"{node}/", "member" if each.kind == "member" else "")
    return node


def _pool(table: _Table, program: str, pool: PoolView) -> None:
    node = _worker(table, program, pool.worker, "pool:", "pool")
    table.nodes[node] |= {"stats": pool.stats, **_error(pool.error)}


def _flow(table: _Table, parent: str, run: RunInfo) -> None:
    own = {"name": run.name, "flow": run.id, "state": run.state, "error": run.error}
    status = run.state if " " in run.state else run.state.lower()
    node = table.add(f"flow:{run.id}", "flow", parent, status, own)
    _item(table, node, run.root)


def _item(table: _Table, parent: str, item: ItemInfo) -> None:
    own = _without(to_dict(item, without="items"), "items")
    own["type"] = own["kind"]
    node = table.add(f"{parent}/{item.name}", "item", parent, item.state.lower(), own)
    for each in item.items:
        _item(table, node, each)


# -- watching ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Update:
    """The changes since the last update."""

    snapshot: Snapshot
    #: The new and changed nodes by id; None for a node that was removed. The first update contains all nodes.
    nodes: _Changes


def watch(*components: object, interval: Duration = 0.2) -> Watch:
    """Return an async iterator of `Update` for the program or, if you pass any, for ``components``.

    The first update is available immediately and contains everything. After that, there is an update whenever something
    has changed, but at most one every ``interval`` seconds. A slow reader gets the latest state and the differences
    from the last update it read, not a backlog. With ``async with watch() as changes``, the iterator is closed when the
    block exits.

    Raises:
        LookupError: if you pass no components and there is no current lifetime.
        ValueError: if ``interval`` is not greater than 0.
    """
    pause = in_seconds("interval", interval)
    return Watch(_Observation(None, components) if components else _observation_of(needed_lifetime()), pause)


class Watch:
    """Updates for one reader, as returned by `watch`."""

    def __init__(self, observation: _Observation, interval: float) -> None:
        self._observation: _Observation | None = observation
        self._interval = interval
        self._seen: _View | None = None
        # The earliest time for the next update, in event loop time.
        self._due = 0.0
        self._ended = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration, even if a task is waiting for the next update."""
        self._observation = None
        self._ended.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Update:
        while self._observation is not None:
            looking = start_task(self._observation.newer(self._seen, self._interval, self._due))
            ending = start_task(self._ended.wait())
            try:
                await asyncio.wait([looking, ending], return_when=asyncio.FIRST_COMPLETED)
            finally:
                looking.cancel()
                ending.cancel()
                await asyncio.wait([looking, ending])
            if not looking.cancelled():
                view = looking.result()
                self._due = asyncio.get_running_loop().time() + self._interval
                change = view.since(self._seen)
                self._seen = view
                if change:
                    return Update(view.snapshot, change)
        raise StopAsyncIteration


class _View:
    """The program's state at one moment."""

    def __init__(self, snapshot: Snapshot, at: float) -> None:
        self.snapshot = snapshot
        self.nodes: _Nodes = nodes(snapshot)
        #: When the snapshot was taken, in event loop time.
        self.at = at
        # Caches the differences from an earlier view, because most readers last received the same view.
        self._known: tuple[_View, _Changes] | None = None

    def since(self, before: _View | None) -> _Changes:
        """Return the differences from ``before``."""
        if before is None:
            return dict(self.nodes)
        if self._known is None or self._known[0] is not before:
            self._known = before, _difference(before.nodes, self.nodes)
            # Drop the link to the view that precedes it. Otherwise, each view would keep all earlier ones in memory.
            before._known = None  # noqa: SLF001  # an instance of the same class
        return self._known[1]


def _difference(old: _Nodes, new: _Nodes) -> _Changes:
    changed: _Changes = {key: node for key, node in new.items() if old.get(key) != node}
    for key in old.keys() - new.keys():
        changed[key] = None
    return changed


class _Observation:
    """Takes snapshots for all watchers, no more often than the fastest watcher needs them."""

    def __init__(self, lifetime: Lifetime | None, components: tuple[object, ...] = ()) -> None:
        # Use a weak reference, so that watching a lifetime does not keep it alive.
        self._lifetime = None if lifetime is None else ref(lifetime)
        self._components = components
        self._loop = asyncio.get_running_loop()
        self._latest: _View | None = None
        self._changed = asyncio.Event()
        self._listening = False

    async def newer(self, than: _View | None, interval: float, due: float) -> _View:
        """Wait for a change and until the time ``due``, and return a view that may differ from ``than``."""
        while True:
            latest, now = self._latest, self._loop.time()
            if latest is None:
                return self._look(now)
            if latest is than and not self._changed.is_set():
                await self._changed.wait()
            elif now < due:
                await asyncio.sleep(due - now)
            elif latest is than or (self._changed.is_set() and now >= latest.at + interval):
                return self._look(now)
            else:
                return latest

    def _look(self, now: float) -> _View:
        self._changed.clear()
        self._listen()
        lifetime = None if self._lifetime is None else self._lifetime()
        components = self._components if lifetime is None else lifetime.components()
        self._latest = view = _View(snapshot_of(lifetime, components), now)
        return view

    def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            for hook in _HOOKS:
                hook.connect(self._on_change, weak=True)

    def _on_change(self, _sender: object, **_: object) -> None:
        """Handle a hook call, which may come from another thread."""
        if _running_loop() is self._loop:
            self._note_change()
        else:
            with suppress(RuntimeError):  # the loop may be closed
                self._loop.call_soon_threadsafe(self._note_change)

    def _note_change(self) -> None:
        """Record a change, and stop listening until the next snapshot."""
        if self._listening:
            self._listening = False
            for hook in _HOOKS:
                hook.disconnect(self._on_change)
        self._changed.set()


#: All hooks except those that cannot affect a snapshot.
_HOOKS: tuple[hooks.Hook, ...] = tuple(
    hook
    for hook in (getattr(hooks, name) for name in hooks.__all__)
    if isinstance(hook, hooks.Hook) and hook not in (hooks.forced_exit, hooks.hook_finished, hooks.critical_finished)
)

#: The observation that each lifetime's watchers share. All references are weak.
_shared: WeakKeyDictionary[Lifetime, ref[_Observation]] = WeakKeyDictionary()


def _observation_of(lifetime: Lifetime) -> _Observation:
    known = _shared.get(lifetime)
    observation = None if known is None else known()
    if observation is None:
        observation = _Observation(lifetime)
        _shared[lifetime] = ref(observation)
    return observation


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None

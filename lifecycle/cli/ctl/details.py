"""What a person is told of each node of the state besides its name and its status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lifecycle.cli.listing import ago, several, short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lifecycle.cli.ctl.trees import Node

__all__ = ["called", "details", "is_shown", "kind"]

#: Figures of a pool that say how it is; the others are for diagrams.
_STATS: Final = ("idle", "busy", "degraded", "starting", "stopping", "queued")


def is_shown(node: Node, parent: Node | None = None) -> bool:
    """Whether a person wants to see it: what is as always is of no interest, and of routes tells `routes`."""
    match node["kind"]:
        case "route" | "tap":
            return False
        case "lane":
            return bool(node["status"] != "idle")
        case "item":  # a flow is a task that consists of others
            return parent is None or parent["kind"] != "flow"
        case "lifetime":
            return node["status"] != "running" or bool(details(node))
        case "component":  # `lifecycle ctl` is there because of a log of events, which need not be the program's
            return node.get("class") != "EventLog" or bool(details(node))
        case _:
            return True


def details(node: Node) -> str:
    """What else there is to say; nothing for most of those that are well."""
    tell = _TELLING.get(node["kind"], _nothing)
    error = node.get("error")
    return ", ".join([*tell(node), *([short(str(error))] if error else ())])


def called(node: Node) -> str:
    """Its name; a store of flows goes by what is in it."""
    return "flows" if "store" in node else str(node["name"])


def kind(node: Node) -> str:
    """What it is, more exactly than where it belongs."""
    if node["kind"] == "component":
        return "store" if "store" in node else str(node.get("class", "component"))
    return str(node["type"] if node["kind"] in ("worker", "item") else node["kind"])


def _nothing(_: Node) -> Iterator[str]:
    yield from ()


def _program(node: Node) -> Iterator[str]:
    yield f"pid {node['pid']}"
    if node["started_at"]:
        yield f"since {ago(node['started_at'])}"
    yield f"Python {node['python']}"


def _lifetime(node: Node) -> Iterator[str]:
    if node["stopping"]:
        yield str(node["reason"])
    yield from _several(node, tasks_crashed="crashed task")


def _router(node: Node) -> Iterator[str]:
    yield from _counted(node, handled="handled", failed="failed", dropped="dropped", unrouted="unrouted")


def _lane(node: Node) -> Iterator[str]:
    yield from _counted(node, running="at work")
    if node["waiting"]:
        yield f"{node['waiting']} waiting (at most {node['limit']})"


def _source(node: Node) -> Iterator[str]:
    yield from _several(node, failures="failure")


def _worker(node: Node) -> Iterator[str]:
    if node["pid"] is not None:
        yield f"pid {node['pid']}"
    if node["started_at"] and node["status"] in ("running", "suspended"):
        yield f"since {ago(node['started_at'])}"
    yield from _several(node, restarts="restart")
    if node["circuit"] != "closed":
        yield "given up"
    if (health := node["health"]) and not health["healthy"]:
        yield f"not well: {health['message']}".rstrip(": ")


def _pool(node: Node) -> Iterator[str]:
    stats: dict[str, Any] = node.get("stats") or {}
    yield from _worker(node)
    yield from _counted(stats, **{name: name for name in _STATS})


def _flow(node: Node) -> Iterator[str]:
    yield f"id {node['flow']}"


def _component(node: Node) -> Iterator[str]:
    if "store" in node:
        yield str(node["store"]).strip("<>")
    state: dict[str, Any] = node.get("state") or {}
    if node.get("class") == "EventLog" and state.get("path"):
        yield str(state["path"])


def _item(node: Node) -> Iterator[str]:
    if node["attempt"] > 1:
        yield f"attempt {node['attempt']}"


def _queue(node: Node) -> Iterator[str]:
    yield from (f"{count} {state}" for state, count in node["depths"].items() if count)


def _counted(node: dict[str, Any], **names: str) -> Iterator[str]:
    """What there is at least one of."""
    yield from (f"{node[field]} {name}" for field, name in names.items() if node.get(field))


def _several(node: dict[str, Any], **names: str) -> Iterator[str]:
    """The same, of what can be counted."""
    yield from (several(count, name) for field, name in names.items() if (count := node.get(field)))


_TELLING: Final[dict[str, Callable[[Node], Iterator[str]]]] = {
    "program": _program,
    "lifetime": _lifetime,
    "router": _router,
    "lane": _lane,
    "source": _source,
    "worker": _worker,
    "supervisor": _worker,
    "member": _worker,
    "pool": _pool,
    "flow": _flow,
    "item": _item,
    "component": _component,
    "queue": _queue,
    "inbox": _queue,
}

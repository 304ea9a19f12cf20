"""What a person is told of each node of the state besides its name and its status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lifecycle.cli.listing import ago, short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lifecycle.cli.ctl.trees import Node

__all__ = ["details", "is_shown"]

#: Figures of a pool that say how it is; the others are for diagrams.
_STATS: Final = ("idle", "busy", "degraded", "starting", "stopping", "queued")


def is_shown(node: Node) -> bool:
    """Whether a person wants to see it: of routes and idle lanes there are many, and `routes` tells of them."""
    return node["kind"] not in ("route", "tap") and (node["kind"], node["status"]) != ("lane", "idle")


def details(node: Node) -> str:
    """What else there is to say; nothing for most of those that are well."""
    tell = _TELLING.get(node["kind"], _nothing)
    error = node.get("error")
    return ", ".join([*tell(node), *([short(str(error))] if error else ())])


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
    yield from _counted(node, tasks_crashed="tasks crashed")


def _router(node: Node) -> Iterator[str]:
    yield from _counted(node, handled="handled", failed="failed", dropped="dropped", unrouted="unrouted")


def _lane(node: Node) -> Iterator[str]:
    yield from _counted(node, running="at work")
    if node["waiting"]:
        yield f"{node['waiting']} of {node['limit']} waiting"


def _source(node: Node) -> Iterator[str]:
    yield from _counted(node, failures="failures")


def _worker(node: Node) -> Iterator[str]:
    if node["pid"] is not None:
        yield f"pid {node['pid']}"
    if node["started_at"] and node["status"] in ("running", "suspended"):
        yield f"since {ago(node['started_at'])}"
    yield from _counted(node, restarts="restarts")
    if node["circuit"] != "closed":
        yield "given up"
    if (health := node["health"]) and not health["healthy"]:
        yield f"not well: {health['message']}".rstrip(": ")


def _pool(node: Node) -> Iterator[str]:
    stats: dict[str, Any] = node.get("stats") or {}
    yield from _worker(node)
    yield from _counted(stats, **{name: name for name in _STATS})


def _flow(node: Node) -> Iterator[str]:
    yield str(node["flow"])


def _item(node: Node) -> Iterator[str]:
    if node["attempt"] > 1:
        yield f"attempt {node['attempt']}"


def _queue(node: Node) -> Iterator[str]:
    yield from (f"{count} {state}" for state, count in node["depths"].items() if count)


def _counted(node: dict[str, Any], **names: str) -> Iterator[str]:
    """What there is at least one of."""
    yield from (f"{node[field]} {name}" for field, name in names.items() if node.get(field))


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
    "board": _queue,
    "inbox": _queue,
}

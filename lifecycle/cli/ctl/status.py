"""`lifecycle ctl status`: the state of a program as a table, once or as it changes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lifecycle._text import plural, printable, shorten, time_of_day
from lifecycle.cli.ctl.client import choose
from lifecycle.cli.ctl.printing import Table, live, rich_console, show, show_json
from lifecycle.cli.output import DONE, FAILED, ago, print_result, stderr_console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lifecycle.cli.ctl.client import Client, Stream
    from lifecycle.cli.ctl.commands import Request

__all__ = ["Node", "Tree", "details", "is_shown", "state_table", "status"]

_HEADING: Final = ("name", "kind", "status", "")
#: Seconds after which a table at a terminal is drawn again without news.
_REDRAWN: Final = 1.0

Node: TypeAlias = dict[str, Any]
_Placed: TypeAlias = tuple[int, Node]

#: Figures of a pool that say how it is; the others are for diagrams.
_STATS: Final = ("idle", "busy", "degraded", "starting", "stopping", "queued")


def status(request: Request) -> int:
    """Show it; with --watch until Ctrl+C, until nobody reads any more, or until the program has ended (a failure)."""
    client = choose(request.program)
    watching = request.arguments["watch"]
    if request.json and not watching:
        show_json(client.get("/api/state"))
        return DONE
    with client.stream("/api/state/stream", sys.stdout) as stream:
        if not watching:
            tree = Tree()
            tree.update([stream.first()])
            show(state_table(tree, client.name))
            return DONE
        read = _as_json(client, stream) if request.json else _as_it_changes(stream, client.name)
        if not read or stream.unread:
            return DONE
    stderr_console().warning(f"{client.name} has ended")
    return FAILED


def _as_json(client: Client, stream: Stream) -> bool:
    """The whole state, one line per change, in the same form as without --watch; False if the reader has gone."""
    while not stream.ended:
        # Several changes that came together are one.
        if stream.take() and not show_json(client.get("/api/state"), line=True):
            return False
    return True


def _as_it_changes(stream: Stream, name: str) -> bool:
    """A table that is drawn anew, or lines; whether somebody has read them all."""
    tree, screen = Tree(), rich_console()
    if screen is not None:
        with live(screen) as draw:
            while not stream.ended:
                # Also without news: the times in it pass.
                tree.update(stream.take(_REDRAWN))
                draw(state_table(tree, name))
        return True
    said = {name: _told(node) for name, node in tree.update([stream.first()]).items()}
    return show(state_table(tree, name)) and all(print_result(sys.stdout, _lines(message, said)) for message in stream)


def _lines(message: Any, said: dict[str, str]) -> str:
    """A line for each node of which there is something to say that has not been ``said``."""
    report = {name: _told(node) for name, node in message["nodes"].items()}
    new = {name: text for name, text in report.items() if said.get(name) != text}
    said |= report
    return "".join(
        f"{time_of_day(message['time'], milliseconds=True)} {printable(name)}: {text}\n" for name, text in new.items()
    )


def _told(node: Node | None) -> str:
    return "gone" if node is None else printable(", ".join(filter(None, (node["status"], details(node)))))


def state_table(tree: Tree, name: str) -> Table:
    """The tree of the program that is asked by this ``name``."""
    return Table(_HEADING, [_row(depth, node, name) for depth, node in tree.walk(is_shown)])


def _row(depth: int, node: Node, program: str) -> tuple[str, ...]:
    name = program if node["kind"] == "program" else called(node)
    return "  " * depth + name, kind(node), node["status"], details(node)


class Tree:
    """What lives in a program."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}

    def update(self, messages: Iterable[Any]) -> dict[str, Node | None]:
        """Take what has changed; give the nodes that did, None for those that are gone."""
        changed: dict[str, Node | None] = {}
        for message in messages:
            changed |= message["nodes"]
        for name, node in changed.items():
            if node is None:
                self._nodes.pop(name, None)
            else:
                self._nodes[name] = node
        return changed

    def walk(self, is_shown: Callable[[Node, Node | None], bool] = lambda _node, _parent: True) -> Iterator[_Placed]:
        """Each node and how deep it stands, parents before their children.

        Of one that, with its parent, is not ``is_shown`` the children stand in its place.
        """
        children: dict[str | None, list[Node]] = {}
        for node in self._nodes.values():
            parent = node["parent"] if node["parent"] in self._nodes else None
            children.setdefault(parent, []).append(node)
        left = [(0, node) for node in reversed(children.get(None, ()))]
        while left:
            depth, node = left.pop()
            if is_shown(node, self._nodes.get(node["parent"])):
                yield depth, node
                depth += 1
            left += [(depth, child) for child in reversed(children.get(node["id"], ()))]

    def of(self, *kinds: str) -> list[Node]:
        """The nodes of these kinds."""
        return [node for node in self._nodes.values() if node["kind"] in kinds]

    def below(self, node: Node) -> list[Node]:
        """Those at the end of each branch below ``node``; itself, if there is none."""
        children = [each for each in self._nodes.values() if each["parent"] == node["id"]]
        return [leaf for child in children for leaf in self.below(child)] or [node]

    def get(self, name: str) -> Node | None:
        """The node with this id."""
        return self._nodes.get(name)


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
    return ", ".join([*tell(node), *([shorten(str(error))] if error else ())])


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
    yield from (plural(count, name) for field, name in names.items() if (count := node.get(field)))


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

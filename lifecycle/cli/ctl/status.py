"""`lifecycle ctl status`: a program's state as a table, shown once or continuously."""

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
#: The number of seconds between redraws of a table at a terminal. Redrawing keeps the displayed durations current.
_REDRAW_INTERVAL: Final = 1.0

Node: TypeAlias = dict[str, Any]

#: The pool statistics shown in the table. The rest are for diagrams.
_STATS: Final = ("idle", "busy", "degraded", "starting", "stopping", "queued")


def status(request: Request) -> int:
    """Show the state.

    With --watch, continue until Ctrl+C, or until the reader closes the output or the program exits.
    """
    client = choose(request.program)
    watching = request.arguments["watch"]
    if not watching:
        if request.json:
            show_json(client.get("/api/state"))
        else:
            show(state_table(Tree.of_program(client), client.name))
        return DONE
    with client.stream("/api/state/stream", sys.stdout) as stream:
        read = _as_json(client, stream) if request.json else _as_it_changes(stream, client.name)
        if not read or stream.unread:
            return DONE
    stderr_console().warning(f"{client.name} has exited")
    return FAILED


def _as_json(client: Client, stream: Stream) -> bool:
    """Print the complete state on one line after each change. Returns False if the reader has closed the output."""
    while not stream.ended:
        # Changes that arrive together produce one line.
        if stream.take() and not show_json(client.get("/api/state"), line=True):
            return False
    return True


def _as_it_changes(stream: Stream, name: str) -> bool:
    """Redraw a table, or print a line for each change. Returns False if the reader has closed the output."""
    tree, screen = Tree(), rich_console()
    if screen is not None:
        with live(screen) as draw:
            while not stream.ended:
                tree.update(stream.take(_REDRAW_INTERVAL))
                draw(state_table(tree, name))
        return True
    shown = {name: _describe(node) for name, node in tree.update([stream.first()]).items()}
    return show(state_table(tree, name)) and all(print_result(sys.stdout, _lines(message, shown)) for message in stream)


def _lines(message: Any, shown: dict[str, str]) -> str:
    """Return a line for each node whose text has changed since ``shown``."""
    texts = {name: _describe(node) for name, node in message["nodes"].items()}
    new = {name: text for name, text in texts.items() if shown.get(name) != text}
    shown |= texts
    time = time_of_day(message["time"], milliseconds=True)
    return "".join(f"{time} {printable(name)}: {text}\n" for name, text in new.items())


def _describe(node: Node | None) -> str:
    return "gone" if node is None else printable(", ".join(filter(None, (node["status"], details(node)))))


def state_table(tree: Tree, name: str) -> Table:
    """Return the table for the program with this name."""
    return Table(_HEADING, [_row(depth, node, name) for depth, node in tree.walk(is_shown)])


def _row(depth: int, node: Node, program: str) -> tuple[str, ...]:
    name = program if node["kind"] == "program" else _name(node)
    return "  " * depth + name, _kind(node), node["status"], details(node)


class Tree:
    """A program's components as a tree of nodes, updated by messages."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}

    @classmethod
    def of_program(cls, client: Client) -> Tree:
        """Return a program's current components."""
        tree = cls()
        tree.update([client.get("/api/nodes")])
        return tree

    def update(self, messages: Iterable[Any]) -> dict[str, Node | None]:
        """Apply messages, and return the changed nodes. The value for a removed node is None."""
        changed: dict[str, Node | None] = {}
        for message in messages:
            changed |= message["nodes"]
        for name, node in changed.items():
            if node is None:
                self._nodes.pop(name, None)
            else:
                self._nodes[name] = node
        return changed

    def walk(
        self, is_shown: Callable[[Node, Node | None], bool] = lambda _node, _parent: True
    ) -> Iterator[tuple[int, Node]]:
        """Yield nodes with their depth, parents before children. ``is_shown`` receives a node and its parent.

        A hidden node is replaced by its children.
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
        """Return the nodes of these kinds."""
        return [node for node in self._nodes.values() if node["kind"] in kinds]

    def below(self, node: Node) -> list[Node]:
        """Return the leaves below ``node``, or ``node`` itself if it has no children."""
        children = [each for each in self._nodes.values() if each["parent"] == node["id"]]
        return [leaf for child in children for leaf in self.below(child)] or [node]

    def get(self, name: str) -> Node | None:
        """Return the node with this id, or None."""
        return self._nodes.get(name)


def is_shown(node: Node, parent: Node | None = None) -> bool:
    """Return whether the table shows a node. It hides routes, which have their own command, and other minor nodes."""
    match node["kind"]:
        case "route" | "tap":
            return False
        case "lane":
            return bool(node["status"] != "idle")
        case "item":  # the table does not show the tasks of a flow
            return parent is None or parent["kind"] != "flow"
        case "lifetime":
            return node["status"] != "running" or bool(details(node))
        case "component":  # `lifecycle ctl` itself may have created the event log
            return node.get("class") != "EventLog" or bool(details(node))
        case _:
            return True


def details(node: Node) -> str:
    """Return details beyond the name and status. Most healthy nodes have none."""
    describe = _DETAILS.get(node["kind"])
    found = [*describe(node)] if describe is not None else []
    if error := node.get("error"):
        found.append(shorten(str(error)))
    return ", ".join(found)


def _name(node: Node) -> str:
    """Return the name of a node. A flow store is called "flows"."""
    return "flows" if "store" in node else str(node["name"])


def _kind(node: Node) -> str:
    """Return a component's class or type, or its kind if it has neither."""
    if node["kind"] == "component":
        return "store" if "store" in node else str(node.get("class", "component"))
    return str(node["type"] if node["kind"] in ("worker", "item") else node["kind"])


def _program(node: Node) -> Iterator[str]:
    yield f"pid {node['pid']}"
    if node["started_at"]:
        yield f"since {ago(node['started_at'])}"
    yield f"Python {node['python']}"


def _lifetime(node: Node) -> Iterator[str]:
    if node["stopping"]:
        yield str(node["reason"])
    yield from _plurals(node, tasks_crashed="crashed task")


def _router(node: Node) -> Iterator[str]:
    yield from _counts(node, handled="handled", failed="failed", dropped="dropped", unrouted="unrouted")


def _lane(node: Node) -> Iterator[str]:
    yield from _counts(node, running="running")
    if node["waiting"]:
        yield f"{node['waiting']} waiting (limit {node['limit']})"


def _source(node: Node) -> Iterator[str]:
    yield from _plurals(node, failures="failure")


def _worker(node: Node) -> Iterator[str]:
    if node["pid"] is not None:
        yield f"pid {node['pid']}"
    if node["started_at"] and node["status"] in ("running", "suspended"):
        yield f"since {ago(node['started_at'])}"
    yield from _plurals(node, restarts="restart")
    if node["circuit"] != "closed":
        yield "given up"
    if (health := node["health"]) and not health["healthy"]:
        yield f"unhealthy: {health['message']}".rstrip(": ")


def _pool(node: Node) -> Iterator[str]:
    stats: dict[str, Any] = node.get("stats") or {}
    yield from _worker(node)
    yield from _counts(stats, **{name: name for name in _STATS})


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


def _counts(node: dict[str, Any], **names: str) -> Iterator[str]:
    """Yield each nonzero field with its name."""
    yield from (f"{node[field]} {name}" for field, name in names.items() if node.get(field))


def _plurals(node: dict[str, Any], **names: str) -> Iterator[str]:
    """Yield each nonzero field with its noun, in the plural if necessary."""
    yield from (plural(count, name) for field, name in names.items() if (count := node.get(field)))


_DETAILS: Final[dict[str, Callable[[Node], Iterator[str]]]] = {
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

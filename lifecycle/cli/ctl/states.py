"""`lifecycle ctl status`: what lives in the program, and how it does; once, or as it changes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from lifecycle.cli.ctl.clients import choose
from lifecycle.cli.ctl.entries import clock
from lifecycle.cli.ctl.looks import Sheet, console, live, show, show_json, voice
from lifecycle.cli.ctl.trees import Tree
from lifecycle.cli.failures import DONE, FAILED
from lifecycle.cli.listing import ago, harmless, short
from lifecycle.cli.messages import put

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lifecycle.cli.ctl.clients import Client
    from lifecycle.cli.ctl.streams import Stream
    from lifecycle.cli.ctl.trees import Node
    from lifecycle.cli.ctl.verbs import Order

__all__ = ["status"]

_HEADING: Final = ("name", "kind", "status", "")
#: Of these there are many, and `lifecycle ctl routes` tells of them.
_LEFT_OUT: Final = ("route", "tap")
#: What has a column of its own, or is for programs.
_SAID: Final = frozenset({"id", "kind", "parent", "name", "status"})


def status(order: Order) -> int:
    """Show it; with --watch until Ctrl+C, until nobody reads any more, or until the program has ended (a failure)."""
    client = choose(order.program)
    watching = order.given["watch"]
    if order.json and not watching:
        show_json(client.get("/api/state"))
        return DONE
    with client.stream("/api/state/stream", sys.stdout) as stream:
        if not watching:
            _once(stream)
            return DONE
        read = _as_json(stream) if order.json else _as_it_changes(stream)
        if not read or stream.unread:
            return DONE
    return _ended(client)


def _ended(client: Client) -> int:
    voice().warn(f"{client.name} has ended")
    return FAILED


def _once(stream: Stream) -> None:
    tree = Tree()
    tree.update([stream.first()])
    show(_sheet(tree))


def _as_json(stream: Stream) -> bool:
    """A line for each change; whether somebody has read them all."""
    return all(show_json(message, line=True) for message in stream)


def _as_it_changes(stream: Stream) -> bool:
    """A table that is drawn anew, or lines; whether somebody has read them all."""
    tree, screen = Tree(), console()
    if screen is not None:
        with live(screen) as draw:
            for message in stream:
                tree.update([message])
                draw(_sheet(tree))
        return True
    tree.update([stream.first()])
    return show(_sheet(tree)) and all(
        put(sys.stdout, _lines(message["time"], tree.update([message]))) for message in stream
    )


def _lines(at: float, changed: Mapping[str, Node | None]) -> str:
    """What has changed, a line a node."""
    return "".join(f"{clock(at)} {harmless(name)}: {_told(node)}\n" for name, node in changed.items())


def _told(node: Node | None) -> str:
    return "gone" if node is None else f"{node.get('status') or ''} {_details(node)}".strip()


# -- the tree ------------------------------------------------------------------------------------------------------


def _sheet(tree: Tree) -> Sheet:
    return Sheet(_HEADING, [_row(depth, node) for depth, node in tree.walk() if node["kind"] not in _LEFT_OUT])


def _row(depth: int, node: Node) -> tuple[str, ...]:
    name = "  " * depth + str(node["name"])
    return name, node["kind"], str(node.get("status") or ""), _details(node)


def _details(node: Node) -> str:
    """What else is known of it, as far as it says something."""
    told = (f"{name} {_value(name, value)}" for name, value in node.items() if name not in _SAID and _says(value))
    return ", ".join(told)


def _says(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and value not in ("", 0, False)


def _value(name: str, value: Any) -> str:
    if name.endswith("_at"):
        return f"{ago(value)} ago"
    return short(harmless(f"{value:.1f}" if isinstance(value, float) else str(value)))

"""`lifecycle ctl status`: what lives in the program, and how it does; once, or as it changes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from lifecycle.cli.ctl.clients import choose
from lifecycle.cli.ctl.details import details, is_shown
from lifecycle.cli.ctl.entries import clock
from lifecycle.cli.ctl.looks import Sheet, console, live, show, show_json, voice
from lifecycle.cli.ctl.trees import Tree
from lifecycle.cli.failures import DONE, FAILED
from lifecycle.cli.listing import harmless
from lifecycle.cli.messages import put

if TYPE_CHECKING:
    from lifecycle.cli.ctl.streams import Stream
    from lifecycle.cli.ctl.trees import Node
    from lifecycle.cli.ctl.verbs import Order

__all__ = ["status"]

_HEADING: Final = ("name", "kind", "status", "")


def status(order: Order) -> int:
    """Show it; with --watch until Ctrl+C, until nobody reads any more, or until the program has ended (a failure)."""
    client = choose(order.program)
    watching = order.given["watch"]
    if order.json and not watching:
        show_json(client.get("/api/state"))
        return DONE
    with client.stream("/api/state/stream", sys.stdout) as stream:
        if not watching:
            tree = Tree()
            tree.update([stream.first()])
            show(_sheet(tree))
            return DONE
        read = _as_json(stream) if order.json else _as_it_changes(stream)
        if not read or stream.unread:
            return DONE
    voice().warn(f"{client.name} has ended")
    return FAILED


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
    said = {name: _told(node) for name, node in tree.update([stream.first()]).items()}
    return show(_sheet(tree)) and all(put(sys.stdout, _lines(message, said)) for message in stream)


def _lines(message: Any, said: dict[str, str]) -> str:
    """A line for each node of which there is something to say that has not been ``said``."""
    told = {name: _told(node) for name, node in message["nodes"].items()}
    new = {name: text for name, text in told.items() if said.get(name) != text}
    said |= told
    return "".join(f"{clock(message['time'])} {harmless(name)}: {text}\n" for name, text in new.items())


def _told(node: Node | None) -> str:
    return "gone" if node is None else harmless(f"{node['status']} {details(node)}".rstrip())


def _sheet(tree: Tree) -> Sheet:
    return Sheet(_HEADING, [_row(depth, node) for depth, node in tree.walk() if is_shown(node)])


def _row(depth: int, node: Node) -> tuple[str, ...]:
    kind = node["type"] if node["kind"] in ("worker", "item") else node["kind"]
    return "  " * depth + node["name"], kind, node["status"], details(node)

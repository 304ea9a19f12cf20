"""`lifecycle ctl status`: what lives in the program, and how it does; once, or as it changes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from lifecycle.cli.ctl.clients import choose
from lifecycle.cli.ctl.details import called, details, is_shown, kind
from lifecycle.cli.ctl.entries import clock
from lifecycle.cli.ctl.printing import Sheet, console, live, show, show_json
from lifecycle.cli.ctl.trees import Tree
from lifecycle.cli.failures import DONE, FAILED
from lifecycle.cli.listing import harmless
from lifecycle.cli.messages import give, voice

if TYPE_CHECKING:
    from lifecycle.cli.ctl.clients import Client
    from lifecycle.cli.ctl.streams import Stream
    from lifecycle.cli.ctl.trees import Node
    from lifecycle.cli.ctl.verbs import Request

__all__ = ["sheet", "status"]

_HEADING: Final = ("name", "kind", "status", "")
#: Seconds after which a table at a terminal is drawn again without news.
_REDRAWN: Final = 1.0


def status(request: Request) -> int:
    """Show it; with --watch until Ctrl+C, until nobody reads any more, or until the program has ended (a failure)."""
    client = choose(request.program)
    watching = request.given["watch"]
    if request.json and not watching:
        show_json(client.get("/api/state"))
        return DONE
    with client.stream("/api/state/stream", sys.stdout) as stream:
        if not watching:
            tree = Tree()
            tree.update([stream.first()])
            show(sheet(tree, client.name))
            return DONE
        read = _as_json(client, stream) if request.json else _as_it_changes(stream, client.name)
        if not read or stream.unread:
            return DONE
    voice().warn(f"{client.name} has ended")
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
    tree, screen = Tree(), console()
    if screen is not None:
        with live(screen) as draw:
            while not stream.ended:
                # Also without news: the times in it pass.
                tree.update(stream.take(_REDRAWN))
                draw(sheet(tree, name))
        return True
    said = {name: _told(node) for name, node in tree.update([stream.first()]).items()}
    return show(sheet(tree, name)) and all(give(sys.stdout, _lines(message, said)) for message in stream)


def _lines(message: Any, said: dict[str, str]) -> str:
    """A line for each node of which there is something to say that has not been ``said``."""
    told = {name: _told(node) for name, node in message["nodes"].items()}
    new = {name: text for name, text in told.items() if said.get(name) != text}
    said |= told
    return "".join(f"{clock(message['time'])} {harmless(name)}: {text}\n" for name, text in new.items())


def _told(node: Node | None) -> str:
    return "gone" if node is None else harmless(", ".join(filter(None, (node["status"], details(node)))))


def sheet(tree: Tree, name: str) -> Sheet:
    """The tree of the program that is asked by this ``name``."""
    return Sheet(_HEADING, [_row(depth, node, name) for depth, node in tree.walk(is_shown)])


def _row(depth: int, node: Node, program: str) -> tuple[str, ...]:
    name = program if node["kind"] == "program" else called(node)
    return "  " * depth + name, kind(node), node["status"], details(node)

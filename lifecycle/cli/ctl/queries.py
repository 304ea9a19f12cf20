"""What is asked once: routes, commands, `explain`, `trace`, and the texts that the program makes itself."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lifecycle.cli.ctl.clients import choose
from lifecycle.cli.ctl.entries import entry_line
from lifecycle.cli.ctl.printing import Sheet, show, show_json, show_text
from lifecycle.cli.failures import DONE
from lifecycle.cli.messages import give, voice

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.cli.ctl.verbs import Request

__all__ = ["commands", "diagram", "dump", "explain", "routes", "show_commands", "trace"]

_COUNTS = ("handled", "failed", "dropped", "held")


def routes(request: Request) -> int:
    """Which handlers there are, and for what."""
    return _tell(request, choose(request.program).get("/api/routes"), _routes)


def _routes(answer: Any) -> None:
    heading = ("router", "pattern", "handler", "busy", "lane", "")
    show(Sheet(heading, [_route(each) for each in answer]))


def _route(route: dict[str, Any]) -> tuple[str, ...]:
    first = (str(route.get(name, "")) for name in ("router", "pattern", "handler", "busy"))
    counts = ", ".join(f"{route[name]} {name}" for name in _COUNTS if route.get(name))
    return (*first, _shared(route), counts)


def _shared(route: dict[str, Any]) -> str:
    """The lane, if it is not the route's alone."""
    lane = route.get("lane", "")
    return "" if lane == route["pattern"] else str(lane)


def commands(request: Request) -> int:
    """The words that the program knows."""
    return _tell(request, choose(request.program).get("/api/commands"), show_commands)


def show_commands(answer: Any) -> None:
    """A line a command, with the first of what is said of it."""
    rows = [(", ".join((each["name"], *each["aliases"])), *each["help"].strip().splitlines()[:1]) for each in answer]
    show(Sheet(("command", "meaning"), [(row[0], row[1] if row[1:] else "") for row in rows]))


def explain(request: Request) -> int:
    """Why nothing happens."""
    return _tell(request, choose(request.program).get("/api/explain", topic=request.given["topic"]), _explanation)


def _explanation(answer: Any) -> None:
    show_text("\n".join(answer["lines"]))
    if not answer.get("matches", True) and not answer.get("near"):
        voice().say("`lifecycle ctl routes` lists the patterns that there are")


def trace(request: Request) -> int:
    """An event, what led to it, and what came of it."""
    number = request.given["id"].removeprefix("#")
    return _tell(request, choose(request.program).get(f"/api/trace/{quote(number, safe='')}"), _trace)


def _trace(answer: Any) -> None:
    give(sys.stdout, "".join(f"{entry_line(node, depth=node['depth'], whole=True)}\n" for node in answer["nodes"]))


def diagram(request: Request) -> int:
    """A drawing for Mermaid."""
    show_text(choose(request.program).text("/api/diagram", of=request.given["of"]))
    return DONE


def dump(request: Request) -> int:
    """Where each thread and each task stands."""
    show_text(choose(request.program).text("/api/dump"))
    return DONE


def _tell(request: Request, answer: Any, people: Callable[[Any], None]) -> int:
    if request.json:
        show_json(answer)
    else:
        people(answer)
    return DONE

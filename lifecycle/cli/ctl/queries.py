"""One-time queries of `lifecycle ctl`: ps, routes, commands, explain, diagram and dump; events with tail and trace."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from lifecycle.cli.ctl.client import Exchange, GoneError, NoProgramError, choose, decoded
from lifecycle.cli.ctl.printing import Table, entry_line, show, show_json, show_text, width
from lifecycle.cli.output import DONE, FAILED, CliError, ago, print_result, stderr_console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lifecycle.cli.ctl.client import Stream
    from lifecycle.cli.ctl.commands import Request
    from lifecycle.observe.sockets import Program

__all__ = ["EntryBuffer", "commands", "diagram", "dump", "explain", "ps", "routes", "show_commands", "tail", "trace"]

#: What becomes of an event is not known yet.
UNDER_WAY: Final = frozenset({"queued", "held", "running"})
_COUNTS = ("handled", "failed", "dropped", "held")

#: Seconds after which those that have not answered are shown as that.
_PS_TIMEOUT: Final = 5.0
#: Bytes of an answer: a description of a program has some hundred.
_LARGEST_DESCRIPTION: Final = 64 * 1024
#: No program started later, in seconds since 1970.
_LATEST_START: Final = 1e11

#: How many that have passed already are shown first.
_RECENT: Final = 10
#: Seconds after which an event that has not come to its end is shown all the same.
_SLOW: Final = 1.0


def routes(request: Request) -> int:
    """Which handlers there are, and for what."""
    return _tell(request, choose(request.program).get("/api/routes"), _routes)


def _routes(answer: Any) -> None:
    heading = ("router", "pattern", "handler", "busy", "lane", "")
    show(Table(heading, [_route(each) for each in answer]))


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
    show(Table(("command", "meaning"), [(row[0], row[1] if row[1:] else "") for row in rows]))


def explain(request: Request) -> int:
    """Why nothing happens."""
    return _tell(request, choose(request.program).get("/api/explain", topic=request.arguments["topic"]), _explanation)


def _explanation(answer: Any) -> None:
    show_text("\n".join(answer["lines"]))
    if not answer.get("matches", True) and not answer.get("near"):
        stderr_console().info("`lifecycle ctl routes` lists the patterns that there are")


def trace(request: Request) -> int:
    """An event, what led to it, and what came of it."""
    number = request.arguments["id"].removeprefix("#")
    return _tell(request, choose(request.program).get(f"/api/trace/{quote(number, safe='')}"), _trace)


def _trace(answer: Any) -> None:
    print_result(
        sys.stdout, "".join(f"{entry_line(node, depth=node['depth'], whole=True)}\n" for node in answer["nodes"])
    )


def diagram(request: Request) -> int:
    """A drawing for Mermaid."""
    show_text(choose(request.program).text("/api/diagram", of=request.arguments["of"]))
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


def ps(request: Request) -> int:
    """List them."""
    from lifecycle.observe.sockets import find

    programs = find(request.program)
    if request.program is not None and not programs:
        raise NoProgramError(f"no program called {request.program!r} runs here")
    answers = _asked(programs)
    if request.json:
        show_json([{**answer, "name": each.name, "path": str(each.path)} for each, answer in answers])
    elif answers:
        show(Table(("name", "pid", "since"), [_program_row(each, answer) for each, answer in answers]))
    else:
        stderr_console().info("no program runs here that could be asked")
    return DONE


def _asked(programs: list[Program]) -> list[tuple[Program, dict[str, Any]]]:
    """What each says of itself; all are asked before the first answer is waited for."""
    until = monotonic() + _PS_TIMEOUT
    with ExitStack() as open_ones:
        exchanges: list[tuple[Program, Exchange]] = []
        for program in programs:
            try:
                exchange = Exchange(program, "/api/program", timeout=_PS_TIMEOUT)
            except GoneError:
                continue  # it has ended meanwhile
            exchanges.append((program, open_ones.enter_context(exchange)))
        return [(program, _description(exchange, until)) for program, exchange in exchanges]


def _description(exchange: Exchange, until: float) -> dict[str, Any]:
    exchange.wait_for(max(0.0, until - monotonic()))
    try:
        answer: Any = decoded(exchange.body(until=until, most=_LARGEST_DESCRIPTION))
    except CliError as error:
        return {"error": str(error)}
    if not isinstance(answer, dict):
        return {"error": "it answered what is no description of a program"}
    fields: dict[str, Any] = answer  # pyright: ignore[reportUnknownVariableType]  # of JSON
    return {name: value for name, value in fields.items() if not isinstance(value, (dict, list))}


def _program_row(program: Program, answer: dict[str, Any]) -> tuple[str, ...]:
    pid = program.pid or answer.get("pid")
    if "error" in answer:
        return program.name, str(pid or ""), "no answer"
    since = answer.get("started_at")
    return program.name, str(pid), ago(since) if isinstance(since, (int, float)) and 0 < since < _LATEST_START else ""


def tail(request: Request) -> int:
    """Show events until Ctrl+C, until nobody reads any more, or until the program has ended (a failure)."""
    client = choose(request.program)
    pattern = request.arguments["pattern"]
    # First the stream, so that nothing falls between the two.
    with client.stream("/api/events/stream", sys.stdout, pattern=pattern) as stream:
        past = client.get("/api/events", pattern=pattern, limit=_RECENT)
        if request.json:
            lines = (show_json(message, line=True) for message in _all(stream, past))
        else:
            lines = (print_result(sys.stdout, f"{_line(message)}\n") for message in _settled(stream, past))
        if not all(lines) or stream.unread:
            return DONE
    stderr_console().warning(f"{client.name} has ended")
    return FAILED


def _line(message: Any) -> str:
    return (
        f"({message['dropped']} events are not shown)" if "dropped" in message else entry_line(message, width=width())
    )


def _all(stream: Stream, past: Sequence[Any]) -> Iterator[Any]:
    """Each change of each event."""
    yield from past
    yield from (message for message in stream if message not in past)


def _settled(stream: Stream, past: Sequence[Any]) -> Iterator[Any]:
    """Each event once, when it has come to its end; and before that if it takes its time."""
    held = EntryBuffer()
    yield from held.sift(past)
    while not stream.ended:
        yield from held.sift([message for message in stream.take(held.left()) if message not in past])
        yield from held.due()


class EntryBuffer:
    """Events that are under way, and will soon have ended."""

    def __init__(self) -> None:
        # By id, those that changed last at the end.
        self._entries: dict[int, tuple[float, Any]] = {}

    def sift(self, messages: Sequence[Any]) -> Iterator[Any]:
        """Those that can be shown now; the others are kept."""
        for message in messages:
            self._entries.pop(message.get("id"), None)
            if message.get("what") in UNDER_WAY:
                self._entries[message["id"]] = time.monotonic() + _SLOW, message
            else:
                yield message

    def due(self) -> Iterator[Any]:
        """Those that have been waited for long enough."""
        while self._entries and not self.left():
            _, message = self._entries.pop(next(iter(self._entries)))
            yield message

    def left(self) -> float | None:
        """Seconds until one is due; None where none is kept."""
        if not self._entries:
            return None
        at, _ = next(iter(self._entries.values()))
        return max(0.0, at - time.monotonic())

"""The queries of `lifecycle ctl`: ps, routes, commands, explain, diagram, tasks, stacks, logs, tail and trace."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from lifecycle._text import duration, printable, shorten, time_of_day
from lifecycle.cli.ctl.client import Exchange, GoneError, NoProgramError, choose, decoded
from lifecycle.cli.ctl.printing import Table, colour_state, show, show_json, show_output, show_text, width
from lifecycle.cli.output import DONE, FAILED, CliError, ago, print_result, stderr_console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lifecycle.cli.ctl.client import Stream
    from lifecycle.cli.ctl.commands import Request
    from lifecycle.observe.sockets import Program

__all__ = [
    "EntryBuffer",
    "commands",
    "diagram",
    "explain",
    "logs",
    "ps",
    "routes",
    "show_commands",
    "stacks",
    "tail",
    "tasks",
    "trace",
]

_COUNTS: Final = ("handled", "failed", "dropped", "held")
#: The maximum number of seconds to wait for responses from all programs.
PS_TIMEOUT: Final = 5.0
#: The maximum size of a program's description, in bytes. It is usually a few hundred bytes long.
_LARGEST_DESCRIPTION: Final = 64 * 1024
#: The latest plausible start time of a program, in seconds since 1970.
_LATEST_START: Final = 1e11
#: The number of past events to show first.
_RECENT: Final = 10
#: The number of seconds after which an unfinished event is shown.
SLOW: Final = 1.0
#: The states of an unfinished event.
_IN_PROGRESS: Final = frozenset({"queued", "held", "running"})
#: The widths, in characters, of the columns for states and topics.
_STATE_WIDTH: Final = 10
_TOPIC_WIDTH: Final = 24


def ps(request: Request) -> int:
    """List the programs that can be controlled."""
    from lifecycle.observe.sockets import find

    programs = find(request.program)
    if request.program is not None and not programs:
        raise NoProgramError(f"no program called {request.program!r} is running")
    answers = _ask(programs)
    if request.json:
        show_json({"programs": [{**answer, "name": each.name, "path": str(each.path)} for each, answer in answers]})
    elif answers:
        show(Table(("name", "pid", "since"), [_program_row(each, answer) for each, answer in answers]))
    else:
        stderr_console().info("no program with a control socket is running")
    return DONE


def _ask(programs: list[Program]) -> list[tuple[Program, dict[str, Any]]]:
    """Return each program's description. All requests are sent before the first response is read."""
    until = monotonic() + PS_TIMEOUT
    with ExitStack() as stack:
        exchanges: list[tuple[Program, Exchange]] = []
        for program in programs:
            try:
                exchange = Exchange(program, "/api/program", timeout=PS_TIMEOUT)
            except GoneError:
                continue  # the program has just exited
            exchanges.append((program, stack.enter_context(exchange)))
        return [(program, _description(exchange, until)) for program, exchange in exchanges]


def _description(exchange: Exchange, until: float) -> dict[str, Any]:
    exchange.set_timeout(max(0.0, until - monotonic()))
    try:
        answer: Any = decoded(exchange.body(until=until, most=_LARGEST_DESCRIPTION))
    except CliError as error:
        return {"error": str(error)}
    if not isinstance(answer, dict):
        return {"error": "the response does not describe a program"}
    fields: dict[str, Any] = answer  # pyright: ignore[reportUnknownVariableType]  # of JSON
    return {name: value for name, value in fields.items() if not isinstance(value, (dict, list))}


def _program_row(program: Program, answer: dict[str, Any]) -> tuple[str, ...]:
    pid = program.pid or answer.get("pid")
    if "error" in answer:
        return program.name, str(pid or ""), "no response"
    since = answer.get("started_at")
    return program.name, str(pid), ago(since) if isinstance(since, (int, float)) and 0 < since < _LATEST_START else ""


def routes(request: Request) -> int:
    """List the handlers and their patterns."""
    return _show(request, {"routes": choose(request.program).get("/api/routes")}, _show_routes)


def _show_routes(answer: Any) -> None:
    heading = ("router", "pattern", "handler", "busy", "lane", "")
    show(Table(heading, [_route(each) for each in answer["routes"]]))


def _route(route: dict[str, Any]) -> tuple[str, ...]:
    first = (str(route.get(name, "")) for name in ("router", "pattern", "handler", "busy"))
    counts = ", ".join(f"{route[name]} {name}" for name in _COUNTS if route.get(name))
    return (*first, _shared(route), counts)


def _shared(route: dict[str, Any]) -> str:
    """Return the lane if it is shared by several routes."""
    lane = route.get("lane", "")
    return "" if lane == route["pattern"] else str(lane)


def commands(request: Request) -> int:
    """List the program's commands."""
    answer = {"commands": choose(request.program).get("/api/commands")}
    return _show(request, answer, lambda answer: show_commands(answer["commands"]))


def show_commands(answer: Any) -> None:
    """Print each command on one line, with the first line of its help."""
    rows = [
        (", ".join((each.get("usage") or each["name"], *each["aliases"])), *each["help"].strip().splitlines()[:1])
        for each in answer
    ]
    show(Table(("command", "meaning"), [(row[0], row[1] if row[1:] else "") for row in rows]))


def explain(request: Request) -> int:
    """Explain which handlers receive events with a given topic, or why no handler does."""
    return _show(
        request, choose(request.program).get("/api/explain", topic=request.arguments["topic"]), _show_explanation
    )


def _show_explanation(answer: Any) -> None:
    show_text("\n".join(answer["lines"]))
    if not answer.get("matches", True) and not answer.get("near"):
        stderr_console().info("`lifecycle ctl routes` lists the patterns")


def diagram(request: Request) -> int:
    """Draw the program as a Mermaid diagram."""
    show_text(choose(request.program).text("/api/diagram", of=request.arguments["of"]))
    return DONE


def stacks(request: Request) -> int:
    """Show the stacks of all threads and tasks, or of a single task."""
    task = request.arguments["task"]
    show_text(choose(request.program).text("/api/stacks", **({} if task is None else {"task": task})))
    return DONE


def tasks(request: Request) -> int:
    """List the asyncio tasks."""
    return _show(request, {"tasks": choose(request.program).get("/api/tasks")}, _show_tasks)


def _show_tasks(answer: Any) -> None:
    rows = [
        (task["name"], task["id"], "" if task["age"] is None else duration(task["age"]), _place(task))
        for task in answer["tasks"]
    ]
    show(Table(("name", "id", "age", "waits at"), rows))


def _place(task: dict[str, Any]) -> str:
    created = f"; created at {task['created_at']}" if task["created_at"] else ""
    return f"{task['waits_at'] or 'not started'}{created}"


def logs(request: Request) -> int:
    """Show the last lines of processes, each after the name of its process if there are several.

    With -f, continue until Ctrl+C, or until the reader closes the output or the program exits.
    """
    client = choose(request.program)
    paths: list[str] = client.get("/api/logs/workers", worker=request.names)
    prefixes = _prefixes(paths)
    lines = request.arguments["lines"]
    if not request.arguments["follow"]:
        answers = {path: client.get("/api/logs", worker=path, lines=lines) for path in paths}
        answer = {"lines": answers[paths[0]]} if len(paths) == 1 else {"workers": answers}

        def show_all(_: object) -> None:
            for path, found in answers.items():
                _show_lines({"lines": found}, prefixes[path])

        return _show(request, answer, show_all)
    with ExitStack() as stack:
        streams = {
            path: stack.enter_context(client.stream("/api/logs/stream", sys.stdout, worker=path, lines=lines))
            for path in paths
        }
        for path, message in _merged(streams):
            if request.json:
                show_json(message if len(paths) == 1 else {"worker": path, **message}, line=True)
            else:
                _show_lines(message, prefixes[path])
        if any(stream.unread for stream in streams.values()):
            return DONE
    stderr_console().warning(f"{client.name} has exited")
    return FAILED


def _prefixes(paths: Sequence[str]) -> dict[str, str]:
    """Return the text before each line: the name of the process, or nothing if there is only one."""
    if len(paths) == 1:
        return {paths[0]: ""}
    names = [path.rpartition("/")[2] for path in paths]
    shown = {path: printable(name if names.count(name) == 1 else path) for path, name in zip(paths, names, strict=True)}
    width = max(map(len, shown.values()))
    return {path: f"{name:<{width}} | " for path, name in shown.items()}


def _merged(streams: dict[str, Stream]) -> Iterator[tuple[str, Any]]:
    """Yield the messages of several streams with their names, until all have ended or the reader is gone."""
    while left := [(name, stream) for name, stream in streams.items() if not stream.ended]:
        for name, stream in left:
            yield from ((name, message) for message in stream.take(0))
        name, stream = left[0]
        if not stream.ended:
            # Wait for this stream, or for any other one, which is read in the next round.
            yield from ((name, message) for message in stream.take(None, *(other for _, other in left[1:])))


def _show_lines(answer: Any, prefix: str = "") -> None:
    if answer.get("dropped"):
        print_result(sys.stdout, f"{prefix}({answer['dropped']} lines are not shown)\n")
    show_output({"text": f"{prefix}{line}\n"} for line in answer["lines"])


def _show(request: Request, answer: Any, show_answer: Callable[[Any], None]) -> int:
    if request.json:
        show_json(answer)
    else:
        show_answer(answer)
    return DONE


# -- events ------------------------------------------------------------------------------------------------------------


def trace(request: Request) -> int:
    """Show an event with its causes and results."""
    from urllib.parse import quote  # imported here so that `ps` starts quickly

    number = request.arguments["id"].removeprefix("#")
    return _show(request, choose(request.program).get(f"/api/trace/{quote(number, safe='')}"), _show_trace)


def _show_trace(answer: Any) -> None:
    print_result(
        sys.stdout, "".join(f"{entry_line(node, depth=node['depth'], whole=True)}\n" for node in answer["nodes"])
    )


def tail(request: Request) -> int:
    """Show events until Ctrl+C, or until the reader closes the output. The command fails if the program exits first."""
    client = choose(request.program)
    pattern = request.arguments["pattern"]
    # Open the stream first, so that no event is missed.
    with client.stream("/api/events/stream", sys.stdout, pattern=pattern) as stream:
        past = client.get("/api/events", pattern=pattern, limit=_RECENT)
        if request.json:
            lines = (show_json(message, line=True) for message in _every_change(stream, past))
        else:
            lines = (print_result(sys.stdout, f"{_line(message)}\n") for message in _completed(stream, past))
        if not all(lines) or stream.unread:
            return DONE
    stderr_console().warning(f"{client.name} has exited")
    return FAILED


def _line(message: Any) -> str:
    return (
        f"({message['dropped']} events are not shown)" if "dropped" in message else entry_line(message, width=width())
    )


def _every_change(stream: Stream, past: Sequence[Any]) -> Iterator[Any]:
    """Yield each change of each event."""
    yield from past
    yield from (message for message in stream if message not in past)


def _completed(stream: Stream, past: Sequence[Any]) -> Iterator[Any]:
    """Yield each event once, when it has been handled. Slow events are also yielded while they are being handled."""
    buffer = EntryBuffer()
    yield from buffer.add(past)
    while not stream.ended:
        yield from buffer.add([message for message in stream.take(buffer.timeout()) if message not in past])
        yield from buffer.due()


class EntryBuffer:
    """Unfinished events that are held back for a short time."""

    def __init__(self) -> None:
        # Events by ID, ordered by their latest change. Each value contains the time when the event will be shown.
        self._entries: dict[int, tuple[float, Any]] = {}

    def add(self, messages: Sequence[Any]) -> Iterator[Any]:
        """Yield messages that can be shown now, and hold back the rest."""
        for message in messages:
            self._entries.pop(message.get("id"), None)
            if message.get("what") in _IN_PROGRESS:
                self._entries[message["id"]] = time.monotonic() + SLOW, message
            else:
                yield message

    def due(self) -> Iterator[Any]:
        """Yield the events that have been held back long enough."""
        while self._entries and not self.timeout():
            _, message = self._entries.pop(next(iter(self._entries)))
            yield message

    def timeout(self) -> float | None:
        """Return the number of seconds until the next event is due, or None if no event is held back."""
        if not self._entries:
            return None
        at, _ = next(iter(self._entries.values()))
        return max(0.0, at - time.monotonic())


def entry_line(entry: dict[str, Any], *, depth: int = 0, whole: bool = False, width: int | None = None) -> str:
    """Format an event as one line, truncated to ``width`` characters. ``depth`` indents the topic.

    Long texts are shortened unless ``whole`` is true.
    """
    what = str(entry["what"])
    topic = "  " * depth + printable(entry["topic"])
    begun = f"{time_of_day(entry['time'], milliseconds=True)} #{entry['id']:<5} "
    rest = " ".join([f"{topic:<{_TOPIC_WIDTH}}", *_details(entry, whole=whole)]).rstrip()
    if width is not None:
        rest = shorten(rest, max(1, width - len(begun) - _STATE_WIDTH - 1))
    return f"{begun}{colour_state(f'{what:<{_STATE_WIDTH}}', what)} {rest}"


def _details(entry: dict[str, Any], *, whole: bool) -> list[str]:
    """Return an event's details, such as its handler, duration and error."""
    parts: list[str] = []
    if entry.get("into") is not None:
        parts.append(f"into #{entry['into']}")
    if entry.get("handler"):
        parts.append(printable(entry["handler"]))
    if entry.get("merged"):
        parts.append(f"with {entry['merged']} merged")
    if entry.get("attempt", 1) > 1:
        parts.append(f"attempt {entry['attempt']}")
    if entry.get("duration") is not None:
        parts.append(duration(entry["duration"]))
    if text := printable(entry.get("error") or entry.get("summary") or ""):
        parts.append(text if whole else shorten(text))
    return parts

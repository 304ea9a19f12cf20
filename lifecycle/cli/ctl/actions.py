"""Functions that send commands and events to a program. `stop` and `restart` show their progress."""

from __future__ import annotations

import json
import os
import select
import shlex
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from lifecycle._text import plural, printable
from lifecycle.cli.ctl.client import GoneError, SilentError, choose, decoded
from lifecycle.cli.ctl.printing import rich_console, show_json, show_text
from lifecycle.cli.ctl.status import Tree
from lifecycle.cli.output import DONE, FAILED, CliError, UsageError, stderr_console

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from rich.console import Console

    from lifecycle.cli.ctl.client import Client, Exchange, Stream
    from lifecycle.cli.ctl.commands import Request
    from lifecycle.cli.ctl.status import Node

__all__ = ["RestartProgress", "StopProgress", "bar", "command", "emit", "restart", "stop"]

#: The maximum number of seconds between the closing of the socket and the end of the process. By default, a program
#: exits within 25 seconds.
EXIT_TIMEOUT: Final = 30.0
#: The same maximum if other code runs the event loop. Such a process usually continues.
_EMBEDDED_EXIT_TIMEOUT: Final = 1.0
#: The maximum number of seconds for the rest of a response after its first bytes.
_RESPONSE_TIMEOUT: Final = 10.0
#: The states of workers that have not ended.
_ALIVE: Final = ("pending", "starting", "running", "suspended", "stopping")


def command(request: Request) -> int:
    """Send a command to the program, and wait for the result."""
    client = choose(request.program)
    with _interruptible(client):
        outcome = client.post("/api/command", {"line": _line(request)})
    return _report(client, request, outcome)


def emit(request: Request) -> int:
    """Send an event, and wait for the result."""
    text, data = request.arguments["data"], None
    try:
        data = None if text is None else json.loads(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is not JSON: {error}; write a string as '\"text\"'") from None
    client = choose(request.program)
    with _interruptible(client):
        outcome = client.post("/api/emit", {"topic": request.arguments["topic"], "data": data})
    return _report(client, request, outcome)


@contextmanager
def _interruptible(client: Client) -> Generator[None]:
    """Raise `CliError` if Ctrl+C ends the wait for a result. The program is not affected."""
    try:
        yield
    except KeyboardInterrupt:
        raise CliError(f"stopped waiting for the result; {client.name} continues") from None


def _line(request: Request) -> str:
    """Return the command as it would be typed at the program's prompt, without the options of `lifecycle ctl`."""
    return shlex.join(word for word in request.words if not request.command or word != "--json")


def _report(client: Client, request: Request, result: dict[str, Any]) -> int:
    """Print the result, and return the exit status."""
    done = result.get("outcome") == "handled"
    if request.json:
        show_json(result)
        return DONE if done else FAILED
    show_text(result.get("answer") or "")
    if done:
        stderr_console().success(f"{client.name}: {printable(' '.join(request.words))}: done")
    else:
        error = str(result.get("error") or result.get("outcome"))
        stderr_console().error(f"{client.name}: {printable(error, chr(10))}")
    return DONE if done else FAILED


def stop(request: Request) -> int:
    """Stop the program, and wait until its process has ended."""
    client, tree = choose(request.program), Tree()
    with _interruptible(client), _process_end(client) as ends_within, client.stream("/api/state/stream") as stream:
        tree.update([stream.first()])
        embedded = any(node.get("embedded") for node in tree.of("lifetime"))
        result, stops = _send_stop(client, _line(request), stream, tree)
        if not stops:
            return _report(client, request, result)
        timeout = _EMBEDDED_EXIT_TIMEOUT if embedded else EXIT_TIMEOUT
        if not ends_within(timeout):
            why = "other code runs its event loop" if embedded else f"it has not ended within {timeout:g} s"
            error = f"the program has stopped, but its process (pid {client.program.pid}) is still running: {why}"
            return _report(client, request, {**result, "outcome": "failed", "error": error})
    if request.json:
        show_json(result)
    else:
        stderr_console().success(f"{client.name} has ended")
    return DONE


def _send_stop(client: Client, line: str, stream: Stream, tree: Tree) -> tuple[dict[str, Any], bool]:
    """Show the progress until the program closes its socket. Returns the result, and whether the program stops."""
    progress = StopProgress()
    with bar(f"stopping {client.name}") as draw, client.send("/api/command", {"line": line}) as exchange:
        for _ in _changes(tree, stream, exchange):
            draw(*progress.of(tree))
        try:
            result = _result(exchange)
        except SilentError:
            raise
        except GoneError:  # the program has already ended
            result = {"outcome": "handled", "delivery": None, "error": None, "answer": None}
        if result.get("outcome") != "handled" or not _is_stopping(client):
            return result, False
        for message in stream:
            tree.update([message])
            draw(*progress.of(tree))
    return result, True


def restart(request: Request) -> int:
    """Restart a worker, and show the progress."""
    if request.arguments["name"] is None:  # a program's own command may take no name
        return command(request)
    client = choose(request.program)
    tree = Tree()
    with _interruptible(client), client.stream("/api/state/stream") as stream:
        tree.update([stream.first()])
        progress = RestartProgress(tree, request.arguments["name"])
        line = {"line": _line(request)}
        with bar(f"restarting {progress.name}") as draw, client.send("/api/command", line) as exchange:
            for _ in _changes(tree, stream, exchange):
                draw(*progress.of(tree))
            result = _result(exchange)
    return _report(client, request, result)


def _changes(tree: Tree, stream: Stream, exchange: Exchange) -> Iterator[None]:
    """Update the tree until the program has responded or ended. Yields once at the start and after each update."""
    yield
    while not stream.ended and not exchange.is_answered():
        if messages := stream.take(None, exchange):
            tree.update(messages)
            yield


def _result(exchange: Exchange) -> dict[str, Any]:
    """Return the response. After its first bytes, the rest must arrive within a timeout."""
    until = None
    if exchange.is_answered():
        exchange.set_timeout(_RESPONSE_TIMEOUT)
        until = monotonic() + _RESPONSE_TIMEOUT
    result: dict[str, Any] = decoded(exchange.body(until=until))
    return result


def _is_stopping(client: Client) -> bool:
    """Return whether the program is stopping. A program may define its own command `stop` that does something else."""
    try:
        return bool(client.get("/api/state")["lifetime"]["stopping"])
    except GoneError:
        return True


@contextmanager
def _process_end(client: Client) -> Generator[Callable[[float], bool]]:
    """Return a function that waits for a number of seconds, and returns whether the process has ended by then.

    On systems without pidfds, the process counts as ended when its socket is closed.
    """
    try:
        descriptor = os.pidfd_open(client.program.pid or 0)
    except (AttributeError, OSError):
        yield lambda _: True
        return
    try:
        yield lambda seconds: _wait(descriptor, seconds)
    finally:
        os.close(descriptor)


def _wait(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


class StopProgress:
    """Counts the events and workers that must still end before a program stops."""

    def __init__(self) -> None:
        self._most = 0

    def of(self, tree: Tree) -> tuple[int, int, str]:
        """Return the number of ended items, the total, and a description of the rest."""
        lanes = tree.of("lane")
        events = sum(int(lane.get("waiting") or 0) + int(lane.get("running") or 0) for lane in lanes)
        workers = sum(worker.get("status") in _ALIVE for worker in tree.of("worker", "member"))
        self._most = max(self._most, events + workers)
        left = [plural(count, noun) for count, noun in ((events, "event"), (workers, "worker")) if count]
        return self._most - events - workers, self._most, ", ".join(left)


class RestartProgress:
    """Counts the workers that a restart has replaced."""

    def __init__(self, tree: Tree, name: str) -> None:
        self.name: str = name.rpartition("/")[2]
        found = [node for node in tree.of("worker", "supervisor", "pool", "member") if node["name"] == self.name]
        leaves = [leaf for node in found for leaf in tree.below(node)]
        self._old = {leaf["id"]: _run_of(leaf) for leaf in leaves}

    def of(self, tree: Tree) -> tuple[int, int, str]:
        """Return the number of new workers, the total, and a description of the rest."""
        nodes = {name: tree.get(name) for name in self._old}
        new = sum(self._is_new(name, node) for name, node in nodes.items())
        left = len(self._old) - new
        return new, len(self._old), f"{plural(left, 'worker')} to go" if left else ""

    def _is_new(self, name: str, node: Node | None) -> bool:
        return node is None or (node.get("status") == "running" and _run_of(node) != self._old[name])


def _run_of(node: Node) -> tuple[Any, ...]:
    return node.get("pid"), node.get("started_at"), node.get("restarts")


@contextmanager
def bar(doing: str) -> Generator[Callable[[int, int, str], None]]:
    """Show progress on stderr: as a bar at a terminal, otherwise as lines. The bar is removed when the block ends."""
    screen = rich_console(errors=True)
    with _lines(doing) if screen is None else _drawn(doing, screen) as show:
        yield show


@contextmanager
def _lines(doing: str) -> Generator[Callable[[int, int, str], None]]:
    shown, farthest = "", 0

    def show(done: int, _whole: int, left: str) -> None:
        nonlocal shown, farthest
        # The count can drop if a worker restarts repeatedly.
        if left and left != shown and done >= farthest:
            shown, farthest = left, done
            stderr_console().info(f"{doing}: {left}")

    yield show


@contextmanager
def _drawn(doing: str, screen: Console) -> Generator[Callable[[int, int, str], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}", markup=False),
    )
    with Progress(*columns, console=screen, auto_refresh=False, transient=True) as progress:
        # The bar is drawn only if the total is not zero.
        task = progress.add_task(doing, visible=False, left="")

        def show(done: int, whole: int, left: str) -> None:
            progress.update(task, completed=done, total=whole, left=left, visible=bool(whole), refresh=True)

        yield show

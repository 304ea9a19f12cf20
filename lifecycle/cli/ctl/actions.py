"""Commands that a program carries out, and events that it is sent; `stop` and `restart` show their progress."""

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

#: Seconds for a process to end after its socket was closed: by default a program ends within 25.
_EXIT_TIMEOUT: Final = 30.0
#: The same where another program runs the event loop: usually that one goes on.
_MOMENT: Final = 1.0

#: Seconds for the whole of an answer that has begun.
_AT_ONCE: Final = 10.0

#: What works, or has begun to, and has not ended.
_ALIVE: Final = ("pending", "starting", "running", "suspended", "stopping")


def command(request: Request) -> int:
    """Have the program carry out its command, and wait for the outcome."""
    client = choose(request.program)
    with interruptible(client):
        outcome = client.post("/api/command", {"line": line_of(request)})
    return report(client, request, outcome)


def emit(request: Request) -> int:
    """Send an event, and wait for what becomes of it."""
    text, data = request.arguments["data"], None
    try:
        data = None if text is None else json.loads(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is no JSON: {error}; a text is given as '\"text\"'") from None
    client = choose(request.program)
    with interruptible(client):
        outcome = client.post("/api/emit", {"topic": request.arguments["topic"], "data": data})
    return report(client, request, outcome)


@contextmanager
def interruptible(client: Client) -> Generator[None]:
    """Within the block Ctrl+C ends the waiting, which the program does not notice.

    Raises:
        CliError: when it was pressed.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise CliError(f"not waited for any longer; {client.name} goes on with it") from None


def line_of(request: Request) -> str:
    """The command as a person at the program's prompt would type it; options of ours are none of its."""
    return shlex.join(word for word in request.words if not request.command or word != "--json")


def report(client: Client, request: Request, outcome: dict[str, Any]) -> int:
    """Show what became of it, and give the status to exit with."""
    done = outcome.get("outcome") == "handled"
    if request.json:
        show_json(outcome)
        return DONE if done else FAILED
    show_text(outcome.get("answer") or "")
    if done:
        stderr_console().success(f"{client.name}: {printable(' '.join(request.words))}: done")
    else:
        stderr_console().error(
            f"{client.name}: {printable(str(outcome.get('error') or outcome.get('outcome')), chr(10))}"
        )
    return DONE if done else FAILED


def stop(request: Request) -> int:
    """Ask the program to end, and wait until its process has ended."""
    client, tree = choose(request.program), Tree()
    with interruptible(client), _life(client) as ends_within, client.stream("/api/state/stream") as stream:
        tree.update([stream.first()])
        embedded = any(node.get("embedded") for node in tree.of("lifetime"))
        outcome, stops = _stopped(client, line_of(request), stream, tree)
        if not stops:
            return report(client, request, outcome)
        patience = _MOMENT if embedded else _EXIT_TIMEOUT
        if not ends_within(patience):
            why = "another program runs its event loop" if embedded else f"it has not ended within {patience:g} s"
            error = f"its lifetime has ended, but its process (pid {client.program.pid}) still runs: {why}"
            return report(client, request, {**outcome, "outcome": "failed", "error": error})
    if request.json:
        show_json(outcome)
    else:
        stderr_console().success(f"{client.name} has ended")
    return DONE


def _stopped(client: Client, line: str, stream: Stream, tree: Tree) -> tuple[dict[str, Any], bool]:
    """Show how it stops until it has closed its socket; what it answered, and whether it does stop."""
    left = StopProgress()
    with bar(f"stopping {client.name}") as draw, client.tell("/api/command", {"line": line}) as exchange:
        for _ in _changes(tree, stream, exchange):
            draw(*left.of(tree))
        outcome = _outcome(exchange)
        if outcome.get("outcome") != "handled" or not _is_stopping(client):
            return outcome, False
        for message in stream:
            tree.update([message])
            draw(*left.of(tree))
    return outcome, True


def restart(request: Request) -> int:
    """Start a worker anew, and show how far that has come."""
    if request.arguments["name"] is None:  # a program's own word may take none
        return command(request)
    client = choose(request.program)
    tree = Tree()
    with interruptible(client), client.stream("/api/state/stream") as stream:
        tree.update([stream.first()])
        renewal = RestartProgress(tree, request.arguments["name"])
        line = {"line": line_of(request)}
        with bar(f"restarting {renewal.name}") as draw, client.tell("/api/command", line) as exchange:
            for _ in _changes(tree, stream, exchange):
                draw(*renewal.of(tree))
            outcome = _answer(exchange)
    return report(client, request, outcome)


def _changes(tree: Tree, stream: Stream, exchange: Exchange) -> Iterator[None]:
    """The state as it is and each change of it, until the program has answered or ended."""
    yield
    while not stream.ended and not exchange.is_answered():
        if messages := stream.take(None, exchange):
            tree.update(messages)
            yield


def _outcome(exchange: Exchange) -> dict[str, Any]:
    """What the program answered; to have ended before is to have done what it was told."""
    try:
        return _answer(exchange)
    except SilentError:
        raise
    except GoneError:
        return {"outcome": "handled", "delivery": None, "error": None, "answer": None}


def _answer(exchange: Exchange) -> dict[str, Any]:
    """The answer; when it has begun, the rest comes at once, or not at all."""
    until = None
    if exchange.is_answered():
        exchange.wait_for(_AT_ONCE)
        until = monotonic() + _AT_ONCE
    outcome: dict[str, Any] = decoded(exchange.body(until=until))
    return outcome


def _is_stopping(client: Client) -> bool:
    """Whether it will end: a program may have a `stop` of its own, which means something else."""
    try:
        return bool(client.get("/api/state")["lifetime"]["stopping"])
    except GoneError:
        return True


@contextmanager
def _life(client: Client) -> Generator[Callable[[float], bool]]:
    """Wait so many seconds for the process to end: whether it has. Without pidfds, the end of its socket has to do."""
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
    """How much of a program has still to end, of the most that there was."""

    def __init__(self) -> None:
        self._most = 0

    def of(self, tree: Tree) -> tuple[int, int, str]:
        """How much is done, of how much, and what is left in words."""
        lanes = tree.of("lane")
        events = sum(int(lane.get("waiting") or 0) + int(lane.get("running") or 0) for lane in lanes)
        workers = sum(worker.get("status") in _ALIVE for worker in tree.of("worker", "member"))
        self._most = max(self._most, events + workers)
        left = [plural(count, noun) for count, noun in ((events, "event"), (workers, "worker")) if count]
        return self._most - events - workers, self._most, ", ".join(left)


class RestartProgress:
    """Which of those that are to start anew have done so."""

    def __init__(self, tree: Tree, name: str) -> None:
        self.name: str = name.rpartition("/")[2]
        found = [node for node in tree.of("worker", "supervisor", "pool", "member") if node["name"] == self.name]
        leaves = [leaf for node in found for leaf in tree.below(node)]
        self._old = {leaf["id"]: _life_of(leaf) for leaf in leaves}

    def of(self, tree: Tree) -> tuple[int, int, str]:
        """How many are new, of how many, and what is left in words."""
        nodes = {name: tree.get(name) for name in self._old}
        new = sum(self._is_new(name, node) for name, node in nodes.items())
        left = len(self._old) - new
        return new, len(self._old), f"{plural(left, 'worker')} to go" if left else ""

    def _is_new(self, name: str, node: Node | None) -> bool:
        return node is None or (node.get("status") == "running" and _life_of(node) != self._old[name])


def _life_of(node: Node) -> tuple[Any, ...]:
    return node.get("pid"), node.get("started_at"), node.get("restarts")


@contextmanager
def bar(doing: str) -> Generator[Callable[[int, int, str], None]]:
    """What is called with how much is done, of how much, and what is left in words."""
    screen = rich_console(errors=True)
    with _lines(doing) if screen is None else _drawn(doing, screen) as tell:
        yield tell


@contextmanager
def _lines(doing: str) -> Generator[Callable[[int, int, str], None]]:
    said, farthest = "", 0

    def tell(done: int, _whole: int, left: str) -> None:
        nonlocal said, farthest
        # A worker that is started again and again has ended, and has not.
        if left and left != said and done >= farthest:
            said, farthest = left, done
            stderr_console().info(f"{doing}: {left}")

    yield tell


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
        # Where there is nothing to be done, none is drawn.
        task = progress.add_task(doing, visible=False, left="")

        def tell(done: int, whole: int, left: str) -> None:
            progress.update(task, completed=done, total=whole, left=left, visible=bool(whole), refresh=True)

        yield tell

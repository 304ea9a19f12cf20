"""Waiting for a program to execute a command, with progress output."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from lifecycle._text import plural, printable
from lifecycle.cli.ctl.client import GoneError, SilentError, is_readable
from lifecycle.cli.ctl.printing import rich_console
from lifecycle.cli.output import CliError, stderr_console

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from types import TracebackType

    from rich.console import Console

    from lifecycle.cli.ctl.client import Client, Readable, Stream
    from lifecycle.cli.ctl.status import Node, Tree

__all__ = ["RestartProgress", "StopProgress", "Wait", "bar"]

#: The number of seconds before progress is shown. Most commands finish sooner and need no stream.
QUIET: Final = 0.3
#: Worker states other than final states.
_ALIVE: Final = ("pending", "starting", "running", "suspended", "stopping")
#: The maximum number of workers to list by name.
_NAMED: Final = 3


class _Progress(Protocol):
    def of(self, tree: Tree) -> tuple[int, int, str]: ...


class Wait:
    """Waits for a program to execute a command. Progress is shown after a short delay.

    Use this class as a context manager.

    Args:
        client: the program's client.
        doing: the command, for messages.
        timeout: the maximum number of seconds for the entire wait. None means no limit.
        tree: the program's components at the start.
        progress: counts the remaining items in the tree. If omitted, only one message is shown.
    """

    def __init__(
        self,
        client: Client,
        doing: str,
        timeout: float | None,
        tree: Tree | None = None,
        progress: _Progress | None = None,
    ) -> None:
        self._client = client
        self._doing = doing
        self._timeout = timeout
        self._until = None if timeout is None else monotonic() + timeout
        self._shown = None if tree is None or progress is None else (tree, progress)
        self._left = ""
        self._resources = ExitStack()
        self._stream: Stream | None = None
        self._draw: Callable[[int, int, str], None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._resources.close()

    def left(self, most: float) -> float:
        """Return the number of seconds left, up to ``most``."""
        remaining = self._remaining()
        return most if remaining is None else min(most, remaining)

    def until(self, other: Readable | None) -> None:
        """Wait until ``other``, if given, is readable, or the program has closed its socket.

        Raises:
            CliError: if the timeout expires first.
        """
        others = () if other is None else (other,)
        if self._draw is None and others and is_readable(others, self.left(QUIET)):
            return
        try:
            stream = self._opened()
        except CliError as error:
            # Without a stream, there is no progress to show, but the command is still running.
            if isinstance(error, GoneError) and not isinstance(error, SilentError):
                return
            if not others:
                raise
            stream = None
        if stream is not None:
            self._follow(stream, others)
        elif others and not is_readable(others, self._remaining()):
            raise self._late()

    def _opened(self) -> Stream | None:
        """Open the progress bar and the stream. Returns None if there is no progress to show."""
        if self._shown is None:
            stderr_console().info(f"waiting for {self._client.name} to finish: {self._doing}")
        elif self._draw is None:
            self._draw = self._resources.enter_context(bar(self._doing))
            self._stream = self._resources.enter_context(self._client.stream("/api/state/stream"))
        return self._stream

    def _follow(self, stream: Stream, others: tuple[Readable, ...]) -> None:
        assert self._shown is not None
        assert self._draw is not None
        tree, progress = self._shown
        while not stream.ended and not is_readable(others, 0):
            tree.update(stream.take(self._remaining(), *others))
            done, total, self._left = progress.of(tree)
            self._draw(done, total, self._left)
            if self._remaining() == 0:
                raise self._late()

    def _remaining(self) -> float | None:
        return None if self._until is None else max(0.0, self._until - monotonic())

    def _late(self) -> CliError:
        left = f", waiting for {self._left}" if self._left else ""
        return CliError(
            f"not done within {self._timeout:g} s: {self._doing}{left}; {self._client.name} is still working on it"
        )


# -- progress ----------------------------------------------------------------------------------------------------------


class StopProgress:
    """Counts the events, tasks and workers that must finish before a program stops."""

    def __init__(self) -> None:
        self._most = 0

    def of(self, tree: Tree) -> tuple[int, int, str]:
        """Return the number of finished items, the total, and a description of the rest."""
        lanes = tree.of("lane")
        events = sum(int(lane.get("waiting") or 0) + int(lane.get("running") or 0) for lane in lanes)
        tasks = sum(len(life.get("tasks") or ()) for life in tree.of("lifetime"))
        workers = [node["name"] for node in tree.of("worker", "member") if node.get("status") in _ALIVE]
        counted = [plural(count, noun) for count, noun in ((events, "event"), (tasks, "task")) if count]
        left = events + tasks + len(workers)
        self._most = max(self._most, left)
        return self._most - left, self._most, _listed([*counted, *_named(workers)])


def _named(workers: list[str]) -> list[str]:
    """List the workers' names if there are only a few, or return their number."""
    if len(workers) > _NAMED:
        return [plural(len(workers), "worker")]
    return [f"worker {printable(name)}" for name in workers]


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


class RestartProgress:
    """Counts the workers that a restart has replaced."""

    def __init__(self, tree: Tree, given: Sequence[str]) -> None:
        names = [each.rpartition("/")[2] for each in given]
        self.named: str = ", ".join(names)
        found = [node for node in tree.of("worker", "supervisor", "pool", "member") if _is_one_of(node["name"], names)]
        leaves = [leaf for node in found for leaf in tree.below(node)]
        self._old = {leaf["id"]: _run_of(leaf) for leaf in leaves}

    def of(self, tree: Tree) -> tuple[int, int, str]:
        """Return the number of new workers, the total, and a description of the workers that are not new yet."""
        nodes = {name: tree.get(name) for name in self._old}
        new = sum(self._is_new(name, node) for name, node in nodes.items())
        left = len(self._old) - new
        return new, len(self._old), plural(left, "worker") if left else ""

    def _is_new(self, name: str, node: Node | None) -> bool:
        return node is None or (node.get("status") == "running" and _run_of(node) != self._old[name])


def _is_one_of(name: str, names: Sequence[str]) -> bool:
    """Return whether a worker, or the process that it is a copy of, has one of these names."""
    whole, _, number = name.rpartition(".")
    return name in names or "all" in names or (number.isdecimal() and whole in names)


def _run_of(node: Node) -> tuple[Any, ...]:
    return node.get("pid"), node.get("started_at"), node.get("restarts")


@contextmanager
def bar(doing: str) -> Generator[Callable[[int, int, str], None]]:
    """Show progress on stderr, as a bar at a terminal, otherwise as lines. The bar is removed after the block."""
    screen = rich_console(errors=True)
    with _lines(doing) if screen is None else _drawn(doing, screen) as show:
        yield show


@contextmanager
def _lines(doing: str) -> Generator[Callable[[int, int, str], None]]:
    shown, farthest = "", 0

    def show(done: int, _whole: int, left: str) -> None:
        nonlocal shown, farthest
        # The count can decrease if a worker restarts repeatedly.
        if left and left != shown and done >= farthest:
            shown, farthest = left, done
            stderr_console().info(f"{doing}: waiting for {left}")

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

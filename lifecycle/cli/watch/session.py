"""Reactions to changed files, webhooks and prompt commands: a restart, a signal, or nothing.

A file that is touched, or saved with the same content, is treated as unchanged. If a Python file cannot be compiled, or
``--env-file`` is invalid, the old process keeps running.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import shlex
import signal
import time
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from lifecycle._util import error_text
from lifecycle.cli.files import read_env
from lifecycle.cli.output import ConfigError
from lifecycle.control import Debounce, FileBatch, merge_files
from lifecycle.errors import SourceFailed
from lifecycle.events import FileEvent
from lifecycle.sources import DEFAULT_IGNORES, FileWatchSource
from lifecycle.sources._file_tree import STAMP_NS, Rules

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from lifecycle.cli.options import Action
    from lifecycle.cli.output import Console
    from lifecycle.cli.paths import PathRules
    from lifecycle.cli.watch.runner import Runner
    from lifecycle.cli.watch.settings import Settings
    from lifecycle.control import ReloadEvent, Router, WebhookEvent
    from lifecycle.events import Change
    from lifecycle.handlers import SuspendHandler

__all__ = [
    "ChangeSource",
    "ChangedFile",
    "ChangedFiles",
    "Contents",
    "Session",
    "SyntaxCheck",
    "because_of",
    "handle_changes",
    "syntax_errors",
    "watching",
]

#: The maximum time, in seconds, for collecting changes while files keep changing.
_LONGEST_WAIT: Final = 2.0
#: The minimum and maximum time, in seconds, between two reports of changes.
_SHORTEST_STEP, _LONGEST_STEP = 0.01, 0.05

#: A file is probably written by the command if it changes after this many starts in a row. Each change must follow
#: the previous one within this many seconds.
_STARTS, _SOON = 3, 3.0

_log = logging.getLogger("lifecycle.cli")

#: The reaction to a change.
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ChangedFile(FileEvent, Generic[R]):
    """A change that is not ignored, and the reaction to it."""

    reaction: R = field(repr=False)


@dataclass(frozen=True, slots=True)
class ChangedFiles(Generic[R]):
    """A batch of changes that are not ignored: the net change to each path, and the reaction to it."""

    files: FileBatch
    reactions: dict[Path, R] = field(repr=False)
    topic: str = field(default="file/batch", init=False, repr=False)

    @property
    def changes(self) -> Mapping[Path, Change]:
        """The net change to each path."""
        return self.files.changes

    def merge(self, later: ChangedFiles[R]) -> ChangedFiles[R]:
        """Merge the ``later`` changes into this batch. Neither of the original batches may be used afterwards."""
        self.reactions.update(later.reactions)
        return ChangedFiles(merge_files(self.files, later.files), self.reactions)


class _MergeChanged:
    """Merges the changes of a burst into one batch."""

    def first(self, event: ChangedFile[R]) -> ChangedFiles[R]:
        return ChangedFiles(merge_files.first(event), {event.path: event.reaction})

    def __call__(self, pending: ChangedFiles[R], new: ChangedFile[R]) -> ChangedFiles[R]:
        pending.reactions[new.path] = new.reaction
        return ChangedFiles(merge_files(pending.files, new), pending.reactions)


class ChangeSource(FileWatchSource):
    """A source that emits a `ChangedFile` for every change that has a reaction."""

    def __init__(self, react: Callable[[Change, Path], object | None], *paths: Path, **settings: Any) -> None:
        super().__init__(*paths, **settings)
        self._react = react

    async def look(self) -> None:
        """Record the files, so that every change from now on is reported.

        Raises:
            SourceFailed: if a path does not exist or cannot be read.
        """
        try:
            await self._look()
        except OSError as error:
            raise SourceFailed(f"source {self.name!r} could not start: {error_text(error)}") from error

    def _event(self, change: Change, path: Path) -> FileEvent | None:
        reaction = self._react(change, path)
        return None if reaction is None else ChangedFile(change, path, reaction)


def handle_changes(
    router: Router,
    handler: Callable[[ChangedFiles[R]], Awaitable[None]],
    paths: Iterable[Path],
    react: Callable[[Change, Path], R | None],
    *,
    wait: float,
    flat: Iterable[Path] = (),
    poll: float | None = None,
) -> list[ChangeSource]:
    """Return sources for changes below ``paths``, and call ``handler`` with batches of these changes.

    It is called when no file has changed for ``wait`` seconds, and every two seconds while files keep changing.
    ``react`` returns the reaction to a change, or None to ignore the change. Directories in ``flat`` are watched
    without their subdirectories. ``poll`` is the interval, in seconds, for scanning files.
    """
    debounce = Debounce(wait, max_wait=max(_LONGEST_WAIT, wait), merge=_MergeChanged())
    router.handle("file/*", handler, debounce=debounce)
    # While files keep changing, the source reports every two steps. This period must be shorter than `wait`.
    step = min(max(wait / 5, _SHORTEST_STEP), _LONGEST_STEP)
    roots = ((True, tuple(paths)), (False, tuple(flat)))
    return [ChangeSource(react, *each, recursive=recursive, step=step, poll=poll) for recursive, each in roots if each]


@contextlib.asynccontextmanager
async def watching(
    router: Router, sources: Sequence[ChangeSource], reading: AsyncGenerator[int], started: asyncio.Event
) -> AsyncGenerator[None]:
    """Watch files while the block runs a command.

    Before the block begins, the files are listed, and the first batch is read from ``reading`` (the result of
    `Contents.learn`).
    In a large tree, setting up the watches blocks the event loop for up to a second. The watches are therefore set up
    only once ``started`` is set, and all changes since the files were listed are then reported.

    Raises:
        SourceFailed: if a path does not exist or cannot be read.
    """
    for source in sources:
        await source.look()
    # The first batch contains all files of a small program.
    await anext(reading, None)
    rest = asyncio.create_task(_watch(router, sources, reading, started), name="watch files")
    try:
        yield
    finally:
        rest.cancel()
        await asyncio.wait({rest})


async def _watch(
    router: Router, sources: Sequence[ChangeSource], reading: AsyncGenerator[int], started: asyncio.Event
) -> None:
    await started.wait()
    for source in sources:
        router.add_source(source)
    async for _ in reading:
        pass


class Session:
    """The event handlers for a watched command. Each selects a reaction, prints a message, and calls the runner.

    ``python`` is the command's interpreter, or None if it is unknown.
    """

    def __init__(
        self,
        settings: Settings,
        rules: PathRules,
        runner: Runner,
        console: Console,
        *,
        python: str | None,
        suspender: SuspendHandler | None = None,
    ) -> None:
        self._settings = settings
        self._rules = rules
        self._runner = runner
        self._console = console
        self._suspender = suspender
        self._syntax = SyntaxCheck(python) if python is not None and settings.check else None
        self._contents = Contents()
        # The changes and the last webhook received since `hold`, or None if changes are not held.
        self._held: ChangedFiles[Action] | None = None
        self._held_request = ""
        # For each file, the number of consecutive starts that were soon followed by a change to the file.
        self._soon: dict[Path, int] = {}
        self._last_change = -inf

    @property
    def held(self) -> bool:
        """True if changes are held until `release` is called."""
        return self._held is not None

    def learn(self) -> AsyncGenerator[int]:
        """Read the watched files, so that touched but unchanged files can be recognised. Yields after each batch."""
        return self._contents.learn(self._rules.files, self._rules.select)

    def react(self, change: Change, path: Path) -> Action | None:
        """Return what to do about a change, or None to ignore it. With ``--verbose``, print it."""
        counts = not self._settings.fs_events or change in self._settings.fs_events
        action = self._rules.action(path) if counts else "ignore"
        if self._settings.verbose:
            self._console.info(f"{change} {self._rules.name(path)}: {action}")
        return None if action == "ignore" else action

    async def begin_check(self, event: FileEvent) -> None:
        """Compile a changed file while waiting for further changes."""
        if self._syntax is not None and self._held is None:
            await self._syntax.begin(event.path)

    async def files(self, batch: ChangedFiles[Action]) -> None:
        """Handle changed files: send a signal, restart, or keep the running process because a file is broken."""
        if self._held is not None:
            self._held = self._held.merge(batch)
            return
        changes = await self._contents.changed(batch.changes)
        if not changes:
            return
        why = self._rules.describe(changes)
        # If any file requires a restart, no signal is needed.
        if all(batch.reactions[path] == "reload" for path in changes):
            self._runner.signal(self._settings.reload_signal, why)
            return
        self._runner.add_changes(changes)
        if not await self._is_broken(changes, why):
            self._runner.change(why)
            self._warn_of_loop(changes)

    def _warn_of_loop(self, changes: Collection[Path]) -> None:
        """Warn about files that change after every start, because the command probably writes them."""
        now = asyncio.get_running_loop().time()
        soon = now - self._last_change < _SOON
        self._soon = {path: self._soon.get(path, 0) + 1 for path in changes} if soon else {}
        self._last_change = now
        for name in (self._rules.name(path) for path, starts in self._soon.items() if starts == _STARTS):
            self._console.warning(
                f"{name} changed after each of the last {_STARTS} starts; if the command writes this file, add "
                f"--ignore {shlex.quote(name)}"
            )

    async def webhook(self, event: WebhookEvent) -> None:
        """Handle a request to restart, or hold it if changes are held."""
        why = f"webhook: {event.method} {event.path}"
        if self._held is None:
            await self._change(why)
        else:
            self._held_request = why
            self._console.info(f"{why}; held until release")

    async def reload(self, _: ReloadEvent) -> None:
        """React as if a file had changed."""
        await self._change("reload requested")

    async def restart(self, _: object) -> None:
        """Restart the command, even if it is suspended or changes only send a signal."""
        self._runner.restart("restart requested")
        if self._suspender is not None:
            await self._suspender.resume()

    def hold(self, _: object) -> None:
        """Hold changes and webhooks. The command keeps running."""
        if self._held is None:
            self._held, self._held_request = ChangedFiles(FileBatch({}), {}), ""
        self._console.info("changes are held until release")

    async def release(self, _: object) -> None:
        """React once to all held changes and webhooks."""
        batch, request, self._held = self._held, self._held_request, None
        if batch is None:
            self._console.info("no changes are held")
            return
        self._console.info("changes are no longer held")
        if not request:
            await self.files(batch)
            return
        changes = await self._contents.changed(batch.changes)
        self._runner.add_changes(changes)
        await self._change(request, changes)

    async def _change(self, why: str, changes: Collection[Path] = ()) -> None:
        """Handle a request as if a file had changed. If a file is broken, the old process keeps running."""
        if self._settings.change == "reload":
            self._runner.signal(self._settings.reload_signal, why)
        elif not await self._is_broken(changes, why):
            self._runner.change(why)

    async def _is_broken(self, changes: Collection[Path], why: str) -> bool:
        """Return whether an error in a file would prevent the command from starting, and print the error."""
        if not self._settings.check:
            return False
        wrong = await self._syntax.errors(changes) if self._syntax is not None else []
        try:
            if self._settings.env_file is not None:
                read_env(self._settings.env_file)
        except ConfigError as error:
            wrong.append(str(error))
        if wrong:
            then = "the old process keeps running" if self._runner.alive else "not started"
            self._console.error(because_of(f"{why}; {then}", wrong))
        return bool(wrong)


def because_of(effect: str, errors: Sequence[str]) -> str:
    """Return a message that describes ``effect``, followed by the errors that caused it."""
    count = "this error" if len(errors) == 1 else "these errors"
    return "\n".join([f"{effect} because of {count}:", *errors])


# -- whether a file has changed ------------------------------------------------------------------------------------

#: The maximum number of files to remember. The most recently changed files are kept.
MAX_FILES: Final = 20_000
#: The maximum size, in bytes, of a file to read. Larger files are compared by size and time.
MAX_SIZE: Final = 1024 * 1024
#: The maximum total number of bytes to read at startup.
MAX_READ: Final = 64 * 1024 * 1024
#: The number of files handled per call to a thread.
BATCH: Final = 400
_IGNORED: Final = Rules((), DEFAULT_IGNORES)


class Contents:
    """Recognises files that were only touched, or saved with the same content.

    Files are compared by their permissions and contents. Small files are read, up to a maximum total size. The first
    batch is read before the command starts, and later batches while it runs. Other files are compared by size and
    time. An unknown file is treated as changed.

    Args:
        until: a time in ns. In later batches, files that changed at or after this time are not read [default: the end
            of the first batch].
    """

    def __init__(self, *, until: int | None = None) -> None:
        # A system clock time, in nanoseconds.
        self._until = until
        self._known: dict[str, bytes] = {}

    async def learn(
        self, roots: Iterable[Path], select: Callable[[Iterable[Path]], Iterable[Path]]
    ) -> AsyncGenerator[int]:
        """Read the files below ``roots`` that ``select`` accepts. Yield the number of files read after each batch."""
        walk, left, until = _files(roots), float(MAX_READ), None
        while found := await asyncio.to_thread(lambda: list(map(Path, islice(walk, BATCH)))):
            prints, left = await asyncio.to_thread(_fingerprints, select(found), until, left)
            if len(self._known) + len(prints) > MAX_FILES:
                return
            # Fingerprints from changes received in the meantime are newer.
            self._known = prints | self._known
            if until is None:
                until = time.time_ns() - STAMP_NS if self._until is None else self._until
            yield len(self._known)

    async def changed(self, changes: Mapping[Path, Change]) -> dict[Path, Change]:
        """Return the changes, omitting files that were only touched. Added and deleted files are always included."""
        present = [path for path, change in changes.items() if change != "deleted"]
        prints, _ = await asyncio.to_thread(_fingerprints, present)
        return {path: change for path, change in changes.items() if self._differs(path, change, prints.get(str(path)))}

    def _differs(self, path: Path, change: Change, now: bytes | None) -> bool:
        before = self._known.pop(str(path), None)
        if now is not None:
            self._known[str(path)] = now
            if len(self._known) > MAX_FILES:
                del self._known[next(iter(self._known))]
        return change != "modified" or now is None or before != now


def _files(roots: Iterable[Path]) -> Iterator[str]:
    """Yield the files at and below ``roots``, except those in caches, virtual environments and similar directories."""
    for root in map(str, roots):
        if not os.path.isdir(root):  # noqa: PTH112  # never raises
            yield root
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if not _IGNORED.skips(name, name)]
            yield from (f"{folder.rstrip('/')}/{name}" for name in files if not _IGNORED.skips(name, name))


def _fingerprints(paths: Iterable[Path], until: int | None = None, left: float = inf) -> tuple[dict[str, bytes], float]:
    """Return the fingerprints of readable files unchanged since ``until``, and how many bytes may still be read.

    At most ``left`` bytes are read. Files that would exceed this limit are compared by size and time.
    """
    found: dict[str, bytes] = {}
    for path in map(str, paths):
        if (one := _fingerprint(path, until, left)) is not None:
            found[path], size = one
            left -= size
    return found, left


def _fingerprint(path: str, until: int | None = None, left: float = inf) -> tuple[bytes, int] | None:
    """Return a digest of a file's permissions and contents, and how many bytes were read.

    If the file is too large to be read, the digest covers its size and time instead of its contents.
    """
    try:
        # O_NONBLOCK, because the path may now be a named pipe.
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            status = os.fstat(file)
            read = status.st_size <= min(left, MAX_SIZE)
            data = os.read(file, status.st_size + 1) if read else f"{status.st_size} {status.st_mtime_ns}".encode()
            if until is not None and os.fstat(file).st_ctime_ns >= until:
                return None
        finally:
            os.close(file)
    except OSError:
        return None
    mode = status.st_mode.to_bytes(4, "big")
    return hashlib.blake2b(data, digest_size=16, salt=mode).digest(), len(data) if read else 0


# -- whether a file can be compiled --------------------------------------------------------------------------------

#: A program that runs on any Python 3. It reads paths and prints errors as JSON.
_PROGRAM = """
import json, sys, traceback
found = {}
for path in json.load(sys.stdin):
    try:
        with open(path, "rb") as stream:
            source = stream.read()
    except OSError:
        continue
    try:
        compile(source, path, "exec", 0, True)
    except (SyntaxError, ValueError) as error:
        found[path] = "".join(traceback.format_exception_only(type(error), error))
    except (MemoryError, RecursionError):
        pass
json.dump(found, sys.stdout)
"""
#: Isolated mode, no site module, no bytecode files, and no warnings (the command shows its own).
_OPTIONS = ("-I", "-S", "-B", "-W", "ignore", "-c")


class SyntaxCheck:
    """Compiles a command's Python files with its interpreter ``python``."""

    def __init__(self, python: str) -> None:
        self._python = python
        # The files that could not be compiled. They are checked again after every change.
        self._broken: frozenset[Path] = frozenset()
        # The file that was compiled in advance, its state at that time, and its errors (None if the check failed).
        self._first: tuple[Path, object, asyncio.Future[dict[Path, str] | None]] | None = None

    async def begin(self, path: Path) -> None:
        """Compile ``path`` in advance, unless another file is already being compiled."""
        if path.suffix != ".py" or (self._first is not None and not self._first[2].done()):
            return
        state = await asyncio.to_thread(_fingerprint, str(path))
        if state is None:
            return
        done = asyncio.get_running_loop().create_future()
        self._first = path, state, done
        errors = None
        try:
            errors = await syntax_errors(self._python, [path])
        finally:
            done.set_result(errors)

    async def errors(self, changed: Collection[Path]) -> list[str]:
        """Compile the ``changed`` files and any that were broken before, and return the error messages."""
        paths = {*changed, *self._broken}
        first, errors = await self._first_errors()
        found = errors if first in paths else {}
        found |= await syntax_errors(self._python, sorted(paths - {first}))
        self._broken = frozenset(found)
        return list(found.values())

    async def _first_errors(self) -> tuple[Path | None, dict[Path, str]]:
        """Return the file that was compiled in advance and its errors, or None if the file has changed since."""
        first, self._first = self._first, None
        if first is not None:
            path, state, done = first
            errors = await asyncio.shield(done)
            now = await asyncio.to_thread(_fingerprint, str(path))
            if errors is not None and now == state:
                return path, errors
        return None, {}


async def syntax_errors(python: str, paths: Collection[Path], *, limit: float = 5.0) -> dict[Path, str]:
    """Return the files in ``paths`` that ``python`` cannot compile, each with its error message (file, line, caret).

    Another process compiles the ``.py`` files, without running them or writing bytecode. Missing files are skipped. If
    ``python`` cannot be run, or takes longer than ``limit`` seconds, no errors are returned.
    """
    sources = [str(path) for path in paths if path.suffix == ".py"]
    if not sources:
        return {}
    answer = await _compile(python, json.dumps(sources).encode(), limit)
    try:
        errors: dict[str, str] = json.loads(answer)
    except ValueError:
        _log.debug("%s did not check the syntax of %s", python, sources)
        return {}
    return {Path(path): text.rstrip() for path, text in errors.items()}


async def _compile(python: str, question: bytes, limit: float) -> bytes:
    """Run the compiler program and return its output, or an empty result if it cannot be run or takes too long."""
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            python, *_OPTIONS, _PROGRAM, stdin=pipe, stdout=pipe, stderr=null, start_new_session=True
        )
    except OSError as error:
        _log.debug("cannot run %s: %s", python, error)
        return b""
    try:
        async with asyncio.timeout(limit):
            output, _ = await process.communicate(question)
    except TimeoutError:
        return b""
    finally:
        if process.returncode is None:
            # Kill the whole group, because other processes in it would keep the pipes open.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return output

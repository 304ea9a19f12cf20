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
from dataclasses import dataclass
from itertools import islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lifecycle.cli.files import read_env
from lifecycle.cli.output import ConfigError
from lifecycle.control import Debounce, FileBatch, merge_files
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
    from lifecycle.events import Change, FileEvent
    from lifecycle.handlers import SuspendHandler

__all__ = ["Contents", "Session", "SyntaxCheck", "because_of", "handle_changes", "learning", "syntax_errors"]

#: The maximum time, in seconds, for collecting changes while files keep changing.
_LONGEST_WAIT: Final = 2.0
#: The minimum and maximum time, in seconds, between two reports of changes.
_SHORTEST_STEP, _LONGEST_STEP = 0.01, 0.05

#: A file is probably written by the command if it changes after this many starts in a row, each time within this many
#: seconds of the previous change.
_STARTS, _SOON = 3, 3.0

_log = logging.getLogger("lifecycle.cli")


def handle_changes(
    router: Router,
    handler: Callable[[FileBatch], Awaitable[None]],
    paths: Iterable[Path],
    *,
    wait: float,
    flat: Iterable[Path] = (),
    poll: float | None = None,
    wanted: Callable[[Change, Path], bool],
) -> None:
    """Call ``handler`` with the changes below ``paths`` once no file has changed for ``wait`` seconds.

    If files keep changing, ``handler`` is called every two seconds. Changes rejected by ``wanted`` are ignored.
    Directories in ``flat`` are watched without their subdirectories. ``poll`` is the interval, in seconds, for scanning
    the files instead of using notifications.
    """
    debounce = Debounce(wait, max_wait=max(_LONGEST_WAIT, wait), merge=merge_files)
    router.handle("file/*", handler, debounce=debounce)
    # A busy source reports once every two steps, which must be shorter than `wait`.
    step = min(max(wait / 5, _SHORTEST_STEP), _LONGEST_STEP)
    for recursive, watched in ((True, tuple(paths)), (False, tuple(flat))):
        if watched:
            router.add_source(FileWatchSource(*watched, recursive=recursive, filter=wanted, step=step, poll=poll))


@contextlib.asynccontextmanager
async def learning(reading: AsyncGenerator[int]) -> AsyncGenerator[None]:
    """Run ``reading`` (from `Contents.learn`): the first batch before the block, and the rest during the block."""
    # For a small program, the first batch contains all files.
    await anext(reading, None)
    rest = asyncio.create_task(_exhaust(reading), name="read the watched files")
    try:
        yield
    finally:
        rest.cancel()
        await asyncio.wait({rest})


async def _exhaust(reading: AsyncGenerator[int]) -> None:
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
        self._held: FileBatch | None = None
        self._held_request = ""
        # For each file, the number of consecutive starts that it changed shortly after.
        self._soon: dict[Path, int] = {}
        self._last_change = -inf

    @property
    def held(self) -> bool:
        """True if changes are held until `release` is called."""
        return self._held is not None

    def learn(self) -> AsyncGenerator[int]:
        """Read the watched files, so that touched but unchanged files can be recognised. Yields after each batch."""
        return self._contents.learn(self._rules.files, lambda path: self._rules.action(path) != "ignore")

    async def begin_check(self, event: FileEvent) -> None:
        """Compile a changed file while waiting for further changes."""
        if self._syntax is not None and self._held is None:
            await self._syntax.begin(event.path)

    async def files(self, batch: FileBatch) -> None:
        """Handle changed files: send a signal, restart, or keep the running process because a file is broken."""
        if self._held is not None:
            self._held = merge_files(self._held, batch)
            return
        actions = self._actions(batch)
        changes = await self._contents.changed({path: batch.changes[path] for path in actions})
        if not changes:
            return
        why = self._rules.describe(changes)
        # If any file requires a restart, no signal is needed.
        if all(actions[path] == "reload" for path in changes):
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
            self._held, self._held_request = FileBatch({}), ""
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
        changes = await self._contents.changed({path: batch.changes[path] for path in self._actions(batch)})
        self._runner.add_changes(changes)
        await self._change(request, changes)

    def _actions(self, batch: FileBatch) -> dict[Path, Action]:
        """Return the action for each changed path, omitting ignored paths."""
        return {path: action for path in batch.changes if (action := self._rules.action(path)) != "ignore"}

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
BATCH: Final = 200
_IGNORED: Final = Rules((), DEFAULT_IGNORES)


@dataclass(frozen=True, slots=True)
class _Fingerprint:
    """A file's state at a point in time."""

    mode: int
    size: int
    #: The modification time, in nanoseconds.
    time: int
    #: None if the file was not read.
    digest: bytes | None

    def same(self, other: _Fingerprint) -> bool:
        """Return whether the file is unchanged between the two fingerprints."""
        if (self.mode, self.size) != (other.mode, other.size):
            return False
        if self.digest is None or other.digest is None:
            return self.time == other.time
        return self.digest == other.digest


class Contents:
    """Recognises files that were only touched, or saved with the same content.

    A file is identified by its permissions and a digest of its bytes. Small files are read at startup, up to a maximum
    total size. Other files are compared by size and time. A file that is not yet known is treated as changed.

    Args:
        until: files changed at or after this time, in ns, are not read at startup [default: now].
    """

    def __init__(self, *, until: int | None = None) -> None:
        # A system clock time, in nanoseconds.
        self._until = time.time_ns() - STAMP_NS if until is None else until
        self._known: dict[Path, _Fingerprint] = {}

    async def learn(self, roots: Iterable[Path], counts: Callable[[Path], bool]) -> AsyncGenerator[int]:
        """Read the files at and below ``roots`` that ``counts`` accepts.

        Yields the number of known files after each batch.
        """
        walk, left = _files(roots), MAX_READ
        while found := await asyncio.to_thread(lambda: list(islice(walk, BATCH))):
            prints = await asyncio.to_thread(_fingerprints, [path for path in found if counts(path)], self._until, left)
            left -= sum(each.size for each in prints.values() if each.digest is not None)
            if len(self._known) + len(prints) > MAX_FILES:
                return
            # Fingerprints from changes received in the meantime are newer.
            self._known = prints | self._known
            yield len(self._known)

    async def changed(self, changes: Mapping[Path, Change]) -> dict[Path, Change]:
        """Return the changes, omitting files that were only touched. Added and deleted files are always included."""
        prints = await asyncio.to_thread(
            _fingerprints, [path for path, change in changes.items() if change != "deleted"]
        )
        return {path: change for path, change in changes.items() if self._differs(path, change, prints.get(path))}

    def _differs(self, path: Path, change: Change, now: _Fingerprint | None) -> bool:
        before = self._known.pop(path, None)
        if now is not None:
            self._known[path] = now
            if len(self._known) > MAX_FILES:
                del self._known[next(iter(self._known))]
        return change != "modified" or now is None or before is None or not now.same(before)


def _files(roots: Iterable[Path]) -> Iterator[Path]:
    """Yield the files at and below ``roots``, except those in caches, virtual environments and similar directories."""
    for root in roots:
        if not root.is_dir():
            yield root
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if not _IGNORED.skips(name, name)]
            yield from (Path(folder, name) for name in files if not _IGNORED.skips(name, name))


def _fingerprints(paths: Collection[Path], until: int | None = None, most: float = inf) -> dict[Path, _Fingerprint]:
    """Return the fingerprints of readable files unchanged since ``until``, reading at most ``most`` bytes."""
    found: dict[Path, _Fingerprint] = {}
    for path in paths:
        if (one := _fingerprint(path, until, min(most, MAX_SIZE))) is not None:
            found[path] = one
            most -= one.size if one.digest is not None else 0
    return found


def _fingerprint(path: Path, until: int | None, most: float) -> _Fingerprint | None:
    try:
        # O_NONBLOCK, because the path may have become a named pipe.
        with open(path, "rb", opener=_open_nonblocking) as stream:  # `Path.open` has no `opener` parameter
            status = os.fstat(stream.fileno())
            digest = None if status.st_size > most else hashlib.file_digest(stream, _digest).digest()
            if until is not None and os.fstat(stream.fileno()).st_ctime_ns >= until:
                return None
    except OSError:
        return None
    return _Fingerprint(status.st_mode, status.st_size, status.st_mtime_ns, digest)


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)


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
        # The file that was compiled in advance, its state at that time, and its errors (None without a result).
        self._first: tuple[Path, _Fingerprint, asyncio.Future[dict[Path, str] | None]] | None = None

    async def begin(self, path: Path) -> None:
        """Compile ``path`` in advance, unless another file is already being compiled."""
        if path.suffix != ".py" or (self._first is not None and not self._first[2].done()):
            return
        state = await asyncio.to_thread(_fingerprint, path, None, MAX_SIZE)
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
            now = await asyncio.to_thread(_fingerprint, path, None, MAX_SIZE)
            if errors is not None and now is not None and now.same(state):
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

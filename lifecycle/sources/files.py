"""Events for added, modified and deleted files, based on notifications through `watchfiles.awatch` or on polling.

This module fills some gaps in `awatch`. `awatch` does not report when the kernel's queue overflows, when a watched
directory is deleted and created again, or when files change inside a directory before its watch exists. We therefore
scan each new directory, and compare all files after a flood of reports. When a directory or link that the watches
depend on is replaced, we reopen the watches.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias, cast

from lifecycle._durations import in_seconds, in_seconds_or_none
from lifecycle._util import file_mode
from lifecycle.events import Change, FileEvent
from lifecycle.sources._file_tree import DEFAULT_IGNORES, Rules, Tree, may_read

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
    from types import TracebackType

    from watchfiles import Change as RawChange

    from lifecycle._durations import Duration
    from lifecycle.control import Emit
    from lifecycle.sources._file_tree import WatchSet

    _Filter: TypeAlias = Callable[[Change, Path], bool]

__all__ = ["DEFAULT_IGNORES", "FileWatchSource"]

_log = logging.getLogger("lifecycle.sources")

# A new directory is read again after each of these delays, in seconds, because files may have been written before its
# watch existed.
_AGAIN = (0.02, 0.1, 0.5, 2.0)
# The kernel's queue overflows silently at 16,384 reports. Once there have been `_MANY` hints, all files are compared
# after `_MOMENT` seconds.
_MANY = 2048
_MOMENT = 1.0
# The minimum time before the watches are reopened again, as a multiple of the time that reopening them takes.
_SHARE = 5
# How many times in a row to try opening the watches if the directories to watch keep changing.
_ATTEMPTS = 5

# How often, in milliseconds, to look for changes to the watched directories themselves or to links that lead to them.
_UNHURRIED_MS = 50

# The beginning of watchfiles' error message for a name that is not UTF-8.
_UNDECODABLE = "Unable to decode path"

_LIMITS = {
    "os error 24": "max_user_instances",
    "os error 28": "max_user_watches",
    "limit reached": "max_user_watches",
}


class FileWatchSource:
    """Sends a `FileEvent` for every file at or below ``paths`` that is added, modified or deleted.

    Each path must exist when the source starts. Later, a path may be replaced, or deleted and created again, and links
    that lead to it may change. Events have absolute paths that begin with a path as you specified it (links are not
    resolved). Several changes to a file within one ``step`` are combined into one event with their net effect. A file
    that is created and deleted again causes no event. Directories cause no events, but the files in them do.

    Files whose names are not UTF-8 are skipped, and this is logged once. While such a file is being written, other
    changes may be reported up to a second late.

    Args:
        paths: The files and directories to watch. At least one is required.
        recursive: Whether to watch all subdirectories, including those created later.
        include: Globs. If you pass any globs, only files that match at least one of them are reported. A glob without a
            slash is matched against a file's name. A glob with a slash is matched against the file's path below the
            watched directory. ``*`` matches within one name, and ``**`` matches any number of directories.
        ignore: Globs for files and directories to ignore, including everything inside these directories. The ``paths``
            themselves are never ignored.
        filter: Called with the change and the path. If it returns false, no event is sent.
        step: Seconds to wait for more changes before reporting them, rounded to milliseconds.
        follow_links: Whether to follow links to directories outside ``paths``. Links to files, and to directories
            inside ``paths``, are always followed.
        poll: Seconds between scans of all files, for file systems without notifications (NFS, WSL, some container
            mounts). By default, the system's notifications are used.

    Raises:
        ValueError: if no path is passed, or ``step`` or ``poll`` is not a positive number of seconds.
        InvalidPattern: if a glob cannot be parsed.
    """

    def __init__(
        self,
        *paths: str | Path,
        recursive: bool = True,
        include: Iterable[str] = (),
        ignore: Iterable[str] = DEFAULT_IGNORES,
        filter: _Filter | None = None,  # noqa: A002  # the public API sets this name
        step: Duration = 0.05,
        follow_links: bool = False,
        poll: Duration | None = None,
    ) -> None:
        if not paths:
            raise ValueError('FileWatchSource() has no paths to watch; pass at least one, such as "src" or "."')
        if filter is not None and not callable(filter):
            raise TypeError(f"filter={filter!r} is not callable; pass a function that takes a change and a path")
        # Make the paths absolute now, because the program may change its working directory later.
        self.paths: tuple[Path, ...] = tuple(Path(os.path.abspath(path)) for path in paths)  # noqa: PTH100  # links are not resolved
        self.name: str = f"files {', '.join(str(path) for path in paths)}"
        self._filter = filter
        self._step = in_seconds("step", step, finite=True)
        self._poll = in_seconds_or_none("poll", poll, finite=True)
        self._recursive = recursive
        self._follow_links = follow_links
        self._rules = Rules(include, ignore)
        # We keep the tree when the source fails, so that a restarted source can report changes made in the meantime.
        self._tree: Tree | None = None
        self._changes: _WatchedChanges | _PolledChanges | None = None
        # Changes found but not yet sent.
        self._pending: deque[tuple[str, Change]] = deque()

    def __repr__(self) -> str:
        return f"FileWatchSource({', '.join(repr(str(path)) for path in self.paths)})"

    @property
    def skipped(self) -> int:
        """The number of names in the watched directories that are currently skipped because they are not UTF-8."""
        return 0 if self._tree is None else self._tree.skipped

    async def _look(self) -> None:
        """Record the current files. Once entered, the source reports every change made after this call.

        Raises:
            OSError: if a path does not exist or cannot be read.
        """
        tree = await asyncio.to_thread(self._new_tree)
        # When polling, compare the files, because the clock of a network file system may differ from the local clock.
        await asyncio.to_thread(tree.list_files if self._poll is None else tree.compare)
        tree.take_changes()
        self._tree = tree

    async def __aenter__(self) -> Self:
        """Set up the watches. Every later change is sent as an event.

        Raises:
            FileNotFoundError: if a path does not exist.
            OSError: if a watch cannot be set up. The message names the limit that was reached.
        """
        tree = await asyncio.to_thread(self._new_tree) if self._tree is None else self._tree
        if self._poll is None:
            self._changes = _WatchedChanges(tree, self._step, is_new=self._tree is None)
        else:
            self._changes = _PolledChanges(tree, self._poll)
        try:
            await self._changes.open()
        except BaseException:
            await self._changes.close()
            raise
        changes = tree.take_changes()
        if self._tree is not None:
            self._pending.extend(sorted(changes.items()))
        self._tree = tree
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the watches."""
        if self._changes is not None:
            await self._changes.close()
            self._changes = None
        if not isinstance(error, Exception):
            self._tree = None
            self._pending.clear()

    async def run(self, emit: Emit) -> None:
        """Send changes until cancelled. The router calls this."""
        if self._changes is None:
            async with self:
                await self.run(emit)
            return
        while True:
            await self._send(emit)
            self._pending.extend(sorted((await self._changes.next()).items()))

    async def _send(self, emit: Emit) -> None:
        while self._pending:
            path, change = self._pending.popleft()
            event = self._event(change, Path(path))
            if event is not None:
                await emit(event)

    def _event(self, change: Change, path: Path) -> FileEvent | None:
        """Return the event for a change, or None if the filter rejects it."""
        return FileEvent(change, path) if self._filter is None or self._filter(change, path) else None

    def _new_tree(self) -> Tree:
        for path in self.paths:
            if not file_mode(path):
                reason = "the path does not exist; create it first, or watch the directory above it"
                raise FileNotFoundError(errno.ENOENT, reason, str(path))
            watched = path if path.is_dir() else path.resolve().parent
            if not may_read(str(watched)):
                reason = "this process is not allowed to read the directory; change the directory's mode or owner"
                raise PermissionError(errno.EACCES, reason, str(watched))
        roots = [str(path) for path in self.paths]
        return Tree(roots, self._rules, recursive=self._recursive, follow_links=self._follow_links)


# -- changes ---------------------------------------------------------------------------------------------------


class _PolledChanges:
    """Changes found by scanning all files every ``interval`` seconds."""

    def __init__(self, tree: Tree, interval: float) -> None:
        self._tree = tree
        self._interval = interval

    async def open(self) -> None:
        """Compare all files with the snapshot."""
        await asyncio.to_thread(self._tree.compare)

    async def next(self) -> Mapping[str, Change]:
        """Wait for the interval, then compare all files with the snapshot."""
        await asyncio.sleep(self._interval)
        await asyncio.to_thread(self._tree.compare)
        return self._tree.take_changes()

    async def close(self) -> None:
        """Do nothing, because no resource is open."""


class _WatchedChanges:
    """Changes found by checking the system's reports, which are collected over ``step`` seconds."""

    def __init__(self, tree: Tree, step: float, *, is_new: bool) -> None:
        self._tree = tree
        self._step = step
        # True until the watches have been opened for the first time. Changes before that are not reported.
        self._is_new = is_new
        self._watch: _Watch | None = None
        # True until a directory is added or deleted. With inotify, a recursive watch examines every file, even ignored
        # files, before it returns, and blocks all threads meanwhile.
        self._shallow = sys.platform == "linux"
        # The directories to read again: sets of real paths, each with the time when it is due, in no particular order.
        self._due: list[tuple[float, set[str]]] = []
        # The number of hints since the last full comparison was scheduled.
        self._hints = 0
        # True if the watches have been opened again and have not reported anything yet.
        self._unproven = False
        # The earliest time when the watches may be reopened because of a name that is not UTF-8.
        self._next_open = 0.0

    async def open(self) -> None:
        """Open the watches, then compare all files, so that no later change is missed.

        Raises:
            OSError: if the watches cannot be opened. The message names the limit that was reached.
        """
        if self._is_new:
            await self._look()
        for last in (*[False] * _ATTEMPTS, True):
            if await self._open_once(last=last) or last:
                break
            self._shallow = False
            await self.close()
        self._is_new = False

    async def next(self) -> Mapping[str, Change]:
        """Wait for reports or for the next scheduled scan. Return the changes since the last call, if any.

        Raises:
            OSError: if the watches have failed and cannot be opened again.
        """
        assert self._watch is not None, "it is open"
        now = asyncio.get_running_loop().time
        try:
            reports = await self._watch.next(self._timeout(now()))
        except _NameNotText:
            await self._reopen()
            return self._tree.take_changes()
        except _WatchBroken as error:
            await self._recover(error)
            return self._tree.take_changes()
        self._unproven = False
        hints = [(path, change.name == "modified") for change, path in reports]
        await asyncio.to_thread(self._tree.update, hints, self._take_due(now()))
        new = self._schedule(len(hints), now())
        unsure = self._tree.index.links_changed or (new and self._watch.watch_set.whole)
        if self._watch.is_outdated_by(reports) or (unsure and await asyncio.to_thread(self._misses_something)):
            self._shallow = False
            await self.close()
            await self.open()
        return self._tree.take_changes()

    async def close(self) -> None:
        """Close the watches."""
        watch, self._watch = self._watch, None
        if watch is not None:
            await watch.close()

    async def _open_once(self, *, last: bool) -> bool:
        """Open watches for the known directories, and compare all files.

        Return whether the watches cover all directories found.
        """
        watch_set = await asyncio.to_thread(self._wanted)
        self._watch = _Watch(watch_set, step=self._step)
        try:
            await self._watch.open()
        except PermissionError:
            if last:
                raise
            await asyncio.to_thread(self._tree.find_unwatchable)
            return False
        except _WatchBroken:
            # An entry was deleted after the scan, before the watch started.
            if last:
                raise
            await self._look()
            return False
        await self._look()
        return watch_set == await asyncio.to_thread(self._wanted)

    def _wanted(self) -> WatchSet:
        return self._tree.watch_set(shallow=self._shallow)

    async def _look(self) -> None:
        await asyncio.to_thread(self._tree.list_files if self._is_new else self._tree.compare)

    async def _recover(self, error: _WatchBroken) -> None:
        if self._unproven:
            raise error
        _log.warning("reopening the watches on %s: %s", ", ".join(sorted(self._tree.index.real_roots())), error)
        await self.close()
        self._unproven = True
        await self.open()

    async def _reopen(self) -> None:
        """Reopen the watches after a report with a name that is not UTF-8, and compare all files.

        If such names keep appearing, this happens at most once per second, and less often if it is slow.
        """
        now = asyncio.get_running_loop().time
        await self.close()
        await asyncio.sleep(self._next_open - now())
        began = now()
        # If a directory has such a name, a watch on any directory above it would report the name again and again.
        await asyncio.to_thread(self._tree.find_unwatchable)
        await self.open()
        self._next_open = now() + max(_MOMENT, _SHARE * (now() - began))

    def _misses_something(self) -> bool:
        return self._watch is None or self._watch.watch_set != self._wanted()

    def _timeout(self, now: float) -> float | None:
        return max(0.0, min(at for at, _ in self._due) - now) if self._due else None

    def _take_due(self, now: float) -> set[str]:
        """Remove and return the directories that are due to be read again."""
        due = [each for at, each in self._due if at <= now]
        self._due = [(at, each) for at, each in self._due if at > now]
        return set[str]().union(*due)

    def _schedule(self, hints: int, now: float) -> bool:
        """Schedule directories to be read again. Return whether new directories were found."""
        self._hints += hints
        if self._hints >= _MANY:
            self._hints = 0
            self._due.append((now + _MOMENT, self._tree.index.real_roots()))
        if new := self._tree.take_new_directories():
            self._due.extend((now + pause, new) for pause in _AGAIN)
        return bool(new)


# -- the system's reports --------------------------------------------------------------------------------------


class _WatchBroken(OSError):
    """Raised if the watches have ended or are incomplete. The remedy is to open new watches and compare all files."""


class _NameNotText(_WatchBroken):
    """Raised if a file whose name is not UTF-8 has changed. The watches report nothing after that."""


class _Watch:
    """The watches for one `WatchSet`. `open` creates them, and `close` must be called to remove them."""

    def __init__(self, watch_set: WatchSet, *, step: float) -> None:
        self.watch_set = watch_set
        self._step_ms = max(1, round(step * 1000))
        self._batches: list[AsyncGenerator[set[tuple[RawChange, str]], None]] = []
        # The tasks waiting for the next batch of reports, each with the number of its watch. Each watch has a thread,
        # which waits in the kernel until a change occurs.
        self._pending: dict[asyncio.Task[set[tuple[RawChange, str]]], int] = {}

    async def open(self) -> None:
        """Set up the watches. This blocks the loop briefly for each directory.

        Raises:
            OSError: if the watches cannot be set up. The message names the limit that was reached.
        """
        from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType]  # its type hints need trio

        wanted = self.watch_set
        # Outside the watched directories, the relevant entries rarely change. Checking them frequently would slow down
        # the checks inside the directories.
        flat_step = max(self._step_ms, _UNHURRIED_MS) if wanted.deep and not wanted.whole else self._step_ms
        for paths, recursive, step in ((wanted.deep, True, self._step_ms), (wanted.flat, False, flat_step)):
            if paths:
                batches = awatch(
                    *sorted(paths),
                    watch_filter=None if recursive else self._concerns,
                    step=step,
                    # While files keep changing, report every two steps. With a longer interval, a debounce would
                    # mistake the gap between reports for the end of a burst.
                    debounce=step,
                    recursive=recursive,
                    # True would also hide every other error, such as reaching a limit.
                    ignore_permission_denied=False,
                )
                self._batches.append(batches)
                self._request(len(self._batches) - 1)
        # Within one iteration of the loop, each task creates its watches and begins to wait for the first change.
        await asyncio.sleep(0)
        for task in self._pending:
            if task.done():
                _result(task)

    async def next(self, timeout: float | None) -> set[tuple[RawChange, str]]:
        """Wait until there is at least one report, or for ``timeout`` seconds. Return the reports since the last call.

        Raises:
            _WatchBroken: if reports may be missing from now on.
        """
        done, _ = await asyncio.wait(self._pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        hints: set[tuple[RawChange, str]] = set()
        for task in done:
            hints |= _result(task)
            self._request(self._pending.pop(task))
        return hints

    async def close(self) -> None:
        """Remove the watches. Their threads end within one step."""
        for task in self._pending:
            task.cancel()
        await asyncio.gather(*self._pending, return_exceptions=True)
        for batches in self._batches:
            await batches.aclose()

    def is_outdated_by(self, hints: set[tuple[RawChange, str]]) -> bool:
        """Return whether any of ``hints`` affects a watched directory itself or its path, not only its contents."""
        wanted = self.watch_set
        return any(path in wanted.entries or path in wanted.deep or path in wanted.flat for _, path in hints)

    def _request(self, number: int) -> None:
        self._pending[asyncio.ensure_future(anext(self._batches[number]))] = number

    def _concerns(self, _: RawChange, path: str) -> bool:
        """Return whether a report from a flat watch is relevant. Most of them are not."""
        wanted = self.watch_set
        return path in wanted.entries or path in wanted.flat or os.path.dirname(path) in wanted.whole  # noqa: PTH120


def _result(task: asyncio.Task[set[tuple[RawChange, str]]]) -> set[tuple[RawChange, str]]:
    try:
        return task.result()
    except StopAsyncIteration:
        raise _WatchBroken("the watch ended unexpectedly") from None
    except Exception as error:
        raise _explained(error) from error


def _explained(error: Exception) -> OSError:
    """Return the error to raise. If a system limit was reached, the message names the limit, its value and a remedy."""
    while isinstance(error, ExceptionGroup):
        # awatch wraps each error in an exception group.
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    text = str(error)
    for sign, limit in _LIMITS.items():
        if sign in text.lower():
            return OSError(errno.ENOSPC, _advice(limit))
    if _UNDECODABLE in text:
        return _NameNotText(text)
    return error if isinstance(error, PermissionError) else _WatchBroken(text)


def _advice(limit: str) -> str:
    try:
        present = int(Path(f"/proc/sys/fs/inotify/{limit}").read_text(encoding="ascii"))
    except OSError as error:
        if error.errno == errno.EMFILE:
            return "this process has reached its limit of open files; raise it with `ulimit -n`"
        return f"the limit on watched files ({limit}) has been reached; raise it, watch fewer directories, or poll"
    return (
        f"the limit fs.inotify.{limit} ({present} on this system) has been reached; raise it with "
        f"`sudo sysctl fs.inotify.{limit}={max(present * 4, 1024)}`, watch fewer directories, or poll"
    )

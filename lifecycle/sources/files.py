"""Added, modified and deleted files as events, from the system's reports through `watchfiles.awatch`, or from polling.

`awatch` has gaps that are repaired here. It does not report that the kernel's queue overflowed, that a directory was
made again, or what was written into a directory before its watch existed. So new directories are read again, everything
is compared after a flood, and the watches are opened again when a directory or link that they depend on is replaced.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias, cast

from lifecycle.events import Change, FileEvent
from lifecycle.sources._file_tree import DEFAULT_IGNORES, Rules, Tree, may_read

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
    from types import TracebackType

    from watchfiles import Change as RawChange

    from lifecycle.control import Emit
    from lifecycle.sources._file_tree import WatchSet

    _Filter: TypeAlias = Callable[[Change, Path], bool]

__all__ = ["DEFAULT_IGNORES", "FileWatchSource"]

_log = logging.getLogger("lifecycle.sources")

# When a directory that was just found is read again: its own watch may have come after what was written into it.
_AGAIN = (0.02, 0.1, 0.5, 2.0)
# The kernel's queue overflows silently at 16,384 reports: after so many hints, and so many seconds, all is compared.
_MANY = 2048
_MOMENT = 1.0
# The time between two looks, in multiples of the duration of one.
_SHARE = 5
# How often watches are opened in a row while the directories to watch keep changing.
_ATTEMPTS = 5

# Continuous changes are reported after so many steps, or so many milliseconds, whichever is longer.
_LONGEST_BATCH = 4
_SHORTEST_BATCH_MS = 50
# The step for the surroundings of watched directories: the directories themselves, and links on the way to them.
_UNHURRIED_MS = 50

# The beginning of the error with which watchfiles ends.
_UNDECODABLE = "Unable to decode path"

_LIMITS = {
    "os error 24": "max_user_instances",
    "os error 28": "max_user_watches",
    "limit reached": "max_user_watches",
}


class FileWatchSource:
    """Sends a `FileEvent` for every file at or below ``paths`` that is added, modified or deleted.

    Each path must exist when the source starts. Later, a path may be replaced, or deleted and created again, and links
    on the way to it may change. Events have absolute paths, below each path as it was given (links are not resolved).
    Several changes to a file within one ``step`` are one event with their net effect; a file that was created and
    deleted again causes no event. Directories cause no events, but the files in them do.

    A name that is not UTF-8 is skipped, which is logged once. While such a file is being written, other changes may be
    reported up to a second late.

    Args:
        paths: The files and directories to watch, at least one.
        recursive: Whether to watch all subdirectories, including those created later.
        include: Globs. If given, only files that match one of them are reported. A glob without a slash is matched
            against the name of a file. A glob with a slash is matched against its path below the watched directory;
            ``*`` matches within one name, ``**`` any number of directories.
        ignore: Globs of files and directories to ignore, with everything inside these directories. The ``paths``
            themselves are never ignored.
        filter: Called with the change and the path. If it returns false, no event is sent.
        step: Seconds to wait for more changes before they are reported, rounded to milliseconds.
        follow_links: Whether to follow links to directories outside of ``paths``. Links to files, and to directories
            inside ``paths``, are always followed.
        poll: Seconds between two scans of all files, for file systems without notifications (NFS, WSL, some container
            mounts). By default, the notifications of the system are used.

    Raises:
        ValueError: if no path is given, or ``step`` or ``poll`` is not a positive number of seconds.
        InvalidPattern: if a glob cannot be parsed.
    """

    def __init__(
        self,
        *paths: str | Path,
        recursive: bool = True,
        include: Iterable[str] = (),
        ignore: Iterable[str] = DEFAULT_IGNORES,
        filter: _Filter | None = None,  # noqa: A002  # the public names fix this one
        step: float = 0.05,
        follow_links: bool = False,
        poll: float | None = None,
    ) -> None:
        if not paths:
            raise ValueError('FileWatchSource() has no path to watch; name one, such as "src" or "."')
        _require_seconds(step=step, poll=poll)
        if filter is not None and not callable(filter):
            raise TypeError(f"filter={filter!r} cannot be called; give a function of a change and a path")
        # Absolute from the start: a program may change its directory later.
        self.paths: tuple[Path, ...] = tuple(Path(os.path.abspath(path)) for path in paths)  # noqa: PTH100  # links stay as they are named
        self.name: str = f"files {', '.join(str(path) for path in paths)}"
        self._filter = filter
        self._step = step
        self._poll = poll
        self._recursive = recursive
        self._follow_links = follow_links
        self._rules = Rules(include, ignore)
        # Kept when the source fails, so that a restart reports what happened meanwhile.
        self._tree: Tree | None = None
        self._changes: _WatchedChanges | _PolledChanges | None = None
        # Found and not yet sent.
        self._pending: deque[tuple[str, Change]] = deque()

    def __repr__(self) -> str:
        return f"FileWatchSource({', '.join(repr(str(path)) for path in self.paths)})"

    @property
    def skipped(self) -> int:
        """Number of names in the watched directories that are skipped now because they are not UTF-8."""
        return 0 if self._tree is None else self._tree.skipped

    async def __aenter__(self) -> Self:
        """Set up the watches: every change after this is sent.

        Raises:
            FileNotFoundError: for a path that does not exist.
            OSError: when a watch cannot be set up; the message names the limit that was reached.
        """
        tree = await asyncio.to_thread(self._first_look) if self._tree is None else self._tree
        self._changes = _WatchedChanges(tree, self._step) if self._poll is None else _PolledChanges(tree, self._poll)
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
        """Send changes until cancelled; the router calls this."""
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
            event = FileEvent(change, Path(path))
            if self._filter is None or self._filter(event.change, event.path):
                await emit(event)

    def _first_look(self) -> Tree:
        for path in self.paths:
            if not path.exists():
                reason = "there is nothing to watch here; make it first, or watch the directory above it"
                raise FileNotFoundError(errno.ENOENT, reason, str(path))
            watched = path if path.is_dir() else path.resolve().parent
            if not may_read(str(watched)):
                reason = "this process may not read the directory, so it cannot watch it; change its mode, or its owner"
                raise PermissionError(errno.EACCES, reason, str(watched))
        roots = [str(path) for path in self.paths]
        tree = Tree(roots, self._rules, recursive=self._recursive, follow_links=self._follow_links)
        tree.compare()
        return tree


def _require_seconds(step: float, poll: float | None) -> None:
    for name, seconds in (("step", step), ("poll", poll)):
        if seconds is not None and not 0 < seconds < math.inf:
            raise ValueError(f"{name}={seconds!r} must be positive and finite; give seconds above 0")


# -- changes ---------------------------------------------------------------------------------------------------


class _PolledChanges:
    """Changes found by looking at everything each ``interval`` seconds."""

    def __init__(self, tree: Tree, interval: float) -> None:
        self._tree = tree
        self._interval = interval

    async def open(self) -> None:
        """Compare."""
        await asyncio.to_thread(self._tree.compare)

    async def next(self) -> Mapping[str, Change]:
        """Wait, then compare."""
        await asyncio.sleep(self._interval)
        await asyncio.to_thread(self._tree.compare)
        return self._tree.take_changes()

    async def close(self) -> None:
        """Do nothing: no resource is held."""


class _WatchedChanges:
    """Changes found by looking at what the system reports, gathered over ``step`` seconds."""

    def __init__(self, tree: Tree, step: float) -> None:
        self._tree = tree
        self._step = step
        self._watch: _Watch | None = None
        # When to read which directories again, by their real paths; in no order.
        self._due: list[tuple[float, set[str]]] = []
        # Since everything was last compared, or is going to be.
        self._hints = 0
        # Whether the watches were opened again and have reported nothing yet.
        self._unproven = False
        # The earliest time at which they are opened again for a name that is not UTF-8.
        self._next_open = 0.0

    async def open(self) -> None:
        """Open the watches, then compare: from here on nothing is missed.

        Raises:
            OSError: when they cannot be opened; the message names the limit that was reached.
        """
        for last in (*[False] * _ATTEMPTS, True):
            if await self._open_once(last=last) or last:
                return
            await self.close()

    async def next(self) -> Mapping[str, Change]:
        """Wait for reports, or for the time to look again, and return the changes since the last call, if any.

        Raises:
            OSError: when the watches broke and cannot be opened again.
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
            await self.close()
            await self.open()
        return self._tree.take_changes()

    async def close(self) -> None:
        """Close the watches."""
        watch, self._watch = self._watch, None
        if watch is not None:
            await watch.close()

    async def _open_once(self, *, last: bool) -> bool:
        """Open the watches for what is there now, and compare; return whether they are right for what was found."""
        watch_set = await asyncio.to_thread(self._tree.watch_set)
        self._watch = _Watch(watch_set, step=self._step)
        try:
            await self._watch.open()
        except PermissionError:
            if last:
                raise
            await asyncio.to_thread(self._tree.find_unwatchable)
            return False
        except _WatchBroken:
            # Something vanished between the look and the watch.
            if last:
                raise
            await asyncio.to_thread(self._tree.compare)
            return False
        await asyncio.to_thread(self._tree.compare)
        return watch_set == await asyncio.to_thread(self._tree.watch_set)

    async def _recover(self, error: _WatchBroken) -> None:
        if self._unproven:
            raise error
        _log.warning("the watches on %s are opened again: %s", ", ".join(sorted(self._tree.index.real_roots())), error)
        await self.close()
        self._unproven = True
        await self.open()

    async def _reopen(self) -> None:
        """Open the watches again after a name that is not UTF-8, and compare.

        If such names keep coming, this looks every second, or less often if a look takes long.
        """
        now = asyncio.get_running_loop().time
        await self.close()
        await asyncio.sleep(self._next_open - now())
        began = now()
        # If it is the name of a directory, watches on all above it would report it again and again.
        await asyncio.to_thread(self._tree.find_unwatchable)
        await self.open()
        self._next_open = now() + max(_MOMENT, _SHARE * (now() - began))

    def _misses_something(self) -> bool:
        return self._watch is None or self._watch.watch_set != self._tree.watch_set()

    def _timeout(self, now: float) -> float | None:
        return max(0.0, min(at for at, _ in self._due) - now) if self._due else None

    def _take_due(self, now: float) -> set[str]:
        """Return the directories to read again by now."""
        due = [each for at, each in self._due if at <= now]
        self._due = [(at, each) for at, each in self._due if at > now]
        return set[str]().union(*due)

    def _schedule(self, hints: int, now: float) -> bool:
        """Decide what to read again, and when; return whether there are new directories."""
        self._hints += hints
        if self._hints >= _MANY:
            self._hints = 0
            self._due.append((now + _MOMENT, self._tree.index.real_roots()))
        if new := self._tree.take_new_directories():
            self._due.extend((now + pause, new) for pause in _AGAIN)
        return bool(new)


# -- the system's reports --------------------------------------------------------------------------------------


class _WatchBroken(OSError):
    """The watches are gone or incomplete; open new ones, and compare."""


class _NameNotText(_WatchBroken):
    """A file whose name is not UTF-8 changed; these watches report nothing more."""


class _Watch:
    """The watches for one `WatchSet`; they exist when `open` returns, and must be closed again."""

    def __init__(self, watch_set: WatchSet, *, step: float) -> None:
        self.watch_set = watch_set
        self._step_ms = max(1, round(step * 1000))
        self._batches: list[AsyncGenerator[set[tuple[RawChange, str]], None]] = []
        # The next batch of each; its thread waits in the kernel until something happens.
        self._pending: dict[asyncio.Task[set[tuple[RawChange, str]]], int] = {}

    async def open(self) -> None:
        """Set up the watches; this takes the loop a moment for each directory.

        Raises:
            OSError: when they cannot be set up; the message names the limit that was reached.
        """
        from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType]  # its hints name trio, which is not here

        wanted = self.watch_set
        # Around watched directories little happens: frequent looks there would only take time from looks inside them.
        flat_step = max(self._step_ms, _UNHURRIED_MS) if wanted.deep and not wanted.whole else self._step_ms
        for paths, recursive, step in ((wanted.deep, True, self._step_ms), (wanted.flat, False, flat_step)):
            if paths:
                batches = awatch(
                    *sorted(paths),
                    watch_filter=None if recursive else self._concerns,
                    step=step,
                    debounce=max(_LONGEST_BATCH * step, _SHORTEST_BATCH_MS),
                    recursive=recursive,
                    # It would hide every other error as well, such as a limit that is reached.
                    ignore_permission_denied=False,
                )
                self._batches.append(batches)
                self._request(len(self._batches) - 1)
        # One turn of the loop brings each to where it waits for the first change; its watches exist by then.
        await asyncio.sleep(0)
        for task in self._pending:
            if task.done():
                _result(task)

    async def next(self, timeout: float | None) -> set[tuple[RawChange, str]]:
        """Return the reports since the last call, after at least one report or ``timeout`` seconds.

        Raises:
            _WatchBroken: when reports may be missing from now on.
        """
        done, _ = await asyncio.wait(self._pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        hints: set[tuple[RawChange, str]] = set()
        for task in done:
            hints |= _result(task)
            self._request(self._pending.pop(task))
        return hints

    async def close(self) -> None:
        """Remove the watches; their threads end within a step."""
        for task in self._pending:
            task.cancel()
        await asyncio.gather(*self._pending, return_exceptions=True)
        for batches in self._batches:
            await batches.aclose()

    def is_outdated_by(self, hints: set[tuple[RawChange, str]]) -> bool:
        """Return whether ``hints`` concern a watched directory or the way to one, and not only its contents."""
        wanted = self.watch_set
        return any(path in wanted.entries or path in wanted.deep or path in wanted.flat for _, path in hints)

    def _request(self, number: int) -> None:
        self._pending[asyncio.ensure_future(anext(self._batches[number]))] = number

    def _concerns(self, _: RawChange, path: str) -> bool:
        """Return whether a report from a flat watch matters; most do not."""
        wanted = self.watch_set
        return path in wanted.entries or path in wanted.flat or os.path.dirname(path) in wanted.whole  # noqa: PTH120


def _result(task: asyncio.Task[set[tuple[RawChange, str]]]) -> set[tuple[RawChange, str]]:
    try:
        return task.result()
    except StopAsyncIteration:
        raise _WatchBroken("the watch ended by itself") from None
    except Exception as error:
        raise _explained(error) from error


def _explained(error: Exception) -> OSError:
    """Return the same error; if a limit of the system was reached, with its name, value and remedy."""
    while isinstance(error, ExceptionGroup):
        # awatch puts its errors into groups of one.
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
            return "this process has as many files open as it may; raise the limit with `ulimit -n`"
        return f"the system's limit on watched files ({limit}) is reached; raise it, watch fewer directories, or poll"
    return (
        f"the limit fs.inotify.{limit}, {present} here, is reached; raise it with "
        f"`sudo sysctl fs.inotify.{limit}={max(present * 4, 1024)}`, watch fewer directories, or poll"
    )

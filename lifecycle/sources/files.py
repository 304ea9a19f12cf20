"""Events for added, modified and deleted files, based on inotify's reports or on polling.

Each directory is watched before its entries are read, so no change is missed. A report is only a hint to check an entry
again. If the kernel's queue overflows, all files are compared.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias

from lifecycle._durations import in_seconds, in_seconds_or_none
from lifecycle._util import file_mode
from lifecycle.events import Change, FileEvent
from lifecycle.sources._file_tree import DEFAULT_IGNORES, Rules, Tree, may_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from lifecycle._durations import Duration
    from lifecycle.control import Emit
    from lifecycle.sources._inotify import Inotify

    _Filter: TypeAlias = Callable[[Change, Path], bool]

__all__ = ["DEFAULT_IGNORES", "FileWatchSource"]

# The seconds between scans on systems without inotify.
_POLL = 1.0
# How many times in a row to look at the entries that lead to the watched paths if they keep changing.
_ATTEMPTS = 5


class FileWatchSource:
    """Sends a `FileEvent` for every file at or below ``paths`` that is added, modified or deleted.

    Each path must exist when the source starts. Later, a path may be replaced, or deleted and created again, and links
    that lead to it may change. Events have absolute paths that begin with a path as you specified it (links are not
    resolved). Several changes to a file within one ``step`` are combined into one event with their net effect. A file
    that is created and deleted again causes no event. Directories cause no events, but the files in them do.

    Files whose names are not UTF-8 are skipped, and this is logged once.

    Args:
        paths: The files and directories to watch. At least one is required.
        recursive: Whether to watch all subdirectories, including those created later.
        include: Globs. If you pass any globs, only files that match at least one of them are reported. A glob without a
            slash is matched against a file's name. A glob with a slash is matched against the file's path below the
            watched directory. ``*`` matches within one name, and ``**`` matches any number of directories.
        ignore: Globs for files and directories to ignore, including everything inside these directories. The ``paths``
            themselves are never ignored.
        filter: Called with the change and the path. If it returns false, no event is sent.
        step: Seconds to wait for more changes before reporting them.
        follow_links: Whether to follow links to directories outside ``paths``. Links to files, and to directories
            inside ``paths``, are always followed.
        poll: Seconds between scans of all files, for file systems without notifications (NFS, WSL, some container
            mounts). By default, Linux's notifications are used, and other systems are polled once per second.

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
        self._poll = in_seconds_or_none("poll", poll, finite=True) or (None if sys.platform == "linux" else _POLL)
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
        """Set up the watches before the source is entered, so that every change from now on is sent.

        Raises:
            OSError: if a path does not exist or cannot be read, or a watch cannot be set up.
        """
        is_new = self._tree is None
        tree = await asyncio.to_thread(self._new_tree) if self._tree is None else self._tree
        changes = _WatchedChanges(tree, self._step) if self._poll is None else _PolledChanges(tree, self._poll)
        try:
            await changes.open(is_new=is_new)
        except BaseException as error:
            changes.close()
            if not isinstance(error, Exception):
                # A thread may still work with the tree.
                self._tree = None
            raise
        found = tree.take_changes()
        if not is_new:
            self._pending.extend(sorted(found.items()))
        self._tree, self._changes = tree, changes

    async def __aenter__(self) -> Self:
        """Set up the watches. Every later change is sent as an event.

        Raises:
            FileNotFoundError: if a path does not exist.
            OSError: if a watch cannot be set up. The message names the limit that was reached.
        """
        if self._changes is None:
            await self._look()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the watches."""
        if self._changes is not None:
            self._changes.close()
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

    async def open(self, *, is_new: bool) -> None:  # noqa: ARG002  # the same as for watches
        """Compare all files with the snapshot."""
        # The clock of a network file system may differ from the local clock, so listing the names is not enough.
        await asyncio.to_thread(self._tree.compare)

    async def next(self) -> Mapping[str, Change]:
        """Wait for the interval, then compare all files with the snapshot."""
        await asyncio.sleep(self._interval)
        await asyncio.to_thread(self._tree.compare)
        return self._tree.take_changes()

    def close(self) -> None:
        """Do nothing, because no resource is open."""


class _WatchedChanges:
    """Changes found by checking inotify's reports, which are collected for ``step`` seconds."""

    def __init__(self, tree: Tree, step: float) -> None:
        self._tree = tree
        self._step = step
        self._inotify: Inotify | None = None
        # The entries that determine where the watched paths lead.
        self._entries: set[str] = set()

    async def open(self, *, is_new: bool) -> None:
        """Watch each directory, then read it. If the tree is new, its files are not reported as added.

        Raises:
            OSError: if a limit has been reached, which the message names.
        """
        from lifecycle.sources._inotify import Inotify

        self._inotify = Inotify()
        self._tree.watch = self._inotify.watch
        await asyncio.to_thread(self._begin, self._inotify, is_new=is_new)

    async def next(self) -> Mapping[str, Change]:
        """Wait for reports, and return the changes since the last call, if any.

        Raises:
            OSError: if a new directory cannot be watched.
        """
        assert self._inotify is not None, "it is open"
        await self._inotify.ready()
        await asyncio.sleep(self._step)
        await asyncio.to_thread(self._update, self._inotify)
        return self._tree.take_changes()

    def close(self) -> None:
        """Remove the watches."""
        if self._inotify is not None:
            self._inotify.close()

    def _begin(self, inotify: Inotify, *, is_new: bool) -> None:
        self._watch_entries(inotify)
        (self._tree.list_files if is_new else self._tree.compare)()
        self._follow_links(inotify)

    def _update(self, inotify: Inotify) -> None:
        """Check the reported entries, and every directory that was replaced or has become readable."""
        reports = inotify.read()
        index = self._tree.index
        hints = {
            path: modified
            for path, modified in reports.hints.items()
            if path in self._entries or index.at(os.path.dirname(path))  # noqa: PTH120  # strings are faster
        }
        watched = inotify.watched
        again = reports.ended | {path for path in hints if index.at(path) and path not in watched}
        if reports.overflowed:
            self._tree.compare()
        if hints or again:
            self._tree.update(hints.items(), again)
        if reports.overflowed or reports.ended or index.links_changed or not self._entries.isdisjoint(hints):
            self._follow_links(inotify)

    def _follow_links(self, inotify: Inotify) -> None:
        """Watch the entries that lead to the watched paths until they no longer change. Remove unnecessary watches."""
        for _ in range(_ATTEMPTS):
            if not self._watch_entries(inotify):
                break
            self._tree.update(())
        needed = self._tree.index.real_directories() | set(map(os.path.dirname, self._entries))
        for path in inotify.watched - needed:
            inotify.unwatch(path)

    def _watch_entries(self, inotify: Inotify) -> bool:
        """Watch the directories of the entries that lead to the watched paths. Return whether any of these are new."""
        before, self._entries = self._entries, self._tree.entries()
        # In a directory such as /tmp, other programs may write to their files all the time.
        contents = {entry: not os.path.isdir(entry) for entry in self._entries}  # noqa: PTH112
        new = [inotify.watch(os.path.dirname(entry), contents=each) for entry, each in contents.items()]  # noqa: PTH120
        return any(new) or self._entries != before

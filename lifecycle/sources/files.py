"""Events for added, modified and deleted files, from the system's notifications or from polling.

A thread waits for hints and compares the entries that they name with a snapshot. Its result is the net changes.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from lifecycle._async import shield, start_task, wait_within
from lifecycle._durations import in_seconds, in_seconds_or_none
from lifecycle._util import file_mode
from lifecycle.control.merging import merge_change
from lifecycle.events import Change, FileEvent
from lifecycle.events.sources import Source
from lifecycle.sources._file_hints import WATCHES_DEEP, Hints
from lifecycle.sources._file_rules import DEFAULT_IGNORES, Rules
from lifecycle.sources._file_tree import Tree, may_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from lifecycle._durations import Duration
    from lifecycle.control import Emit

    _Filter: TypeAlias = Callable[[Change, Path], bool]

__all__ = ["DEFAULT_IGNORES", "FileWatchSource"]

#: The longest time, in seconds, between two looks at links, and the shortest between two comparisons of all files.
_LOOK, _COMPARE = 1.0, 10.0
#: A look or a comparison that takes c seconds of a core is repeated after 200 c seconds, so that it takes 0.5 %.
_RARELY: Final = 200
#: If a watcher fails again and again, replacing it takes at most 20 % of a core.
_PAUSE: Final = 4
#: Linux keeps 16,384 reports, and about four per new file. If so many paths are reported at once, others may be lost.
_FLOOD: Final = 3000


class FileWatchSource(Source):
    """Sends a `FileEvent` for every file at or below ``paths`` that is added, modified or deleted.

    Each path must exist when the source starts. Later, a path may be replaced, or deleted and created again, and links
    that lead to it may change. Events have absolute paths that begin with a path as you specified it (links are not
    resolved). Several changes to a file within one ``step`` are combined into one event with their net effect. A file
    that is created and deleted again causes no event. Directories cause no events, but the files in them do.

    Files whose names are not UTF-8 are skipped, and this is logged once. So is a directory that cannot be read.

    Args:
        paths: The files and directories to watch. At least one is required.
        recursive: Whether to watch all subdirectories, including those created later.
        include: Globs. If you pass any globs, only files that match at least one of them are reported. A glob without a
            slash is matched against a file's name. A glob with a slash is matched against the file's path below the
            watched directory. ``*`` matches within one name, and ``**`` matches any number of directories.
        ignore: Globs for files and directories to ignore, including everything inside these directories. The ``paths``
            themselves are never ignored.
        filter: Called with the change and the path. If it returns false, no event is sent.
        existing: Whether to report each file that exists at the start as added.
        settled: Report a change to a file only once the file has not changed for this many seconds, so that a file
            that is still being written is not reported [default: report every change].
        step: Seconds to wait for more changes before reporting them.
        follow_links: Whether to follow links to directories outside ``paths``. Links to files, and to directories
            inside ``paths``, are always followed.
        poll: Seconds between scans of all files, for file systems without notifications (NFS, WSL, some container
            mounts) [default: the system's notifications].

    Raises:
        ValueError: if no path is passed, or ``settled``, ``step`` or ``poll`` is not a positive number of seconds.
        InvalidPattern: if a glob cannot be parsed.
    """

    #: The maximum seconds for collecting reports if there is one in each step [default: one step].
    _longest: float | None = None
    #: Whether to ignore a directory that no glob ignores.
    _prunes: Callable[[Path], bool] | None = None

    def __init__(  # noqa: PLR0913  # what to report, and how to find it
        self,
        *paths: str | Path,
        recursive: bool = True,
        include: Iterable[str] = (),
        ignore: Iterable[str] = DEFAULT_IGNORES,
        filter: _Filter | None = None,  # noqa: A002  # the public API sets this name
        existing: bool = False,
        settled: Duration | None = None,
        step: Duration = 0.025,
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
        self._existing = existing
        self._settled = in_seconds_or_none("settled", settled, finite=True) or 0.0
        self._step = in_seconds("step", step, finite=True)
        self._poll = in_seconds_or_none("poll", poll, finite=True)
        self._recursive = recursive
        self._follow_links = follow_links
        self._rules = Rules(include, ignore)
        # We keep the tree when the source fails, so that a restarted source can report changes made in the meantime.
        self._tree: Tree | None = None
        self._finder: _Finder | None = None
        # The net changes that have not been sent, in the order in which they settle, and the loop's time when they do.
        self._pending: dict[str, Change] = {}
        self._due: dict[str, float] = {}

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
        finder = _Finder(tree, self._step, self._longest or self._step, self._poll)
        try:
            await finder.call(partial(finder.open, names=is_new and not self._existing))
        except BaseException as error:
            finder.close()
            if not isinstance(error, Exception):
                self._tree = None
            raise
        self._tree, self._finder = tree, finder
        self._take(tree)

    async def __aenter__(self) -> Self:
        """Set up the watches. Every later change is sent as an event.

        Raises:
            FileNotFoundError: if a path does not exist.
            OSError: if a watch cannot be set up. The message names the limit.
        """
        if self._finder is None:
            await self._look()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the watches."""
        if self._finder is not None:
            self._finder.close()
            self._finder = None
        if not isinstance(error, Exception):
            self._tree = None
            self._pending.clear()
            self._due.clear()

    async def run(self, emit: Emit) -> None:
        """Send changes until cancelled. The router calls this."""
        if self._finder is None:
            async with self:
                await self.run(emit)
            return
        now, news = asyncio.get_running_loop().time, asyncio.Event()
        finding = start_task(self._find(self._finder, news), name=f"find changes of {self.name}")
        try:
            while True:
                news.clear()
                if finding.done():
                    finding.result()
                path = next(iter(self._pending), None)
                if path is None:
                    await news.wait()
                elif (left := self._due.get(path, 0) - now()) > 0:
                    await wait_within(left, news)
                else:
                    await self._send(emit)
        finally:
            finding.cancel()
            await shield(asyncio.ensure_future(asyncio.wait({finding})))

    async def _find(self, finder: _Finder, news: asyncio.Event) -> None:
        """Find changes until cancelled. While a handler runs, they are merged, so that there is one for each path."""
        try:
            while True:
                await asyncio.sleep(self._poll or 0)
                await finder.call(finder.find)
                self._take(finder.tree)
                news.set()
        finally:
            news.set()

    def _take(self, tree: Tree) -> None:
        """Add new changes to those that are not sent yet. They are sent in the order in which they settle."""
        due = asyncio.get_running_loop().time() + self._settled
        for path, change in sorted(tree.take_changes().items()):
            merge_change(self._pending, path, change)
            self._due.pop(path, None)
            if self._settled and path in self._pending:
                self._due[path] = due

    async def _send(self, emit: Emit) -> None:
        """Send the first change that is due, unless the filter rejects it."""
        name = next(iter(self._pending))
        self._due.pop(name, None)
        change, path = self._pending.pop(name), Path(name)
        if self._filter is None or self._filter(change, path):
            await emit(FileEvent(change, path))

    def _compare_soon(self) -> None:
        """Compare all files after the next report, because other directories may be ignored now."""
        if self._finder is not None:
            self._finder.compare_at = 0.0

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
        follow = self._follow_links
        return Tree(roots, self._rules, recursive=self._recursive, follow_links=follow, prunes=self._prunes)


class _Finder:
    """Finds changes in a thread, because watchfiles blocks while it waits."""

    def __init__(self, tree: Tree, step: float, longest: float, poll: float | None) -> None:
        self.tree: Tree = tree
        self._poll = poll
        self._stop = tree.stop = threading.Event()
        self._hints = Hints(step, longest, self._stop)
        self._thread = ThreadPoolExecutor(1, "lifecycle files")
        #: The time from which on all files are compared after the next report or look.
        self.compare_at: float = 0.0
        self._compare_every = _COMPARE
        # The times of the next look at links: after a report, and without one.
        self._look_first = self._look_at = 0.0

    async def call(self, method: Callable[[], None]) -> None:
        """Call ``method`` in the thread. Cancellation ends it early, and the rest is found by the next comparison."""
        job = asyncio.get_running_loop().run_in_executor(self._thread, method)
        try:
            await asyncio.wait({job})
        except asyncio.CancelledError:
            self._stop.set()
            await shield(asyncio.ensure_future(asyncio.wait({job})))
            self._stop.clear()
            raise
        job.result()

    def close(self) -> None:
        """End the thread, and remove the watches."""
        self._thread.shutdown(wait=False)
        self._hints.close()

    def open(self, *, names: bool) -> None:
        """Compare all files, and watch their directories. With ``names``, the tree is new, and nothing is a change."""
        # The clock of a network file system may differ from the local clock, so listing the names is not enough.
        self._compare(names=names and self._poll is None)
        if names:
            self.tree.take_changes()

    def find(self) -> None:
        """Wait for reports, and compare the files that they name with the tree, or all files if it is time."""
        if self._poll is not None:
            self.tree.compare()
            return
        hints = self._hints.wait(max(0.0, self._look_at - time.monotonic()))
        now, began = time.monotonic(), time.thread_time()
        if hints is None:
            self._watch()
            self._stop.wait(_PAUSE * (time.thread_time() - began))
            return
        self.tree.update(hints)
        if now >= self.compare_at or len(hints) >= _FLOOD:
            self._compare()
        if now >= (self._look_first if hints else self._look_at):
            began = time.thread_time()
            self.tree.look_at_links()
            rarely = _RARELY * (time.thread_time() - began)
            self._look_first, self._look_at = now + min(rarely, _LOOK), now + max(rarely, _LOOK)
        elif hints:
            self._look_at = self._look_first
        self._watch()

    def _compare(self, *, names: bool = False) -> None:
        began = time.thread_time()
        self.compare_at = time.monotonic() + self._compare_every
        self.tree.compare(names=names)
        self._watch(names=names)
        self._compare_every = max(_COMPARE, _RARELY * (time.thread_time() - began))

    def _watch(self, *, names: bool = False) -> None:
        """Watch the new directories. Then read them, because they may have changed before they were watched."""
        while self._poll is None and not self._stop.is_set():
            new, late = self._hints.watch(self.tree.directories(roots=WATCHES_DEEP))
            if not new:
                return
            self.tree.read(new, deep=WATCHES_DEEP, names=names)
            self.tree.update(late)

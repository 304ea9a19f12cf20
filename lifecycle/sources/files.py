"""Added, modified and deleted files as events; ``_files`` finds them."""

from __future__ import annotations

import asyncio
import errno
import math
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias

from lifecycle.events import Change, FileEvent
from lifecycle.sources._files.tree import DEFAULT_IGNORES, Rules, Tree
from lifecycle.sources._files.watching import PolledChanges, WatchedChanges, may_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from lifecycle.control import Emit

    _Filter: TypeAlias = Callable[[Change, Path], bool]

__all__ = ["DEFAULT_IGNORES", "FileWatchSource"]


class FileWatchSource:
    """A `FileEvent` for every file at or below ``paths`` that is added, modified or deleted.

    Each path is a file or a directory, and has to exist when the source starts; from then on it may be replaced,
    deleted and made again, and links on the way to it may be swapped. Events carry absolute paths, below each path as
    it was given (links are not resolved). Several changes to a file within one ``step`` are one event with their net
    effect; a file that was created and deleted again causes none. Directories cause no events, the files in them do.

    A name that is not UTF-8 is skipped, which is logged once. While such a file is being written to, other changes may
    be reported a second late.

    Args:
        paths: The files and directories to watch, at least one.
        recursive: Whether directories are watched with all below them, also those made later.
        include: Globs; if there are any, only files that match one count. A glob without a slash is matched against
            the name, anywhere below a watched directory; one with a slash against the path from there on, where ``*``
            stays within one name and ``**`` stands for any number of directories.
        ignore: Globs of the same kind, for files and for directories, which are left out with all they contain. A
            path that was named in ``paths`` is never ignored.
        filter: Called with the change and the path; the event is sent if it returns true.
        step: Seconds to wait for more changes before they are reported; rounded to milliseconds.
        follow_links: Whether links to directories outside of ``paths`` are followed too. Links to files, and to
            directories at or below one of ``paths``, always are.
        poll: Seconds between looks at all files, for file systems that report nothing (NFS, WSL, some container
            mounts); ``None`` relies on the system's reports.

    Raises:
        ValueError: for no path, or a step or poll that is not a positive number of seconds.
        InvalidPattern: for a glob that cannot be read.
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
        self._changes: WatchedChanges | PolledChanges | None = None
        # Found and not yet sent.
        self._pending: deque[tuple[str, Change]] = deque()

    def __repr__(self) -> str:
        return f"FileWatchSource({', '.join(repr(str(path)) for path in self.paths)})"

    @property
    def skipped(self) -> int:
        """How many names in the watched directories are skipped now because they are not UTF-8."""
        return 0 if self._tree is None else self._tree.skipped

    async def __aenter__(self) -> Self:
        """Set up the watches: every change after this is sent.

        Raises:
            FileNotFoundError: for a path that does not exist.
            OSError: when a watch cannot be set up; the message names the limit that was reached.
        """
        tree = await asyncio.to_thread(self._first_look) if self._tree is None else self._tree
        self._changes = WatchedChanges(tree, self._step) if self._poll is None else PolledChanges(tree, self._poll)
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

"""A snapshot of the watched files to compare with the disk.

A report of the system is only a hint to look at an entry. The change itself is found by comparing the entry with the
snapshot. As a result, a replaced file is always reported as modified, and a file that is created and deleted between
two looks is not reported. All methods block, so call them in a thread, one at a time.
"""

# We use strings for paths, as the system does. Creating a Path for each file would take longer than looking at it.
# ruff: noqa: PTH116, PTH118, PTH119, PTH120

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from lifecycle.control.merging import merge_change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lifecycle.events import Change
    from lifecycle.sources._file_rules import Rules

__all__ = ["STAMP_NS", "Identity", "Tree", "may_read"]

_log = logging.getLogger("lifecycle.sources")

#: The device and inode of a directory.
Identity: TypeAlias = tuple[int, int]

#: Two writes within this many nanoseconds may get the same timestamp. The clock for file times advances in steps of up
#: to 10 ms.
STAMP_NS = 20_000_000
#: A directory that changed this many nanoseconds before a listing has not changed since. FAT has steps of two seconds.
_LONG_NS = 3_000_000_000
#: The state of a file that was only listed, and of one whose directory was replaced later. No file on the disk has it.
_LISTED, _REPLACED = -1, -2


class _Folder:
    """The last known state of a directory.

    A directory that contains a watched path has the name of the watched path in ``only``. No other entry counts.
    """

    def __init__(self, path: str, *, below: str = "", above: _Folder | None = None, only: str | None = None) -> None:
        #: The path as the user specified it, and the path without links, at which the system reports changes.
        self.path: str = path
        self.real: str = ""
        #: The path below the watched path, with a slash at the end. Empty for the watched path itself.
        self.below: str = below
        self.above: _Folder | None = above
        self.only: str | None = only
        #: None if the directory is gone, or this process cannot read it. Then it cannot be watched.
        self.identity: Identity | None = None
        #: The directories, and a number for the state of each file.
        self.entries: dict[str, _Folder | int] = {}
        #: The names of all links, wherever they lead. Their targets may change without a hint.
        self.links: set[str] = set()
        #: The number of names that are skipped because they are not UTF-8.
        self.skipped: int = 0

    def folders(self) -> list[_Folder]:
        return [entry for entry in self.entries.values() if isinstance(entry, _Folder)]


class Tree:
    """The files at and below ``roots``, which are absolute paths.

    ``prunes`` is called with the path of each directory that ``rules`` do not ignore. If it returns true, the directory
    is ignored, too. Links to directories outside the roots are followed only if ``follow_links`` is true.
    """

    def __init__(
        self,
        roots: Iterable[str],
        rules: Rules,
        *,
        recursive: bool = True,
        follow_links: bool = False,
        prunes: Callable[[Path], bool] | None = None,
    ) -> None:
        self._rules, self._prunes = rules, prunes
        self._recursive, self._follow_links = recursive, follow_links
        self._roots = tuple(dict.fromkeys(roots))
        # The directories by real path. One that can be reached through several links has several snapshots.
        self._at: dict[str, list[_Folder]] = {}
        self._tops = [_Folder(os.path.dirname(root), only=os.path.basename(root)) for root in self._roots]
        self._real_roots: tuple[str, ...] = ()
        # The net change to each path since the last call to `take_changes`.
        self._changes: dict[str, Change] = {}
        # A file that is only listed has changed if its time is later than this number of nanoseconds.
        self._listed_at = 0
        # Files that were looked at so soon after a write that the next write may leave their state as it is.
        self._fresh: set[str] = set()
        self._warned: set[str] = set()
        #: Ends a comparison early if it is set. The next comparison finds the other changes.
        self.stop: threading.Event = threading.Event()

    @property
    def skipped(self) -> int:
        """The number of names that are skipped because they are not UTF-8."""
        return sum(folder.skipped for folders in list(self._at.values()) for folder in folders)

    def directories(self, *, roots: bool) -> dict[str, Identity]:
        """Return the real paths of the directories to watch, or, with ``roots``, only those of the roots.

        All directories include those that contain the roots. A root that is a file has only its directory.
        """
        folders = [folder for folder, *_ in self._at.values()]
        if roots:
            folders = [folder for top in self._tops for folder in (top.folders() or [top])]
        return {folder.real: folder.identity for folder in folders if folder.identity is not None}

    def take_changes(self) -> Mapping[str, Change]:
        """Return the net change to each path since the last call."""
        changes, self._changes = self._changes, {}
        return changes

    def compare(self, *, names: bool = False) -> None:
        """Compare all files with the disk. On the first call, every file is added.

        With ``names``, new files are only listed, without a change, which takes a fraction of the time.
        """
        if names:
            self._listed_at = time.time_ns() - STAMP_NS
        self._place_roots()
        self._read(self._tops, deep=True, names=names)

    def read(self, reals: Iterable[str], *, deep: bool = False, names: bool = False) -> None:
        """Compare the directories with these real paths, and all below them if ``deep`` is true."""
        self._place_roots()
        since = self._listed_at - _LONG_NS if names and not deep else 0
        folders = [folder for real in reals if _changed_at(real) >= since for folder in self._at.get(real, ())]
        self._read(folders, deep=deep, names=names)

    def update(self, hints: Iterable[str]) -> None:
        """Compare the entries with these real paths."""
        directory: str
        name: str
        for path in hints:
            directory, name = os.path.split(path)
            while directory not in self._at and name:
                directory, name = os.path.split(directory)
            for folder in self._at.get(directory, [])[:]:
                self._read(self._look(folder, name, hinted=True))

    def look_at_links(self) -> None:
        """Look at each root and link, because the directories on the way to its target are not watched."""
        self._place_roots()
        links = [(folder, name) for folders in self._at.values() for folder in folders for name in folder.links]
        for folder, name in [*((top, top.only or "") for top in self._tops), *links]:
            # An earlier look may have removed the directory.
            if folder.real:
                self._read(self._look(folder, name))

    def _place_roots(self) -> None:
        """Find where the roots and the directories that contain them are now."""
        self._real_roots = tuple(map(os.path.realpath, self._roots))
        for top in self._tops:
            self._move(top, os.path.realpath(top.path))
            try:
                top.identity = _identity(os.stat(top.real)) if may_read(top.real) else None
            except OSError:
                top.identity = None

    # -- comparing with the disk --------------------------------------------------------------------------------

    def _read(self, folders: Iterable[_Folder], *, deep: bool = False, names: bool = False) -> None:
        """Read directories and the new ones below them, or all below them if ``deep`` is true.

        We use a loop, because recursion could overflow the call stack.
        """
        pending, wants, skips = [*folders], self._rules.wants, self._rules.skips
        while pending and not self.stop.is_set():
            folder = pending.pop()
            found = self._list(folder) if folder.real else None
            if found is None:
                continue
            new: list[_Folder] = []
            for name in {*found, *folder.entries, *folder.links}:
                entry = found.get(name) if names else None
                if entry is None or not entry.is_file(follow_symlinks=False):
                    new += self._look(folder, name)
                elif name not in folder.entries:
                    relative = folder.below + name
                    if wants(name, relative) and not skips(name, relative):
                        folder.entries[name] = _LISTED
            pending += folder.folders() if deep else new

    def _list(self, folder: _Folder) -> dict[str, os.DirEntry[str] | None] | None:
        """Return the entries of a directory, which are none if it is gone, or None if it cannot be read."""
        if folder.only is not None:
            return {folder.only: None}
        try:
            with os.scandir(folder.path) as entries:
                found: dict[str, os.DirEntry[str] | None] = {each.name: each for each in entries}
        except (FileNotFoundError, NotADirectoryError):
            folder.identity = None
            return {}
        except OSError as error:
            folder.identity = None
            self._warn(
                folder.real, f"changes in {folder.path} are not reported, because it cannot be read: {error.strerror}"
            )
            return None
        odd = [name for name in found if not (name.isascii() or _is_text(name) or self._skips(folder, name))]
        folder.skipped = len(odd)
        for name in odd:
            del found[name]
        if odd:
            text = f"the name {odd[0]!r} in {folder.path} is not UTF-8, so it is skipped; rename it"
            self._warn("", f"{text} (other such names are not logged)")
        return found

    def _warn(self, of: str, text: str) -> None:
        if of not in self._warned:
            self._warned.add(of)
            _log.warning(text)

    def _skips(self, folder: _Folder, name: str) -> bool:
        return name != folder.only if folder.only is not None else self._rules.skips(name, folder.below + name)

    def _wants(self, folder: _Folder, name: str) -> bool:
        return folder.only is not None or self._rules.wants(name, folder.below + name)

    def _look(self, folder: _Folder, name: str, *, hinted: bool = False) -> list[_Folder]:
        """Compare one entry. If it is a directory that is new here, return it. ``hinted``: the system reported it."""
        if self._skips(folder, name):
            return []
        path, link = os.path.join(folder.path, name), False
        found: os.stat_result | None
        try:
            found = os.lstat(path)
            if link := stat.S_ISLNK(found.st_mode):
                found = os.stat(path)
        except OSError:
            found = None
        (folder.links.add if link else folder.links.discard)(name)
        if found is not None and stat.S_ISDIR(found.st_mode):
            return self._enter(folder, name, path, _identity(found))
        if found is not None and stat.S_ISREG(found.st_mode) and self._wants(folder, name):
            self._record(folder, name, path, found, hinted=hinted)
        else:
            self._forget(folder, name)
        return []

    def _record(self, folder: _Folder, name: str, path: str, found: os.stat_result, *, hinted: bool) -> None:
        """Record a file."""
        state = abs(hash((found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)))
        known = folder.entries.get(name)
        if isinstance(known, _Folder):
            self._forget(folder, name)
            known = None
        if known is None:
            merge_change(self._changes, path, "added")
        elif known == _LISTED:
            # A link may lead to a file that is older than the list.
            if hinted or name in folder.links or found.st_ctime_ns >= self._listed_at:
                merge_change(self._changes, path, "modified")
        elif known != state or (hinted and path in self._fresh):
            merge_change(self._changes, path, "modified")
        folder.entries[name] = state
        is_fresh = time.time_ns() - found.st_ctime_ns < STAMP_NS
        (self._fresh.add if is_fresh else self._fresh.discard)(path)

    def _enter(self, folder: _Folder, name: str, path: str, identity: Identity) -> list[_Folder]:
        """Record a directory, or forget it if it is not part of the tree."""
        link, known = name in folder.links, folder.entries.get(name)
        real = os.path.realpath(path) if link or folder.only is not None else os.path.join(folder.real, name)
        is_part = folder.only is not None or (
            self._recursive
            and (not link or self._follows(folder, real))
            and not (self._prunes is not None and self._prunes(Path(path)))
        )
        if not is_part or not isinstance(known, _Folder):
            self._forget(folder, name)
            if not is_part:
                return []
            known = _Folder(path, below="" if folder.only is not None else f"{folder.below}{name}/", above=folder)
            folder.entries[name] = known
        elif (known.real, known.identity) == (real, identity):
            return []
        elif known.identity is not None:
            # The files of the two directories are compared one by one.
            known.entries = {each: _REPLACED if state == _LISTED else state for each, state in known.entries.items()}
        self._move(known, real)
        known.identity = identity
        return [known]

    def _follows(self, folder: _Folder, real: str) -> bool:
        """Return whether to follow a link in ``folder`` to ``real``. A link to a parent directory would be a loop."""
        above: _Folder | None = folder
        while above is not None:
            if _is_within(above.real, real):
                return False
            above = above.above
        return self._follow_links or any(_is_within(real, root) for root in self._real_roots)

    def _move(self, folder: _Folder, real: str) -> None:
        """Record where a directory is, or that it is gone if ``real`` is empty."""
        if folder.real != real:
            if folder.real:
                self._at[folder.real].remove(folder)
                if not self._at[folder.real]:
                    del self._at[folder.real]
            folder.real = real
            if real:
                self._at.setdefault(real, []).append(folder)

    def _forget(self, folder: _Folder, name: str) -> None:
        """Forget an entry, and everything below it."""
        pending = [(folder, name)]
        while pending:
            folder, name = pending.pop()
            gone = folder.entries.pop(name, None)
            if isinstance(gone, _Folder):
                self._move(gone, "")
                pending += [(gone, each) for each in gone.entries]
            elif gone is not None:
                path = os.path.join(folder.path, name)
                self._fresh.discard(path)
                merge_change(self._changes, path, "deleted")


def may_read(directory: str) -> bool:
    """Return whether this process is allowed to list ``directory``. A watch requires this permission."""
    return os.access(directory, os.R_OK, effective_ids=os.access in os.supports_effective_ids)


def _changed_at(directory: str) -> int:
    try:
        return os.stat(directory).st_ctime_ns
    except OSError:
        return time.time_ns()


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def _is_within(real: str, root: str) -> bool:
    return os.path.join(real, "").startswith(os.path.join(root, ""))


def _is_text(name: str) -> bool:
    return name.encode(errors="ignore").decode() == name

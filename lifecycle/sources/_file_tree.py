"""A snapshot of the watched files to compare with the disk.

A report of the system is only a hint to look at an entry. The change itself is found by comparing the entry with the
snapshot. As a result, a replaced file is always reported as modified, and a file that is created and deleted between
two looks is not reported. All methods block, so call them in a thread, one at a time.
"""

# We use strings for paths, as the system does. Creating a Path for each file would take longer than looking at it.
# ruff: noqa: PTH114, PTH116, PTH118, PTH119, PTH120

from __future__ import annotations

import contextlib
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
#: The state of a file that was only listed before its directory was replaced. No file on the disk has it.
_REPLACED = 0


class _Folder:
    """The last known state of a directory.

    A directory that contains a watched path has the names of its watched paths in ``only``. No other entry counts.
    """

    def __init__(self, path: str, *, below: str = "", above: _Folder | None = None, only: Iterable[str] = ()) -> None:
        #: The path as the user specified it, and the path without links, at which the system reports changes.
        self.path: str = path
        self.real: str = ""
        #: The path below the watched path, with a slash at the end. Empty for the watched path itself.
        self.below: str = below
        self.above: _Folder | None = above
        self.only: frozenset[str] = frozenset(only)
        #: None if this process cannot read the directory.
        self.identity: Identity | None = None
        #: A number for the state of each file; None if only its name has been listed.
        self.files: dict[str, int | None] = {}
        self.folders: dict[str, _Folder] = {}
        #: The names of all links, wherever they lead. Their targets may change without a hint.
        self.links: set[str] = set()
        #: The number of names that are skipped because they are not UTF-8.
        self.skipped: int = 0


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
        self._tops = [_Folder(os.path.dirname(root), only=[os.path.basename(root)]) for root in self._roots]
        self._real_roots: tuple[str, ...] = ()
        # The net change to each path since the last call to `take_changes`.
        self._changes: dict[str, Change] = {}
        # A file that is only listed has changed if its time is later than this number of nanoseconds.
        self._listed_at = 0
        # Files that were looked at so soon after a write that the next write may leave their state as it is.
        self._fresh: dict[str, int] = {}
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
            folders = [
                folder for top in self._tops for folder in (*top.folders.values(), *([top] if top.files else []))
            ]
        return {folder.real: folder.identity for folder in folders if folder.identity is not None}

    def take_changes(self) -> Mapping[str, Change]:
        """Return the net change to each path since the last call."""
        changes, self._changes = self._changes, {}
        return changes

    def compare(self, *, names: bool = False) -> None:
        """Compare all files with the disk. On the first call, every file is added.

        With ``names``, files are only listed, without a change, which takes a fraction of the time. A listed file is
        modified at the first hint, or if it has changed since the list.
        """
        if names:
            self._listed_at = time.time_ns() - STAMP_NS
        self._place_roots()
        for top in self._tops:
            for name in top.only:
                self._look(top, name)
                if name in top.folders:
                    self._scan(top.folders[name], names=names, deep=True)

    def read_again(self, reals: Iterable[str], *, names: bool = False) -> None:
        """Compare single directories, because they may have changed before they were watched."""
        for folder in [each for real in reals for each in self._at.get(real, ())]:
            with contextlib.suppress(OSError):
                if names and os.stat(folder.real).st_ctime_ns < self._listed_at - _LONG_NS:
                    continue
            for name in folder.only:
                self._look_below(folder, name)
            if not folder.only:
                self._scan(folder, names=names)

    def update(self, hints: Iterable[str]) -> None:
        """Look at the entries with these real paths, and then at each root and link."""
        now = time.time_ns()
        self._fresh = {path: at for path, at in self._fresh.items() if now - at < _LONG_NS}
        directory: str
        name: str
        for path in hints:
            directory, name = os.path.split(path)
            while directory not in self._at and name:
                directory, name = os.path.split(directory)
            for folder in self._at.get(directory, [])[:]:
                self._look_below(folder, name, hinted=True)
        self.look_at_links()

    def look_at_links(self) -> None:
        """Look at each root and link, because the directories on the way to its target are not watched."""
        self._place_roots()
        for top in self._tops:
            for name in top.only:
                self._look_below(top, name)
        every = [folder for folders in self._at.values() for folder in folders]
        for folder, name in [(each, name) for each in every for name in each.links]:
            # An earlier look may have removed the directory.
            if name in folder.links:
                self._look_below(folder, name)

    def _place_roots(self) -> None:
        """Find where the roots and the directories that contain them are now."""
        self._real_roots = tuple(map(os.path.realpath, self._roots))
        for top in self._tops:
            self._move(top, os.path.realpath(top.path))
            try:
                top.identity = _identity(os.stat(top.real)) if may_read(top.real) else None
            except OSError:
                top.identity = None

    # -- looking at the disk ------------------------------------------------------------------------------------

    def _look_below(self, folder: _Folder, name: str, *, hinted: bool = False) -> None:
        """Look at one entry. If it is a directory that is new here, read it."""
        new = self._look(folder, name, hinted=hinted)
        if new is not None:
            self._scan(new)

    def _look(self, folder: _Folder, name: str, *, hinted: bool = False) -> _Folder | None:
        """Look at one entry. Return the directory if it is new here. ``hinted`` is whether the system reported it."""
        if name not in folder.only if folder.only else self._rules.skips(name, folder.below + name):
            return None
        path = os.path.join(folder.path, name)
        link = os.path.islink(path)
        try:
            found = os.stat(path)
        except OSError:
            self._forget(folder, name, link=link)
            return None
        return self._record(folder, name, found, link=link, hinted=hinted)

    def _scan(self, folder: _Folder, *, names: bool = False, deep: bool = False) -> None:
        """Read a directory and the new ones below it, or all below it if ``deep`` is true.

        We use a loop, because recursion could overflow the call stack.
        """
        pending = [folder]
        while pending and not self.stop.is_set():
            folder = pending.pop()
            entries = self._entries(folder)
            if entries is None:
                continue
            for name in {*folder.files, *folder.folders, *folder.links} - entries.keys():
                self._forget(folder, name)
            for name, entry in entries.items():
                if names and entry.is_file(follow_symlinks=False):
                    if self._rules.wants(name, folder.below + name):
                        folder.files.setdefault(name, None)
                    continue
                link = entry.is_symlink()
                try:
                    new = self._record(folder, name, entry.stat(), link=link)
                except OSError:
                    self._forget(folder, name, link=link)
                else:
                    pending += [new] if new is not None and not deep else []
            if deep:
                pending += folder.folders.values()

    def _entries(self, folder: _Folder) -> dict[str, os.DirEntry[str]] | None:
        """Return the entries that are not ignored, {} if the directory is gone, or None if it cannot be read."""
        try:
            with os.scandir(folder.path) as found:
                entries = {
                    each.name: each for each in found if not self._rules.skips(each.name, folder.below + each.name)
                }
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            folder.identity = None
            self._warn(
                folder.real, f"changes in {folder.path} are not reported, because it cannot be read: {error.strerror}"
            )
            return None
        odd = [name for name in entries if not name.isascii() and not _is_text(name)]
        folder.skipped = len(odd)
        for name in odd:
            del entries[name]
        if odd:
            text = f"the name {odd[0]!r} in {folder.path} is not UTF-8, so it is skipped; rename it"
            self._warn("", f"{text} (other such names are not logged)")
        return entries

    def _warn(self, of: str, text: str) -> None:
        if of not in self._warned:
            self._warned.add(of)
            _log.warning(text)

    # -- recording what is there --------------------------------------------------------------------------------

    def _record(
        self, folder: _Folder, name: str, found: os.stat_result, *, link: bool, hinted: bool = False
    ) -> _Folder | None:
        """Record an existing entry. Return the directory if it is new here."""
        (folder.links.add if link else folder.links.discard)(name)
        if stat.S_ISDIR(found.st_mode):
            self._forget_file(folder, name)
            return self._enter(folder, name, _identity(found))
        self._forget_folder(folder, name)
        if stat.S_ISREG(found.st_mode) and (folder.only or self._rules.wants(name, folder.below + name)):
            self._record_file(folder, name, found, hinted=hinted)
        else:
            self._forget_file(folder, name)
        return None

    def _record_file(self, folder: _Folder, name: str, found: os.stat_result, *, hinted: bool) -> None:
        path, now = os.path.join(folder.path, name), time.time_ns()
        state = hash((found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)) or 1
        if name not in folder.files:
            self._note(path, "added")
        elif (known := folder.files[name]) is None:
            # A link may lead to a file that is older than the list.
            if not hinted and name not in folder.links and found.st_ctime_ns < self._listed_at:
                return
            self._note(path, "modified")
        elif known != state or (hinted and path in self._fresh):
            self._note(path, "modified")
        folder.files[name] = state
        self._fresh.pop(path, None)
        if now - found.st_ctime_ns < STAMP_NS:
            self._fresh[path] = now

    def _enter(self, folder: _Folder, name: str, identity: Identity) -> _Folder | None:
        """Record a directory. Return it if it is new here, or was replaced. Forget it if it is not part of the tree."""
        path, link = os.path.join(folder.path, name), name in folder.links
        real = os.path.realpath(path) if link or folder.only else os.path.join(folder.real, name)
        if (
            not (self._recursive or folder.only)
            or (link and not folder.only and not self._follows(folder, real))
            or (self._prunes is not None and not folder.only and self._prunes(Path(path)))
        ):
            self._forget_folder(folder, name)
            return None
        known = folder.folders.get(name)
        if known is None:
            known = folder.folders[name] = _Folder(
                path, below="" if folder.only else f"{folder.below}{name}/", above=folder
            )
        elif (known.real, known.identity) == (real, identity):
            return None
        elif known.identity not in (identity, None):
            # The files of the two directories are compared one by one.
            known.files = {each: _REPLACED if state is None else state for each, state in known.files.items()}
        self._move(known, real)
        known.identity = identity
        return known

    def _follows(self, folder: _Folder, real: str) -> bool:
        """Return whether to follow a link in ``folder`` to ``real``. A link to a parent directory would be a loop."""
        above: _Folder | None = folder
        while above is not None:
            if _is_within(above.real, real):
                return False
            above = above.above
        return self._follow_links or any(_is_within(real, root) for root in self._real_roots)

    def _move(self, folder: _Folder, real: str | None) -> None:
        """Record where a directory is, or that it is gone."""
        if folder.real != real:
            if folder.real:
                self._at[folder.real].remove(folder)
                if not self._at[folder.real]:
                    del self._at[folder.real]
            folder.real = real or ""
            if real:
                self._at.setdefault(real, []).append(folder)

    def _forget(self, folder: _Folder, name: str, *, link: bool = False) -> None:
        """Forget an entry that does not exist. If it is a link that leads nowhere, only remember that it is a link."""
        (folder.links.add if link else folder.links.discard)(name)
        self._forget_file(folder, name)
        self._forget_folder(folder, name)

    def _forget_file(self, folder: _Folder, name: str) -> None:
        if name in folder.files:
            path = os.path.join(folder.path, name)
            del folder.files[name]
            self._fresh.pop(path, None)
            self._note(path, "deleted")

    def _forget_folder(self, folder: _Folder, name: str) -> None:
        pending = [folder.folders.pop(name)] if name in folder.folders else []
        while pending:
            gone = pending.pop()
            pending += gone.folders.values()
            self._move(gone, None)
            gone.links.clear()
            for each in [*gone.files]:
                self._forget_file(gone, each)

    def _note(self, path: str, change: Change) -> None:
        merge_change(self._changes, path, change)


def may_read(directory: str) -> bool:
    """Return whether this process is allowed to list ``directory``. A watch requires this permission."""
    return os.access(directory, os.R_OK, effective_ids=os.access in os.supports_effective_ids)


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def _is_within(real: str, root: str) -> bool:
    return os.path.join(real, "").startswith(os.path.join(root, ""))


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True

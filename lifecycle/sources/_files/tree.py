"""What is known of the watched files, and how it differs from what is on disk.

Whatever a watcher reports is a hint here and nothing more: the entry is looked at, and what became of it since the
last look is the change. So a replaced file is modified, whatever was done to replace it; what came and went in
between was never there; and a directory that turns up is read as a whole. All of this blocks: call it in a thread,
one call at a time.
"""

# The system and watchfiles speak text, and a Path for each file costs more than the look at it.
# ruff: noqa: PTH112, PTH114, PTH116, PTH118

from __future__ import annotations

import logging
import os
import stat
from typing import TYPE_CHECKING

from lifecycle.sources._files.covers import cover_all, cover_flat, is_text, outermost, unwatchable_below
from lifecycle.sources._files.folders import Folders
from lifecycle.sources._files.marks import Marks, mark_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lifecycle.events import Change
    from lifecycle.sources._files.covers import Cover
    from lifecycle.sources._files.folders import Folder
    from lifecycle.sources._files.rules import Rules

__all__ = ["Tree"]

_log = logging.getLogger("lifecycle.sources")


class Tree:
    """The files below the watched directories ``roots``, and those of the ``roots`` that are files themselves.

    Links to directories that are not below a root are followed only with ``follow_links``.
    """

    def __init__(self, roots: Iterable[str], rules: Rules, *, recursive: bool, follow_links: bool = False) -> None:
        self._rules = rules
        self._recursive = recursive
        self._follow_links = follow_links
        self._folders = Folders()
        # The roots are its entries, which no rule applies to.
        self._top = self._folders.top
        self._roots = tuple(dict.fromkeys(roots))
        self._marks = Marks()
        self._born: set[str] = set()
        # As far as they are known: nobody looks for them until a watch meets one.
        self._unwatchable: set[str] = set()
        self._has_told_of_odd_names = False

    @property
    def skipped(self) -> int:
        """How many names are skipped because they are not UTF-8."""
        return self._folders.skipped()

    def compare(self) -> None:
        """Look at everything; also the first look, which finds everything added."""
        self._look_at_roots({}, deep=True)
        self._born.clear()

    def update(self, hints: Iterable[tuple[str, bool]], again: Iterable[str] = ()) -> None:
        """Look at the paths of ``hints``, at whole directories ``again``, and at all links.

        The second half of a hint tells whether it says "modified", which counts even where nothing shows it.
        """
        hinted = _without_links(hints)
        for path, modified in hinted.items():
            for folder, name in self._folders.places(path):
                self._look(folder, name, modified=modified, deep=True)
                self._folders.shifted |= name in folder.links
        for real in again:
            for folder in self._folders.at(real):
                self._read(folder)
        self._look_at_roots(hinted)
        for folder, name in self._folders.links():
            # Looking at one may have taken the directory of another away.
            if name in folder.links:
                self._look(folder, name, modified=hinted.get(os.path.realpath(folder.prefix + name), False))

    def take_changes(self) -> Mapping[str, Change]:
        """What all looks since the last call found, as one net change a path."""
        return self._marks.take()

    def take_born(self) -> set[str]:
        """The real paths of directories found since the last call; more may be in them than was seen."""
        born, self._born = self._born, set()
        return born

    @property
    def shifted(self) -> bool:
        """Whether links were made or swapped since the last `cover`, so that it may be another one now."""
        return self._folders.shifted

    def real_roots(self) -> set[str]:
        """The real paths of the watched directories that exist."""
        return self._folders.real_roots()

    def cover(self) -> Cover:
        """What has to be watched as things are now."""
        self._folders.shifted = False
        if self._recursive:
            return cover_all(self._folders, self._roots, self._unwatchable)
        return cover_flat(self._folders, self._roots)

    def look_for_unwatchable(self) -> None:
        """Find the directories that cannot be watched, also those that are ignored; from now on `cover` avoids them."""
        self._unwatchable = unwatchable_below(outermost(self._folders), self._folders.ways_out())

    # -- looking ------------------------------------------------------------------------------------------------

    def _look_at_roots(self, hinted: Mapping[str, bool], *, deep: bool = False) -> None:
        reals = {path: os.path.realpath(path) for path in self._roots}
        if not self._follow_links:
            self._folders.within = tuple(reals.values())
        for path, real in reals.items():
            self._look(self._top, path, modified=hinted.get(real, False), deep=deep)

    def _look(self, folder: Folder, name: str, *, modified: bool = False, deep: bool = False) -> None:
        """Look at one entry; ``deep`` also reads a directory that is there as it was."""
        path = folder.prefix + name
        if self._skips(folder, name):
            self._look_at_ignored(folder, name, link=os.path.islink(path))
            return
        self._folders.note_link(folder, name, link=folder is not self._top and os.path.islink(path))
        try:
            found = os.stat(path)
        except OSError:
            self._gone(folder, name)
            return
        entered = self._settle(folder, name, found, modified=modified)
        inner = folder.folders.get(name)
        if inner is not None and (entered or deep):
            self._read(inner)
            self._born.add(inner.real)

    def _read(self, folder: Folder) -> None:
        """Read a directory and all below it; a loop, since directories nest deeper than calls may."""
        pending = [folder]
        while pending:
            folder = pending.pop()
            entries = _entries(folder.path)
            if entries is None:
                continue
            self._leave_out_odd(folder, entries)
            for name in [each for each in (*folder.files, *folder.folders, *folder.links) if each not in entries]:
                self._folders.note_link(folder, name, link=False)
                self._gone(folder, name)
            self._folders.forget_links(folder, entries)
            for name, entry in entries.items():
                if self._skips(folder, name):
                    self._look_at_ignored(folder, name, link=entry.is_symlink())
                    continue
                self._folders.note_link(folder, name, link=entry.is_symlink())
                try:
                    found = entry.stat()
                except OSError:
                    self._gone(folder, name)
                else:
                    self._settle(folder, name, found)
            pending.extend(folder.folders.values())

    def _settle(self, folder: Folder, name: str, found: os.stat_result, *, modified: bool = False) -> bool:
        """Note what is there now; whether it is a directory that was not known."""
        if stat.S_ISDIR(found.st_mode):
            self._marks.gone(folder, name)
            if self._folders.leaves(folder, name, link=name in folder.links):
                self._leave(folder, name)
                return False
            may_enter = self._recursive or folder is self._top
            return may_enter and self._folders.enter(folder, name, (found.st_dev, found.st_ino))
        self._leave(folder, name)
        if not stat.S_ISREG(found.st_mode):
            self._marks.gone(folder, name)
        elif folder is self._top or self._rules.wants(name, folder.below + name):
            self._marks.seen(folder, name, mark_of(found), modified=modified)
        return False

    def _look_at_ignored(self, folder: Folder, name: str, *, link: bool) -> None:
        """An ignored entry does not count, but the watch on its directory would follow a link to another directory."""
        if link or name in folder.leaving:
            self._folders.leaves(folder, name, link=link and os.path.isdir(folder.prefix + name))

    def _leave_out_odd(self, folder: Folder, entries: dict[str, os.DirEntry[str]]) -> None:
        """Take the names out of ``entries`` that are not UTF-8: the watch cannot report them."""
        odd = [name for name in entries if not name.isascii() and not is_text(name)]
        folder.odd = len(odd)
        for name in odd:
            del entries[name]
        if odd and not self._has_told_of_odd_names:
            self._has_told_of_odd_names = True
            told = "the name %r in %s is not UTF-8: it is skipped, and so is every other one (said once); rename it"
            _log.warning(told, odd[0], folder.path)

    def _gone(self, folder: Folder, name: str) -> None:
        self._folders.leaves(folder, name, link=False)
        self._marks.gone(folder, name)
        self._leave(folder, name)

    def _leave(self, folder: Folder, name: str) -> None:
        """Forget a directory: all that was in it is gone."""
        if name in folder.folders:
            for left in self._folders.leave(folder, name):
                for each in tuple(left.files):
                    self._marks.gone(left, each)

    def _skips(self, folder: Folder, name: str) -> bool:
        return folder is not self._top and self._rules.skips(name, folder.below + name)


def _entries(path: str) -> dict[str, os.DirEntry[str]] | None:
    """What a directory holds; nothing when it is gone, None when it cannot be read."""
    try:
        with os.scandir(path) as found:
            return {entry.name: entry for entry in found}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError:
        return None


def _without_links(hints: Iterable[tuple[str, bool]]) -> dict[str, bool]:
    """The hints by the real path of their entry's directory."""
    directories: dict[str, str] = {}
    found: dict[str, bool] = {}
    for path, modified in hints:
        directory, name = os.path.split(path)
        if directory not in directories:
            directories[directory] = os.path.realpath(directory)
        entry = os.path.join(directories[directory], name)
        found[entry] = modified or found.get(entry, False)
    return found

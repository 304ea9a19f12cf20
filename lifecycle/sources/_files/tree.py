"""What is known of the watched files, and how it differs from what is on disk.

Whatever a watcher reports is a hint here and nothing more: the entry is looked at, and what became of it since the
last look is the change. So a replaced file is modified, whatever was done to replace it; what came and went in
between was never there; and a directory that turns up is read as a whole. All of this blocks: call it in a thread,
one call at a time.
"""

# The system and watchfiles speak text, and a Path for each file costs more than the look at it.
# ruff: noqa: PTH114, PTH116, PTH118, PTH120

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lifecycle.sources._files.links import entries_on_the_way
from lifecycle.sources._files.marks import Folder, Marks, mark_of
from lifecycle.sources._files.unreadable import may_read, unreadable_below

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lifecycle.events import Change
    from lifecycle.sources._files.rules import Rules

__all__ = ["Cover", "Tree"]


@dataclass(frozen=True, slots=True)
class Cover:
    """What has to be watched, by real paths."""

    #: Directories with all below them, and directories by themselves.
    deep: frozenset[str]
    flat: frozenset[str]
    #: Those of the second kind in which every entry matters; in the others only ``entries`` do.
    whole: frozenset[str]
    #: Entries that decide what the watched paths are, as far as ``deep`` does not have them.
    entries: frozenset[str]


class Tree:
    """The files below the watched directories ``roots``, and those of the ``roots`` that are files themselves."""

    def __init__(self, roots: Iterable[str], rules: Rules, *, recursive: bool) -> None:
        self._rules = rules
        self._recursive = recursive
        # The roots are the entries of a folder of their own, which no rule applies to.
        self._roots = tuple(dict.fromkeys(roots))
        self._top = Folder("", "", "")
        self._marks = Marks()
        # Folders by the real path of their directory; two when links lead to one directory in two ways.
        self._homes: dict[str, list[Folder]] = {}
        # Folders with links in them, also broken ones: what a link leads to changes without a hint.
        self._linked: set[Folder] = set()
        self._born: set[str] = set()
        # Whether a link was made or swapped since `cover` was last asked.
        self._shifted = False
        # As far as they are known: nobody looks for them until a watch meets one.
        self._unreadable: set[str] = set()

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
            for folder, name in self._places(path):
                self._look(folder, name, modified=modified, deep=True)
                self._shifted |= name in folder.links
        for real in again:
            for folder in self._homes.get(real, ())[:]:
                self._read(folder)
        self._look_at_roots(hinted)
        for folder, name in self._links():
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
        return self._shifted

    def real_roots(self) -> set[str]:
        """The real paths of the watched directories that exist."""
        return {folder.real for folder in self._top.folders.values()}

    def cover(self) -> Cover:
        """What has to be watched as things are now."""
        self._shifted = False
        roots = self.real_roots()
        ways = [*self._roots, *(folder.prefix + name for folder, name in self._links())]
        entries = {entry for way in ways for entry in entries_on_the_way(way)}
        if not self._recursive:
            flat = {each for each in roots | {os.path.dirname(each) for each in entries} if may_read(each)}
            return Cover(frozenset(), frozenset(flat), frozenset(roots), frozenset(entries))
        deep, whole = self._around_unreadable(self._outermost())
        single = {each for each in entries if not any(_is_below(each, other) for other in deep)}
        flat = whole | {each for each in map(os.path.dirname, single) if may_read(each)}
        return Cover(frozenset(deep), frozenset(flat), frozenset(whole), frozenset(single))

    def look_for_unreadable(self) -> None:
        """Find the directories that cannot be watched, also those that are ignored; from now on `cover` avoids them."""
        self._unreadable = unreadable_below(self._outermost())

    def _outermost(self) -> set[str]:
        """The directories below which all is watched: the roots and what links lead to, none within another."""
        linked = {folder.folders[name].real for folder, name in self._links() if name in folder.folders}
        every = self.real_roots() | linked
        return {each for each in every if not any(_is_below(each, other) for other in every)}

    def _around_unreadable(self, outermost: set[str]) -> tuple[set[str], set[str]]:
        """What to watch with all below it, and what by itself, so that no watch meets an unreadable directory."""
        deep, whole, pending = set[str](), set[str](), list(outermost)
        while pending:
            each = pending.pop()
            if each in self._unreadable:
                continue
            if not any(_is_below(other, each) for other in self._unreadable):
                deep.add(each)
            else:
                whole.add(each)
                home = self._homes[each][0]
                inner = [folder for name, folder in home.folders.items() if name not in home.links]
                pending.extend(folder.real for folder in inner)
        return deep, whole

    def _links(self) -> list[tuple[Folder, str]]:
        return [(folder, name) for folder in self._linked for name in folder.links]

    # -- looking ------------------------------------------------------------------------------------------------

    def _look_at_roots(self, hinted: Mapping[str, bool], *, deep: bool = False) -> None:
        for path in self._roots:
            self._look(self._top, path, modified=hinted.get(os.path.realpath(path), False), deep=deep)

    def _places(self, real: str) -> list[tuple[Folder, str]]:
        """The entries to look at for a hint: below the nearest directory that is known."""
        while real != "/":
            directory, _, name = real.rpartition("/")
            real = directory or "/"
            if folders := self._homes.get(real):
                return [(folder, name) for folder in folders]
        return []

    def _look(self, folder: Folder, name: str, *, modified: bool = False, deep: bool = False) -> None:
        """Look at one entry; ``deep`` also reads a directory that is there as it was."""
        path = folder.prefix + name
        if self._skips(folder, name):
            return
        self._note_link(folder, name, link=folder is not self._top and os.path.islink(path))
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
            for name in [each for each in (*folder.files, *folder.folders, *folder.links) if each not in entries]:
                self._note_link(folder, name, link=False)
                self._gone(folder, name)
            for name, entry in entries.items():
                if self._skips(folder, name):
                    continue
                self._note_link(folder, name, link=entry.is_symlink())
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
            return self._enter(folder, name, found)
        self._leave(folder, name)
        if not stat.S_ISREG(found.st_mode):
            self._marks.gone(folder, name)
        elif folder is self._top or self._rules.wants(name, folder.below + name):
            self._marks.seen(folder, name, mark_of(found), modified=modified)
        return False

    def _enter(self, folder: Folder, name: str, found: os.stat_result) -> bool:
        is_root, link = folder is self._top, name in folder.links
        if not (self._recursive or is_root):
            return False
        path = folder.prefix + name
        real = os.path.realpath(path) if link or is_root else os.path.join(folder.real, name)
        identity = (found.st_dev, found.st_ino)
        known = folder.folders.get(name)
        if known and (known.real, known.identity) == (real, identity):
            return False
        if link and folder.leads_back(real):
            return False
        if known:
            # Another directory under the same name: what is in both is compared, file by file.
            self._homes[known.real].remove(known)
            known.real, known.identity = real, identity
        else:
            below = "" if is_root else f"{folder.below}{name}/"
            known = folder.folders[name] = Folder(path, real, below, identity=identity, parent=folder)
        self._homes.setdefault(real, []).append(known)
        return True

    # -- forgetting ---------------------------------------------------------------------------------------------

    def _gone(self, folder: Folder, name: str) -> None:
        self._marks.gone(folder, name)
        self._leave(folder, name)

    def _note_link(self, folder: Folder, name: str, *, link: bool) -> None:
        if link:
            self._shifted |= name not in folder.links
            folder.links.add(name)
            self._linked.add(folder)
        elif name in folder.links:
            folder.links.remove(name)
            if not folder.links:
                self._linked.remove(folder)

    def _leave(self, folder: Folder, name: str) -> None:
        """Forget a directory and all that was in it."""
        pending = [folder.folders.pop(name)] if name in folder.folders else []
        while pending:
            left = pending.pop()
            pending.extend(left.folders.values())
            self._homes[left.real].remove(left)
            if not self._homes[left.real]:
                del self._homes[left.real]
            for each in tuple(left.files):
                self._marks.gone(left, each)
            left.links.clear()
            self._linked.discard(left)

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


def _is_below(path: str, directory: str) -> bool:
    return path.startswith(directory.rstrip("/") + "/") and path != directory

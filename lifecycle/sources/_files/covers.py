"""What has to be watched, as things are: whole trees, directories by themselves, and entries that others hang on."""

# The system and watchfiles speak text, and a Path for each file costs more than the look at it.
# ruff: noqa: PTH116

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lifecycle.sources._files.links import entries_on_the_way

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator

    from lifecycle.sources._files.folders import Folders

__all__ = ["Cover", "cover_all", "cover_flat", "is_text", "may_read", "outermost", "unwatchable_below"]


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


def cover_flat(folders: Folders, roots: Iterable[str]) -> Cover:
    """For the watched directories without what is below them; ``roots`` are the watched paths."""
    whole, entries = folders.real_roots(), _entries(folders, roots)
    flat = {each for each in whole | set(map(os.path.dirname, entries)) if may_read(each)}
    return Cover(frozenset(), frozenset(flat), frozenset(whole), frozenset(entries))


def cover_all(folders: Folders, roots: Iterable[str], unwatchable: Collection[str]) -> Cover:
    """For the watched directories with all below them.

    No watch meets one of those that are ``unwatchable``, nor a link that is not to be followed: awatch follows each.
    """
    deep, whole = _around(folders, {*unwatchable, *folders.ways_out()})
    single = {each for each in _entries(folders, roots) if not any(_is_below(each, other) for other in deep)}
    flat = whole | {each for each in map(os.path.dirname, single) if may_read(each)}
    return Cover(frozenset(deep), frozenset(flat), frozenset(whole), frozenset(single))


def outermost(folders: Folders) -> set[str]:
    """The directories below which all is watched: the roots and what links lead to, none within another."""
    linked = {folder.folders[name].real for folder, name in folders.links() if name in folder.folders}
    every = folders.real_roots() | linked
    return {each for each in every if not any(_is_below(each, other) for other in every)}


def _entries(folders: Folders, roots: Iterable[str]) -> set[str]:
    """What decides where the watched paths and the links below them lead."""
    links = [folder.prefix + name for folder, name in folders.links() if name not in folder.leaving]
    ways = [*roots, *links]
    return {entry for way in ways for entry in entries_on_the_way(way)}


def _around(folders: Folders, holes: Collection[str]) -> tuple[set[str], set[str]]:
    """What to watch with all below it, and what by itself, so that no watch on a whole tree meets one of ``holes``."""
    deep, whole, pending = set[str](), set[str](), list(outermost(folders))
    while pending:
        each = pending.pop()
        if each in holes:
            continue
        if not any(_is_below(other, each) for other in holes):
            deep.add(each)
        else:
            whole.add(each)
            home = folders.at(each)[0]
            inner = [folder for name, folder in home.folders.items() if name not in home.links]
            pending.extend(folder.real for folder in inner)
    return deep, whole


def _is_below(path: str, directory: str) -> bool:
    return path.startswith(directory.rstrip("/") + "/") and path != directory


def may_read(directory: str) -> bool:
    """Whether this process may list ``directory``, which is what a watch on it takes."""
    return os.access(directory, os.R_OK, effective_ids=os.access in os.supports_effective_ids)


def is_text(name: str) -> bool:
    """Whether ``name`` can be written as UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def unwatchable_below(directories: Iterable[str], but: Container[str]) -> set[str]:
    """All directories at or below ``directories`` that may not be read or whose names are not UTF-8.

    Links are followed as `awatch` does; what is in ``but`` is left out.

    `awatch` gives up a whole tree for one that may not be read; told to ignore them, it passes over every directory
    that comes after the first, and over every other error too. It ends at a name that is not UTF-8, and opening such a
    directory is reported under that name: each new watch would end by its own doing. So both are looked for, and
    watched around.
    """
    found: set[str] = set()
    entered: set[tuple[int, int]] = set()
    pending = list(directories)
    while pending:
        directory = pending.pop()
        try:
            identity = os.stat(directory)
            if (identity.st_dev, identity.st_ino) not in entered:
                entered.add((identity.st_dev, identity.st_ino))
                inner = [each for each in _inner(directory) if each not in but]
                pending.extend(each for each in inner if is_text(each))
                found.update(each for each in inner if not is_text(each))
        except PermissionError:
            found.add(directory)
        except OSError:
            # It vanished; nobody will stumble over it.
            continue
    return found


def _inner(directory: str) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir():
                yield entry.path

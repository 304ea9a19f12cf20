"""The directories that are known, with what was seen in them, and the links that lead to more.

Nothing here looks at the disk: what is there is told by `tree`.
"""

# The system and watchfiles speak text, and a Path for each file costs more than the look at it.
# ruff: noqa: PTH118

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

__all__ = ["Folder", "Folders"]


class Folder:
    """A directory that is known, with its files' marks."""

    __slots__ = (
        "below",
        "files",
        "folders",
        "identity",
        "leaving",
        "links",
        "odd",
        "parent",
        "path",
        "prefix",
        "real",
    )

    def __init__(
        self, path: str, real: str, below: str, *, identity: tuple[int, int] = (0, 0), parent: Folder | None = None
    ) -> None:
        #: As the user sees it, and the same with what comes before an entry's name.
        self.path = path
        self.prefix = path if path.endswith("/") or not path else f"{path}/"
        #: Without links: where the system watches it.
        self.real = real
        #: From the watched directory on, with a slash at the end; empty for that directory itself.
        self.below = below
        self.identity = identity
        self.parent = parent
        self.files: dict[str, int] = {}
        self.folders: dict[str, Folder] = {}
        #: The names that are links, whatever they lead to.
        self.links: set[str] = set()
        #: Those among them, ignored ones too, that lead to a directory outside and are not followed.
        self.leaving: set[str] = set()
        #: How many names in it are not UTF-8, and skipped.
        self.odd: int = 0

    def leads_back(self, real: str) -> bool:
        """Whether a link from here to ``real`` would go in a circle."""
        above: Folder | None = self
        while above is not None and above.real:
            if f"{above.real}/".startswith(f"{real.rstrip('/')}/"):
                return True
            above = above.parent
        return False


class Folders:
    """All of them, below ``top``, whose entries are the watched paths."""

    def __init__(self) -> None:
        self.top = Folder("", "", "")
        #: Whether a link was made or swapped since this was last set back.
        self.shifted = False
        #: The real paths below which links may lead.
        self.within: tuple[str, ...] = ("/",)
        # By the real path of their directory; two when links lead to one directory in two ways.
        self._homes: dict[str, list[Folder]] = {}
        # Those with links in them, also broken ones: what a link leads to changes without a hint.
        self._linked: set[Folder] = set()
        # Those with links in them that are not followed.
        self._left: set[Folder] = set()

    def at(self, real: str) -> list[Folder]:
        """Those whose directory is ``real``."""
        return self._homes.get(real, [])[:]

    def real_roots(self) -> set[str]:
        """The real paths of the watched directories that exist."""
        return {folder.real for folder in self.top.folders.values()}

    def links(self) -> list[tuple[Folder, str]]:
        """Every link, as an entry of its folder."""
        return [(folder, name) for folder in self._linked for name in folder.links]

    def places(self, real: str) -> list[tuple[Folder, str]]:
        """The entries to look at for what happened at ``real``: below the nearest directory that is known."""
        while real != "/":
            directory, _, name = real.rpartition("/")
            real = directory or "/"
            if folders := self._homes.get(real):
                return [(folder, name) for folder in folders]
        return []

    def note_link(self, folder: Folder, name: str, *, link: bool) -> None:
        """Know whether the entry is a link."""
        if link:
            self.shifted |= name not in folder.links
            folder.links.add(name)
            self._linked.add(folder)
        elif name in folder.links:
            folder.links.remove(name)
            if not folder.links:
                self._linked.remove(folder)

    def leaves(self, folder: Folder, name: str, *, link: bool) -> bool:
        """Note and return whether the entry, which is or leads to a directory, is a link that is not to be followed."""
        leaving = link and not _is_within(os.path.realpath(folder.prefix + name), self.within)
        self._note_leaving(folder, name, leaving=leaving)
        return leaving

    def forget_links(self, folder: Folder, present: Container[str]) -> None:
        """Only the entries in ``present`` are still there."""
        for name in [each for each in folder.leaving if each not in present]:
            self._note_leaving(folder, name, leaving=False)

    def ways_out(self) -> set[str]:
        """The links that are not followed, by the real paths of their directories."""
        return {os.path.join(folder.real, name) for folder in self._left for name in folder.leaving}

    def skipped(self) -> int:
        """How many names in all known directories are skipped because they are not UTF-8."""
        return sum(folder.odd for folders in self._homes.values() for folder in folders)

    def _note_leaving(self, folder: Folder, name: str, *, leaving: bool) -> None:
        if leaving is (name in folder.leaving):
            return
        self.shifted = True
        (folder.leaving.add if leaving else folder.leaving.discard)(name)
        (self._left.add if folder.leaving else self._left.discard)(folder)

    def enter(self, folder: Folder, name: str, identity: tuple[int, int]) -> bool:
        """Know the directory that the entry is or leads to; whether it was not known as that."""
        is_root, link = folder is self.top, name in folder.links
        path = folder.prefix + name
        real = os.path.realpath(path) if link or is_root else os.path.join(folder.real, name)
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

    def leave(self, folder: Folder, name: str) -> list[Folder]:
        """Forget the directory that the entry was, and all below it; gives those that were known."""
        gone: list[Folder] = []
        pending = [folder.folders.pop(name)]
        while pending:
            left = pending.pop()
            gone.append(left)
            pending.extend(left.folders.values())
            self._homes[left.real].remove(left)
            if not self._homes[left.real]:
                del self._homes[left.real]
            left.links.clear()
            left.leaving.clear()
            self._linked.discard(left)
            self._left.discard(left)
        return gone


def _is_within(real: str, roots: Iterable[str]) -> bool:
    return any(f"{real.rstrip('/')}/".startswith(f"{root.rstrip('/')}/") for root in roots)

"""How one look at a file is remembered, and what two looks make of it.

A file is remembered by one number, its mark, so that many files take little memory.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from lifecycle.events import Change
    from lifecycle.sources._files.folders import Folder

__all__ = ["STAMP_NS", "Marks", "mark_of"]

#: Nanoseconds within which two writes may have one time: the clock that stamps files moves in steps of up to 10 ms.
STAMP_NS = 20_000_000


def mark_of(found: os.stat_result) -> int:
    """A number that another state of the file would not have.

    A file that was written a moment ago may be written again without showing it: such a mark is negative, the
    complement of what it will be.
    """
    mark = hash((found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)) >> 1
    mark = mark if mark >= 0 else ~mark
    return ~mark if time.time_ns() - found.st_ctime_ns < STAMP_NS else mark


class Marks:
    """Notes what changed, as one net change a path."""

    def __init__(self) -> None:
        self._changes: dict[str, Change] = {}

    def take(self) -> Mapping[str, Change]:
        """What changed since the last call."""
        changes, self._changes = self._changes, {}
        return changes

    def seen(self, folder: Folder, name: str, mark: int, *, modified: bool) -> None:
        """The file is there; ``modified`` if somebody says so, which decides where the mark cannot."""
        known = folder.files.get(name)
        if known is None:
            self._note(folder.prefix + name, "added")
        elif known not in (mark, ~mark) or (modified and known < 0):
            self._note(folder.prefix + name, "modified")
        else:
            return
        folder.files[name] = mark

    def gone(self, folder: Folder, name: str) -> None:
        """The file is not there."""
        if folder.files.pop(name, None) is not None:
            self._note(folder.prefix + name, "deleted")

    def _note(self, path: str, change: Change) -> None:
        before = self._changes.pop(path, None)
        if before == "added":
            if change != "deleted":
                self._changes[path] = "added"
        elif before == "deleted" and change == "added":
            self._changes[path] = "modified"
        else:
            self._changes[path] = change

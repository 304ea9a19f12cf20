"""Merging the changes to files in a burst. Only programs that watch files load this module."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from lifecycle.events import Change, FileBatch, FileEvent

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping
    from pathlib import Path

__all__ = ["merge_change", "merge_files"]

_Path = TypeVar("_Path", bound="Hashable")

#: The net effect of two consecutive changes to a path, or None if they cancel out. For pairs that are not listed, the
#: net effect is the second change.
_NET: Mapping[tuple[Change, Change], Change | None] = {
    ("added", "modified"): "added",
    ("added", "deleted"): None,
    ("deleted", "added"): "modified",
}


class _Growing(dict["Path", Change]):
    """The changes in a batch that is still being merged. This dictionary is modified in place."""


class _MergeFiles:
    """Merges several `FileEvent` objects into one `FileBatch` with the net change to each path.

    A path that is added and then deleted is left out. If a path is added and then modified, it is reported as added. If
    it is deleted and then added, it is reported as modified. Each call takes amortised constant time and consumes the
    pending batch, so use only the returned batch.
    """

    def __call__(self, pending: FileEvent | FileBatch, new: FileEvent | FileBatch) -> FileBatch:
        is_growing = isinstance(pending, FileBatch) and isinstance(pending.changes, _Growing)
        batch = cast("FileBatch", pending) if is_growing else self.first(pending)
        changes = cast("_Growing", batch.changes)
        for path, change in _changes(new).items():
            merge_change(changes, path, change)
        return batch

    def first(self, event: FileEvent | FileBatch) -> FileBatch:
        """Return a batch with only ``event``, so that the handler gets a batch even for a burst of one event."""
        return FileBatch(_Growing(_changes(event)))


def merge_change(changes: dict[_Path, Change], path: _Path, change: Change) -> None:
    """Add a change to ``changes``, which has the net change to each path. The path becomes the last one."""
    old = changes.pop(path, None)
    net = change if old is None else _NET.get((old, change), change)
    if net is not None:
        changes[path] = net


def _changes(event: FileEvent | FileBatch) -> Mapping[Path, Change]:
    if isinstance(event, FileEvent):
        return {event.path: event.change}
    if isinstance(event, FileBatch):
        return event.changes
    raise TypeError(f"merge_files was called with {event!r}; it merges FileEvent and FileBatch only")


merge_files: _MergeFiles = _MergeFiles()

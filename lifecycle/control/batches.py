"""`merge_files`: what several changes of files come to, for a window that is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from lifecycle.events import Change, FileBatch, FileEvent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["merge_files"]

#: What two changes of one path come to; what is missing here comes to the newer one, None to nothing at all.
_NET: Mapping[tuple[Change, Change], Change | None] = {
    ("added", "modified"): "added",
    ("added", "deleted"): None,
    ("deleted", "added"): "modified",
}


class _Growing(dict["Path", Change]):
    """The changes of a batch that is still being folded: it belongs to the fold and grows in place."""


class _MergeFiles:
    """Folds `FileEvent`s into one `FileBatch`, which tells what became of each path in the end.

    Added then deleted cancels out; added then modified is added; deleted then added is modified. It takes amortised
    constant time an event, and uses the pending batch up; go on with what is returned.
    """

    def __call__(self, pending: FileEvent | FileBatch, new: FileEvent | FileBatch) -> FileBatch:
        is_growing = isinstance(pending, FileBatch) and isinstance(pending.changes, _Growing)
        batch = cast("FileBatch", pending) if is_growing else self.first(pending)
        changes = cast("_Growing", batch.changes)
        for path, change in _changes(new).items():
            old = changes.get(path)
            net = change if old is None else _NET.get((old, change), change)
            if net is None:
                del changes[path]
            else:
                changes[path] = net
        return batch

    def first(self, event: FileEvent | FileBatch) -> FileBatch:
        """A batch of ``event`` alone, so that a handler gets a batch also where a burst was one event."""
        return FileBatch(_Growing(_changes(event)))


def _changes(event: FileEvent | FileBatch) -> Mapping[Path, Change]:
    if isinstance(event, FileEvent):
        return {event.path: event.change}
    if isinstance(event, FileBatch):
        return event.changes
    raise TypeError(f"merge_files got {event!r}; it folds FileEvent and FileBatch only")


merge_files: _MergeFiles = _MergeFiles()

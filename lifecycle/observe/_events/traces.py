"""What an event was caused by and what it caused, as a tree of entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lifecycle.observe._events.entries import sentence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lifecycle.observe._events.entries import Entry

__all__ = ["Node", "Trace", "trace_of"]

#: Lines are indented no deeper than this: events that cause each other can go on for ever.
_DEEPEST = 40


@dataclass(frozen=True, slots=True)
class Node:
    """An entry and how many generations it is below the first."""

    entry: Entry
    depth: int


@dataclass(frozen=True, slots=True)
class Trace:
    """The tree that an event belongs to: its oldest forefather that is known, and all that came of that.

    Children follow their parents, in the order in which they came in. An event that was merged into a call stands below
    that call, unless it has a parent of its own.
    """

    #: Of the event that was asked for.
    id: int
    #: A flat list, for the tree may be as deep as the log is long.
    nodes: tuple[Node, ...]

    @property
    def root(self) -> Entry:
        """The oldest forefather that is known."""
        return self.nodes[0].entry

    @property
    def lines(self) -> tuple[str, ...]:
        """The tree for people; the event that was asked for is marked."""
        return tuple(self._line(node) for node in self.nodes)

    def to_dict(self) -> dict[str, Any]:
        """As `json.dumps` takes it: ``id``, and ``nodes``, each an entry with its ``depth``."""
        nodes = [{"depth": node.depth, **node.entry.to_dict()} for node in self.nodes]
        return {"id": self.id, "nodes": nodes}

    def _line(self, node: Node) -> str:
        mark = "  <-" if node.entry.id == self.id else ""
        return f"{'  ' * min(node.depth, _DEEPEST)}{sentence(node.entry)}{mark}"


def trace_of(number: int, entries: Mapping[int, Entry]) -> Trace:
    """The tree of the entry with that number, among ``entries``, which stand in the order of their numbers."""
    children: dict[int, list[Entry]] = {}
    for entry in entries.values():
        above = _above(entry, entries)
        if above is not None:
            children.setdefault(above.id, []).append(entry)
    root = entries[number]
    # This ends: a parent has a smaller number, and a call the parent of the first of its events.
    while (above := _above(root, entries)) is not None:
        root = above
    return Trace(number, tuple(_walk(root, children)))


def _above(entry: Entry, entries: Mapping[int, Entry]) -> Entry | None:
    """Below which it stands: its parent, and else the call that it was merged into."""
    for number in (entry.parent, entry.into):
        if number is not None and number in entries:
            return entries[number]
    return None


def _walk(root: Entry, children: Mapping[int, list[Entry]]) -> Iterator[Node]:
    left = [Node(root, 0)]
    while left:
        node = left.pop()
        yield node
        left += [Node(child, node.depth + 1) for child in reversed(children.get(node.entry.id, ()))]

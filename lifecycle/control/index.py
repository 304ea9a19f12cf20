"""Finds the patterns that match a topic: a tree with one level a segment.

A look-up costs the length of the topic, whatever the number of patterns, and any ``**`` in them: the nodes that are
alive at a segment are followed all at once, so nothing is ever tried twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from lifecycle.control.patterns import DEEP, STAR, Literal, Wild

if TYPE_CHECKING:
    from lifecycle.control.patterns import Pattern, Segment

__all__ = ["Index"]

T = TypeVar("T")


class _Node(Generic[T]):
    """What may follow, and the value of the pattern that ends here."""

    __slots__ = ("deep", "is_odd", "literals", "loops", "star", "value", "wilds")

    def __init__(self, *, loops: bool = False) -> None:
        self.literals: dict[str, _Node[T]] | None = None
        self.wilds: _Wilds[T] | None = None
        self.star: _Node[T] | None = None
        self.deep: _Node[T] | None = None
        # True for the node of a `**`, which stays alive over any segment.
        self.loops = loops
        # Whether there is, or was, more to look at than literals and a star.
        self.is_odd = loops
        self.value: T | None = None

    @property
    def is_bare(self) -> bool:
        return not (self.literals or self.wilds or self.star or self.deep) and self.value is None


class _Wilds(Generic[T]):
    """The segments with wildcards at one node, found by what is fixed at their beginning, or at their end."""

    __slots__ = ("by_prefix", "by_suffix", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, tuple[Wild, _Node[T]]] = {}
        # From length to fixed text to entries; a text of length 0 is what has nothing fixed.
        self.by_prefix: dict[int, dict[str, list[tuple[Wild, _Node[T]]]]] = {}
        self.by_suffix: dict[int, dict[str, list[tuple[Wild, _Node[T]]]]] = {}

    def __bool__(self) -> bool:
        return bool(self.entries)

    def child(self, wild: Wild) -> _Node[T]:
        if wild.text not in self.entries:
            entry = self.entries[wild.text] = (wild, _Node[T]())
            table, fixed = self._place(wild)
            table.setdefault(len(fixed), {}).setdefault(fixed, []).append(entry)
        return self.entries[wild.text][1]

    def drop(self, wild: Wild) -> None:
        entry = self.entries.pop(wild.text)
        table, fixed = self._place(wild)
        bucket = table[len(fixed)][fixed]
        bucket.remove(entry)
        if not bucket:
            del table[len(fixed)][fixed]
            if not table[len(fixed)]:
                del table[len(fixed)]

    def matching(self, segment: str) -> list[_Node[T]]:
        found: list[_Node[T]] = []
        for length, texts in self.by_prefix.items():
            found += [node for wild, node in texts.get(segment[:length], ()) if wild.matches(segment)]
        for length, texts in self.by_suffix.items():
            if length <= len(segment):
                end = segment[len(segment) - length :]
                found += [node for wild, node in texts.get(end, ()) if wild.matches(segment)]
        return found

    def _place(self, wild: Wild) -> tuple[dict[int, dict[str, list[tuple[Wild, _Node[T]]]]], str]:
        return (self.by_prefix, wild.prefix) if wild.prefix else (self.by_suffix, wild.suffix)


class Index(Generic[T]):
    """Values by pattern, found by topic."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, pattern: Pattern, value: T) -> None:
        """Put ``value`` under ``pattern``, in place of what was there."""
        node = self._root
        for segment in pattern.segments:
            node = _child(node, segment)
        self._size += node.value is None
        node.value = value

    def remove(self, pattern: Pattern) -> None:
        """Take out what is under ``pattern``, and every node that leads nowhere then."""
        path: list[tuple[_Node[T], Segment]] = []
        node = self._root
        for segment in pattern.segments:
            path.append((node, segment))
            node = _child(node, segment)
        self._size -= node.value is not None
        node.value = None
        for parent, segment in reversed(path):
            if not _child(parent, segment).is_bare:
                break
            _drop(parent, segment)

    def find(self, topic: str) -> list[T]:
        """The values of all patterns that match ``topic``, in no order.

        As long as there is only one way to go on, this goes it; where there are more, `_spread` follows them all.
        """
        segments = topic.split("/")
        node = self._root
        for at, segment in enumerate(segments):
            if node.is_odd:
                return _spread([node], segments[at:])
            literals, star = node.literals, node.star
            child = None if literals is None else literals.get(segment)
            if child is None:
                if star is None:
                    return []
                node = star
            elif star is None:
                node = child
            else:
                return _spread([child, star], segments[at + 1 :])
        return [node.value] if node.value is not None and not node.is_odd else _spread([node], [])


def _spread(alive: list[_Node[T]], segments: list[str]) -> list[T]:  # noqa: C901  # hot: one branch a kind of segment
    """Follow all nodes that are alive, segment by segment, each once."""
    for segment in segments:
        following: list[_Node[T]] = []
        for node in alive:
            if node.literals is not None and (child := node.literals.get(segment)) is not None:
                following.append(child)
            if node.star is not None:
                following.append(node.star)
            if node.is_odd:
                if node.wilds is not None:
                    following += node.wilds.matching(segment)
                if node.loops:
                    following.append(node)
                # `**` may stand for nothing: its node lives as soon as its parent does. The list grows while it is
                # walked, so the new node has its turn at this very segment.
                if node.deep is not None and node.deep not in alive:
                    alive.append(node.deep)
        if not following:
            return []
        alive = following
    found: list[T] = []
    for node in alive:
        if node.value is not None:
            found.append(node.value)
        if node.deep is not None and node.deep not in alive:
            alive.append(node.deep)
    return found


def _child(node: _Node[T], segment: Segment) -> _Node[T]:
    """The node below ``node`` for ``segment``, made if it is not there."""
    if isinstance(segment, Literal):
        if node.literals is None:
            node.literals = {}
        found = node.literals.get(segment.text)
        if found is None:
            found = node.literals[segment.text] = _Node()
        return found
    if isinstance(segment, Wild):
        if node.wilds is None:
            node.wilds = _Wilds()
            node.is_odd = True
        return node.wilds.child(segment)
    if segment is STAR:
        node.star = node.star or _Node()
        return node.star
    node.deep = node.deep or _Node(loops=True)
    node.is_odd = True
    return node.deep


def _drop(node: _Node[T], segment: Segment) -> None:
    """Take out the child for ``segment``."""
    if isinstance(segment, Literal):
        assert node.literals is not None
        del node.literals[segment.text]
        node.literals = node.literals or None
    elif isinstance(segment, Wild):
        assert node.wilds is not None
        node.wilds.drop(segment)
        node.wilds = node.wilds or None
    elif segment is DEEP:
        node.deep = None
    else:
        node.star = None

"""An index of patterns: a tree with one level per segment, which finds the patterns that match a topic.

A look-up advances through all matching nodes of a level together, so it never visits a node twice, even if there are
many ``**``. Its cost grows with the length of the topic and the number of wildcard segments below one node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from lifecycle.control.patterns import DEEP, STAR, Literal, Wild

if TYPE_CHECKING:
    from lifecycle.control.patterns import Pattern, Segment

__all__ = ["Index"]

T = TypeVar("T")


class _Node(Generic[T]):
    """A node of the tree: a child for each possible next segment, and the value of the pattern that ends here."""

    __slots__ = ("deep", "is_odd", "literals", "loops", "star", "value", "wilds")

    def __init__(self, *, loops: bool = False) -> None:
        self.literals: dict[str, _Node[T]] | None = None
        # Keyed by the text of the segment.
        self.wilds: dict[str, tuple[Wild, _Node[T]]] | None = None
        self.star: _Node[T] | None = None
        self.deep: _Node[T] | None = None
        # True for the node of a `**`, which matches any further segment.
        self.loops = loops
        # True if the node has, or once had, children other than literals and a star.
        self.is_odd = loops
        self.value: T | None = None

    @property
    def is_bare(self) -> bool:
        return not (self.literals or self.wilds or self.star or self.deep) and self.value is None


class Index(Generic[T]):
    """A mapping from patterns to values that can be searched by topic."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, pattern: Pattern, value: T) -> None:
        """Set the value of ``pattern``."""
        node = self._root
        for segment in pattern.segments:
            node = _child(node, segment)
        self._size += node.value is None
        node.value = value

    def remove(self, pattern: Pattern) -> None:
        """Remove the value of ``pattern``, and every node that becomes empty."""
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
        """Return the values of all patterns that match ``topic``, in no particular order.

        This method handles topics that match one node per level. `_spread` handles the others.
        """
        segments = iter(topic.split("/"))
        node = self._root
        for segment in segments:
            if node.is_odd:
                return _spread([node], [segment, *segments])
            literals, star = node.literals, node.star
            child = None if literals is None else literals.get(segment)
            if child is None:
                if star is None:
                    return []
                node = star
            elif star is None:
                node = child
            else:
                return _spread([child, star], [*segments])
        return [node.value] if node.value is not None and not node.is_odd else _spread([node], [])


def _spread(alive: list[_Node[T]], segments: list[str]) -> list[T]:  # noqa: C901  # hot: one branch per kind of segment
    """Follow all matching nodes segment by segment, visiting each node once."""
    for segment in segments:
        following: list[_Node[T]] = []
        for node in alive:
            if node.literals is not None and (child := node.literals.get(segment)) is not None:
                following.append(child)
            if node.star is not None:
                following.append(node.star)
            if node.is_odd:
                if node.wilds is not None:
                    following += [child for wild, child in node.wilds.values() if wild.matches(segment)]
                if node.loops:
                    following.append(node)
                # `**` can match zero segments, so its node matches as soon as its parent does. We append it to the list
                # while iterating over that list, so that it is also tried with this segment.
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
    """Return the child of ``node`` for ``segment``, creating it if necessary."""
    if isinstance(segment, Literal):
        if node.literals is None:
            node.literals = {}
        found = node.literals.get(segment.text)
        if found is None:
            found = node.literals[segment.text] = _Node()
        return found
    if isinstance(segment, Wild):
        if node.wilds is None:
            node.wilds = {}
            node.is_odd = True
        if segment.text not in node.wilds:
            node.wilds[segment.text] = (segment, _Node())
        return node.wilds[segment.text][1]
    if segment is STAR:
        node.star = node.star or _Node()
        return node.star
    node.deep = node.deep or _Node(loops=True)
    node.is_odd = True
    return node.deep


def _drop(node: _Node[T], segment: Segment) -> None:
    """Remove the child for ``segment``."""
    if isinstance(segment, Literal):
        assert node.literals is not None
        del node.literals[segment.text]
        node.literals = node.literals or None
    elif isinstance(segment, Wild):
        assert node.wilds is not None
        del node.wilds[segment.text]
        node.wilds = node.wilds or None
    elif segment is DEEP:
        node.deep = None
    else:
        node.star = None

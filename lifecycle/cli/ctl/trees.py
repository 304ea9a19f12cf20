"""The state of a program as flat nodes that say who their parents are, kept up to date by what it sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Node", "Tree"]

Node: TypeAlias = dict[str, Any]
_Placed: TypeAlias = tuple[int, Node]


class Tree:
    """What lives in a program."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}

    def update(self, messages: Iterable[Any]) -> dict[str, Node | None]:
        """Take what has changed; give the nodes that did, None for those that are gone."""
        changed: dict[str, Node | None] = {}
        for message in messages:
            changed |= message["nodes"]
        for name, node in changed.items():
            if node is None:
                self._nodes.pop(name, None)
            else:
                self._nodes[name] = node
        return changed

    def walk(self, is_shown: Callable[[Node, Node | None], bool] = lambda _node, _parent: True) -> Iterator[_Placed]:
        """Each node and how deep it stands, parents before their children.

        Of one that, with its parent, is not ``is_shown`` the children stand in its place.
        """
        children: dict[str | None, list[Node]] = {}
        for node in self._nodes.values():
            parent = node["parent"] if node["parent"] in self._nodes else None
            children.setdefault(parent, []).append(node)
        left = [(0, node) for node in reversed(children.get(None, ()))]
        while left:
            depth, node = left.pop()
            if is_shown(node, self._nodes.get(node["parent"])):
                yield depth, node
                depth += 1
            left += [(depth, child) for child in reversed(children.get(node["id"], ()))]

    def of(self, *kinds: str) -> list[Node]:
        """The nodes of these kinds."""
        return [node for node in self._nodes.values() if node["kind"] in kinds]

    def below(self, node: Node) -> list[Node]:
        """Those at the end of each branch below ``node``; itself, if there is none."""
        children = [each for each in self._nodes.values() if each["parent"] == node["id"]]
        return [leaf for child in children for leaf in self.below(child)] or [node]

    def get(self, name: str) -> Node | None:
        """The node with this id."""
        return self._nodes.get(name)

"""A ``graph TD``: nodes and their children, drawn so that Mermaid takes them however many they are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from lifecycle.observe._mermaid_text import indented, markdown, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lifecycle.observe._mermaid_looks import Look

__all__ = ["Node", "chart", "drawn", "fitting"]

#: Where Mermaid's own limits begin, 500 edges and 50,000 characters, there is nothing to be seen any more.
_EDGES: Final = 400
_CHARACTERS: Final = 40_000

#: How each kind is drawn.
_SHAPES: Final = {
    "supervisor": ("{{", "}}"),
    "process": ("[", "]"),
    "task": ("(", ")"),
    "thread": ("([", "])"),
    "container": ("[[", "]]"),
    "router": ("{{", "}}"),
    "route": ("[", "]"),
    "source": ("([", "])"),
    "lifetime": ("((", "))"),
    "many": ("[", "]"),
}


@dataclass(frozen=True, slots=True)
class Node:
    """One node, and those below it."""

    lines: Sequence[str]
    kind: str
    classes: tuple[str, ...] = ()
    children: tuple[Node, ...] = ()


def chart(body: Iterable[str], look: Look) -> str:
    """The whole text of a graph."""
    lines = list(body)
    if look.heading is not None:
        lines = [f"subgraph heading[{quoted(look.heading)}]", *indented(lines), "end"]
    return "\n".join(["graph TD", *indented([*lines, *look.definitions()])]) + "\n"


def fitting(roots: Sequence[Node]) -> list[Node]:
    """``roots``, or, if they are more than Mermaid draws, with childless siblings of one status as one node."""
    texts = [text for root in roots for text in drawn(root, "n")]
    few = len(texts) <= 2 * _EDGES and sum(map(len, texts)) <= _CHARACTERS
    return list(roots) if few else [_folded(root) for root in roots]


def drawn(node: Node, name: str) -> Iterator[str]:
    """The lines of ``node`` and of all below, whose names begin with ``name``."""
    left, right = _SHAPES.get(node.kind, _SHAPES["task"])
    first, *others = node.classes or ("",)
    yield f"{name}{left}{markdown(node.lines)}{right}" + (f":::{first}" if first else "")
    yield from (f"class {name} {each}" for each in others)
    for number, child in enumerate(node.children):
        yield from drawn(child, f"{name}_{number}")
        yield f"{name} --> {name}_{number}"


def _folded(node: Node) -> Node:
    leaves = Counter(child.classes for child in node.children if not child.children)
    kept = [_folded(child) for child in node.children if child.children or leaves[child.classes] == 1]
    many = [Node([f"{number}", *classes], "many", classes) for classes, number in leaves.items() if number > 1]
    return replace(node, children=(*kept, *many))

"""A ``graph TD``: nodes and their children, drawn so that Mermaid takes them however many they are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from lifecycle.observe._mermaid.text import indented, markdown, quoted

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from lifecycle.observe._mermaid.looks import Look

__all__ = ["Node", "chart", "drawn", "fits", "fitting", "frame", "in_rows", "shape"]

#: Where Mermaid's own limits begin, 500 edges and 50,000 characters, there is nothing to be seen any more.
_LINES: Final = 540
_CHARACTERS: Final = 40_000
#: Childless siblings that stand side by side; the next stand below them, held there by links that are not seen.
_ROW: Final = 8

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
    "lifetime": ("([", "])"),
    "flow": ("[[", "]]"),
    "retry": ("{{", "}}"),
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
        lines = frame("heading", look.heading, lines)
    return "\n".join(["graph TD", *indented([*lines, *look.definitions()])]) + "\n"


def frame(name: str, title: str, lines: Iterable[str]) -> list[str]:
    """``lines`` within a frame that can be pointed at as ``name``."""
    return [f"subgraph {name}[{quoted(title)}]", *indented(lines), "end", f"class {name} frame"]


def fitting(roots: Sequence[Node]) -> list[Node]:
    """``roots``; where they are too many, childless siblings of one status as one node, first those that run."""
    kept = list(roots)
    for calm in (frozenset({("running",)}), None):
        if _fit(kept):
            break
        kept = [_folded(root, calm) for root in roots]
    return kept


def drawn(node: Node, name: str) -> Iterator[str]:
    """The lines of ``node`` and of all below, whose names begin with ``name``."""
    yield from shape(node, name)
    for number, child in enumerate(node.children):
        yield from drawn(child, f"{name}_{number}")
        yield f"{name} --> {name}_{number}"
    yield from in_rows(name, [number for number, child in enumerate(node.children) if not child.children])


def shape(node: Node, name: str) -> Iterator[str]:
    """The lines of ``node`` alone."""
    left, right = _SHAPES.get(node.kind, _SHAPES["task"])
    first, *others = [f":::{each}" for each in node.classes] or [""]
    yield f"{name}{left}{markdown(node.lines)}{right}{first}"
    yield from (f"{name}{each}" for each in others)


def in_rows(name: str, numbers: Sequence[int]) -> Iterator[str]:
    """What holds nodes in rows that nothing else does."""
    yield from (f"{name}_{above} ~~~ {name}_{below}" for above, below in zip(numbers, numbers[_ROW:], strict=False))


def fits(lines: Sequence[str]) -> bool:
    """Whether Mermaid takes so much, and somebody may see something in it."""
    return len(lines) <= _LINES and sum(map(len, lines)) <= _CHARACTERS


def _fit(roots: Iterable[Node]) -> bool:
    return fits([text for root in roots for text in drawn(root, "n")])


def _folded(node: Node, calm: Container[tuple[str, ...]] | None) -> Node:
    """With one node in place of childless children of the same classes, of those in ``calm`` if it is given."""
    alike = Counter(child.classes for child in node.children if not child.children)
    many = {each: number for each, number in alike.items() if number > 1 and (calm is None or each in calm)}
    kept = [_folded(child, calm) for child in node.children if child.children or child.classes not in many]
    folded = [Node([f"{number}", *classes], "process", classes) for classes, number in many.items()]
    return replace(node, children=(*kept, *folded))

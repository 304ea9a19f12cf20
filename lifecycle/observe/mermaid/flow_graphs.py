"""Flow graphs: tasks and the order between them, with a frame around each nested flow."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from lifecycle._text import plural
from lifecycle.observe.mermaid.graphs import Node, fits, frame, in_rows, limited, shape
from lifecycle.observe.mermaid.labels import item_lines, run_lines, tally

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lifecycle.flows.records import ItemInfo, RunInfo
    from lifecycle.observe.mermaid.styles import Look

__all__ = ["flow_graph", "flow_nodes"]

#: The style for each state, most important first. A group of items has the style of its most important state.
_LOOKS: Final = {
    "REVERT_FAILURE": "killed",
    "FAILURE": "failed",
    "REVERTING": "stopping",
    "RUNNING": "running",
    "RETRYING": "starting",
    "SUSPENDING": "stopping",
    "SUSPENDED": "suspended",
    "RESUMING": "starting",
    "REVERTED": "stopped",
    "PENDING": "pending",
    "SUCCESS": "finished",
    "IGNORE": "created",
}


@dataclass(frozen=True, slots=True)
class _Part:
    """An item in the drawing: a node, or a frame that contains other parts."""

    item: ItemInfo
    node: Node
    parts: tuple[_Part, ...] = ()
    follow: tuple[tuple[int, ...], ...] = ()


def flow_nodes(states: Sequence[RunInfo], look: Look) -> list[Node]:
    """Return one node per flow."""

    def node(state: RunInfo) -> Node:
        name = look.name(state, _LOOKS.get(str(state.state), ""))
        return Node(look.lines(state, run_lines(state)), "flow", (name,) if name else ())

    return limited(states, node, "flow")


def flow_graph(state: RunInfo, look: Look) -> Iterator[str]:
    """Yield the lines for a flow. If it is too large, merge several items, or a whole nested flow, into one node."""
    part = root = _part(state.root, look)
    for reduced in (_merged, _without_frames, _closed):
        if fits(list(_drawn(part, "f"))):
            break
        part = reduced(root)
    title = f"{state.name} {state.id}, {state.state}" if state.id else f"{state.name}, {state.state}"
    yield from frame("flow", title, _inside(part, "f"))


def _part(item: ItemInfo, look: Look) -> _Part:
    name = look.name(item, _status(item))
    node = Node(look.lines(item, item_lines(item)), str(item.kind), (name,) if name else ())
    return _Part(item, node, tuple(_part(each, look) for each in item.items), tuple(map(tuple, item.follow)))


def _status(item: ItemInfo) -> str:
    counts = item.counts()
    return next((look for state, look in _LOOKS.items() if state in counts), "")


# -- text -------------------------------------------------------------------------------------------------------------


def _inside(part: _Part, name: str) -> Iterator[str]:
    """Yield the contents of the frame around a flow."""
    if not part.parts:
        yield from shape(part.node, name)
        return
    for number, each in enumerate(part.parts):
        yield from _drawn(each, f"{name}_{number}")
    for number, row in enumerate(part.follow):
        yield from (f"{name}_{number} --> {name}_{each}" for each in row)
    if not any(part.follow):
        yield from in_rows(name, range(len(part.parts)))


def _drawn(part: _Part, name: str) -> Iterator[str]:
    if part.parts:
        yield from frame(name, part.item.name, _inside(part, name))
    else:
        yield from shape(part.node, name)


# -- reduction --------------------------------------------------------------------------------------------------------


def _merged(part: _Part) -> _Part:
    """Merge items with the same state into one node. In a linear flow, only consecutive items are merged."""
    parts = [_merged(each) for each in part.parts]
    places: list[int] = []
    groups: dict[object, int] = {}
    for number, each in enumerate(parts):
        if each.parts or each.item.kind == "retry":
            key: object = number
        elif part.item.kind == "linear" and number and _alike(parts[number - 1], each):
            places.append(places[-1])
            continue
        else:
            key = number if part.item.kind == "linear" else each.node.classes
        places.append(groups.setdefault(key, len(groups)))
    return _joined(part, parts, places)


def _alike(one: _Part, other: _Part) -> bool:
    return not one.parts and not other.parts and one.item.kind != "retry" and one.node.classes == other.node.classes


def _joined(part: _Part, parts: Sequence[_Part], places: Sequence[int]) -> _Part:
    """Return ``part`` with one node for each number in ``places``. Parts with the same number are merged."""
    together: dict[int, list[_Part]] = {}
    for each, place in zip(parts, places, strict=True):
        together.setdefault(place, []).append(each)
    follow: list[set[int]] = [set() for _ in together]
    for number, row in enumerate(part.follow):
        follow[places[number]] |= {places[each] for each in row} - {places[number]}
    rows = tuple(tuple(sorted(row)) for row in follow)
    return replace(part, parts=tuple(map(_one, together.values())), follow=rows)


def _one(parts: Sequence[_Part]) -> _Part:
    first = parts[0]
    if len(parts) == 1:
        return first
    counts: Counter[str] = Counter()
    for each in parts:
        counts.update(each.item.counts())
    flows = any(each.item.items for each in parts)
    lines = [plural(len(parts), "flow" if flows else "task"), tally(counts) if flows else str(first.item.state)]
    return replace(first, node=Node(lines, first.node.kind, first.node.classes), parts=(), follow=())


def _without_frames(part: _Part) -> _Part:
    """Replace each nested flow with a single node."""
    return _merged(replace(part, parts=tuple(map(_closed, part.parts))))


def _closed(part: _Part) -> _Part:
    if not part.parts:
        return part
    lines = [part.item.name, tally(part.item.counts())]
    return replace(part, node=Node(lines, "flow", part.node.classes), parts=(), follow=())

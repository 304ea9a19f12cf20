"""The entries in an event log: events with their outcomes, and trees of causes and effects."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lifecycle._text import duration, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Entry", "EventOutcome", "Node", "Trace", "describe", "trace_of"]

#: The shortest wait, in seconds, that is worth mentioning in a description.
_SHORT_WAIT = 0.001

#: The maximum indentation level. It is limited because a chain of events can have any length.
_MAX_INDENT = 40


class EventOutcome(StrEnum):
    """The current outcome of an event."""

    #: Waiting in a lane, or for space in a lane.
    QUEUED = "queued"
    #: Held back until a debounce window closes.
    HELD = "held"
    #: Merged with other events into one call at the end of a debounce window. See that call for the outcome.
    MERGED = "merged"
    RUNNING = "running"
    HANDLED = "handled"
    FAILED = "failed"
    #: Dropped, and included in the drop count.
    DROPPED = "dropped"
    #: Replaced by a newer event: the event was dropped, or its handler was cancelled.
    SUPERSEDED = "superseded"
    #: Not accepted by any handler.
    UNROUTED = "unrouted"
    #: Rejected because the lane was full. The sender received an error.
    REFUSED = "refused"


_IN_FLIGHT = frozenset({EventOutcome.QUEUED, EventOutcome.HELD, EventOutcome.RUNNING})


@dataclass(frozen=True, slots=True)
class Entry:
    """An event and its outcome at one moment. Durations are in seconds.

    Long texts are truncated. `summary` contains numbers and short texts from the event, but never a body. Values whose
    names suggest a secret, such as password or token, are shown as ``***``.
    """

    #: The event's id, which is also its `Delivery.id`. Ids increase within a process.
    id: int
    #: The id of the event whose handler emitted this event; None if no handler did.
    parent: int | None
    topic: str
    summary: str
    #: The router's name.
    router: str
    #: When the router accepted the event, in seconds since 1970.
    time: float
    #: The pattern of the event's route, or ``(fallback)`` if no route matched.
    pattern: str | None
    handler: str | None
    #: The current outcome.
    what: EventOutcome
    #: The id of the call into which the event was merged.
    into: int | None
    #: The number of events that were merged into this call.
    merged: int
    #: How many seconds passed between acceptance and the call to the handler.
    waited: float | None
    #: How many seconds the last handler took.
    duration: float | None
    error: str | None
    attempt: int
    #: The patterns of the routes whose handlers passed the event on, in order.
    passed: tuple[str, ...]

    @property
    def over(self) -> bool:
        """Whether the outcome is final."""
        return self.what not in _IN_FLIGHT

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as a dict that `json.dumps` accepts."""
        return {name: getattr(self, name) for name in _FIELDS} | {"what": str(self.what), "passed": list(self.passed)}


_FIELDS = tuple(each.name for each in fields(Entry))

#: The word between an outcome and the handler's name. It defaults to "for".
_PREPOSITIONS = {EventOutcome.HANDLED: "by", EventOutcome.RUNNING: "in", EventOutcome.FAILED: "in"}


def describe(entry: Entry) -> str:
    """Describe an event and its outcome in one readable line."""
    words = [f"#{entry.id} {printable(entry.topic)}:", str(entry.what)]
    if entry.into is not None:
        words.append(f"into #{entry.into}")
    elif entry.handler is not None:
        words.append(f"{_PREPOSITIONS.get(entry.what, 'for')} {printable(entry.handler)}")
    notes = [" ".join(words)]
    if entry.merged > 1:
        notes.append(f"merged from {entry.merged} events")
    if entry.duration is not None:
        notes.append(f"took {duration(entry.duration)}")
    if entry.waited is not None and entry.waited >= _SHORT_WAIT:
        notes.append(f"waited {duration(entry.waited)}")
    if entry.passed:
        notes.append(f"passed on by {', '.join(map(printable, entry.passed))}")
    text = ", ".join(notes)
    return text if entry.error is None else f"{text} ({printable(entry.error)})"


# -- causes and effects --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Node:
    """An entry in a trace, with its depth below the root."""

    entry: Entry
    depth: int


@dataclass(frozen=True, slots=True)
class Trace:
    """The tree that contains an event: its oldest known ancestor, and all events that resulted from that ancestor.

    Each event is followed by its children, in the order in which they were accepted. If an event without a parent was
    merged into a call, it is listed below that call.
    """

    #: The id of the requested event.
    id: int
    #: The nodes as a flat list, because the tree can be as deep as the log is long.
    nodes: tuple[Node, ...]

    @property
    def root(self) -> Entry:
        """The oldest known ancestor."""
        return self.nodes[0].entry

    @property
    def lines(self) -> tuple[str, ...]:
        """The tree as text, with one line per event. The requested event is marked."""
        return tuple(
            f"{'  ' * min(node.depth, _MAX_INDENT)}{describe(node.entry)}{'  <-' if node.entry.id == self.id else ''}"
            for node in self.nodes
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that `json.dumps` accepts. Its ``nodes`` are entries with their ``depth`` below the root."""
        nodes = [{"depth": node.depth, **node.entry.to_dict()} for node in self.nodes]
        return {"id": self.id, "nodes": nodes}


def trace_of(number: int, entries: Mapping[int, Entry]) -> Trace:
    """Return the tree that contains the entry with the id ``number``. ``entries`` must be sorted by id."""
    children: dict[int, list[Entry]] = {}
    for entry in entries.values():
        parent = _parent(entry, entries)
        if parent is not None:
            children.setdefault(parent.id, []).append(entry)
    root = entries[number]
    # This loop always ends: a parent has a smaller id, and a merged call has the same parent as its first event.
    while (parent := _parent(root, entries)) is not None:
        root = parent
    return Trace(number, tuple(_nodes(root, children)))


def _parent(entry: Entry, entries: Mapping[int, Entry]) -> Entry | None:
    """Return the parent of ``entry`` or, if it has none, the call into which it was merged."""
    for number in (entry.parent, entry.into):
        if number is not None and number in entries:
            return entries[number]
    return None


def _nodes(root: Entry, children: Mapping[int, list[Entry]]) -> Iterator[Node]:
    waiting = [Node(root, 0)]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [Node(child, node.depth + 1) for child in reversed(children.get(node.entry.id, ()))]

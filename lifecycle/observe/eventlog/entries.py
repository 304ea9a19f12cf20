"""The entries of the event log: an event with its outcome, and the tree of its causes and effects."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lifecycle._text import duration, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Entry", "EventOutcome", "Node", "Trace", "describe", "trace_of"]

#: The shortest waiting time, in seconds, that a description mentions.
_SHORT_WAIT = 0.001

#: The maximum number of levels by which lines are indented. Chains of events can have any length.
_MAX_INDENT = 40


class EventOutcome(StrEnum):
    """The current outcome of an event."""

    #: Waiting in a lane, or for space in a lane.
    QUEUED = "queued"
    #: Held by a debounce window that is still open.
    HELD = "held"
    #: Merged by a debounce window into a call for several events. That call has the outcome.
    MERGED = "merged"
    RUNNING = "running"
    HANDLED = "handled"
    FAILED = "failed"
    #: Dropped and counted as dropped.
    DROPPED = "dropped"
    #: Dropped, or its handler cancelled, because of a newer event.
    SUPERSEDED = "superseded"
    #: Not accepted by any handler.
    UNROUTED = "unrouted"
    #: Rejected because the lane was full. The sender received an error.
    REFUSED = "refused"


_IN_FLIGHT = frozenset({EventOutcome.QUEUED, EventOutcome.HELD, EventOutcome.RUNNING})


@dataclass(frozen=True, slots=True)
class Entry:
    """One event and its outcome at one moment. Durations are in seconds.

    Long texts are truncated. `summary` contains numbers and short texts from the event, but no bodies. Values with a
    name such as password or token are shown as ``***``.
    """

    #: The event's id. Ids increase within the process, as `Delivery.id` does.
    id: int
    #: The id of the event whose handler emitted this event.
    parent: int | None
    topic: str
    summary: str
    #: The router's name.
    router: str
    #: When the router accepted the event, in seconds since 1970.
    time: float
    #: The pattern of the event's route; ``(fallback)`` if no route matched.
    pattern: str | None
    handler: str | None
    #: The current outcome.
    what: EventOutcome
    #: The id of the call that the event was merged into.
    into: int | None
    #: The number of events merged into this call.
    merged: int
    #: Seconds from acceptance to the call of the handler.
    waited: float | None
    #: Seconds that the last handler took.
    duration: float | None
    error: str | None
    attempt: int
    #: The patterns of routes whose handlers passed the event on, in order.
    passed: tuple[str, ...]

    @property
    def over(self) -> bool:
        """Whether the outcome is final."""
        return self.what not in _IN_FLIGHT

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as a dict that `json.dumps` accepts."""
        return {name: getattr(self, name) for name in _FIELDS} | {"what": str(self.what), "passed": list(self.passed)}


_FIELDS = tuple(each.name for each in fields(Entry))

#: The word between an outcome and the handler's name; "for" after all other outcomes.
_PREPOSITIONS = {EventOutcome.HANDLED: "by", EventOutcome.RUNNING: "in", EventOutcome.FAILED: "in"}


def describe(entry: Entry) -> str:
    """Return an event and its outcome as one readable line."""
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
    """An entry and its depth below the root."""

    entry: Entry
    depth: int


@dataclass(frozen=True, slots=True)
class Trace:
    """The tree for an event: its oldest known ancestor, and all events that resulted from that ancestor.

    Children follow their parents, in the order of acceptance. An event without a parent that was merged into a call is
    listed below that call.
    """

    #: The id of the requested event.
    id: int
    #: A flat list, because the tree may have as many levels as the log has entries.
    nodes: tuple[Node, ...]

    @property
    def root(self) -> Entry:
        """The oldest known ancestor."""
        return self.nodes[0].entry

    @property
    def lines(self) -> tuple[str, ...]:
        """The tree as text, one line per event. The requested event is marked."""
        return tuple(
            f"{'  ' * min(node.depth, _MAX_INDENT)}{describe(node.entry)}{'  <-' if node.entry.id == self.id else ''}"
            for node in self.nodes
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that `json.dumps` accepts: ``id``, and ``nodes``, each of them an entry with its ``depth``."""
        nodes = [{"depth": node.depth, **node.entry.to_dict()} for node in self.nodes]
        return {"id": self.id, "nodes": nodes}


def trace_of(number: int, entries: Mapping[int, Entry]) -> Trace:
    """Return the tree of the entry with the id ``number``. ``entries`` are sorted by id."""
    children: dict[int, list[Entry]] = {}
    for entry in entries.values():
        parent = _parent(entry, entries)
        if parent is not None:
            children.setdefault(parent.id, []).append(entry)
    root = entries[number]
    # The loop always ends: a parent has a smaller id, and a merged call has the parent of its first event.
    while (parent := _parent(root, entries)) is not None:
        root = parent
    return Trace(number, tuple(_nodes(root, children)))


def _parent(entry: Entry, entries: Mapping[int, Entry]) -> Entry | None:
    """Return the parent of ``entry``, or else the call that it was merged into."""
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

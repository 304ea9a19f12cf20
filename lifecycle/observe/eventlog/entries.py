"""The entries that readers of the event log get: an event with its outcome, and the tree of its causes and effects."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lifecycle._text import duration, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Entry", "EventOutcome", "Node", "Trace", "describe", "trace_of"]

#: Shorter waits are not mentioned, in seconds.
_SHORT_WAIT = 0.001

#: Lines are indented no deeper than this: events can cause each other indefinitely.
_MAX_INDENT = 40


class EventOutcome(StrEnum):
    """What happened to an event so far."""

    #: It waits in a lane, or for space in one.
    QUEUED = "queued"
    #: A debounce window holds it, whose burst is not over.
    HELD = "held"
    #: A debounce window merged it into another, which has the outcome.
    MERGED = "merged"
    RUNNING = "running"
    HANDLED = "handled"
    FAILED = "failed"
    #: It was given up, and counted.
    DROPPED = "dropped"
    #: It was given up, or its handler was cancelled, for a newer event.
    SUPERSEDED = "superseded"
    #: No handler took it.
    UNROUTED = "unrouted"
    #: The lane was full, and the sender got an error.
    REFUSED = "refused"


_IN_FLIGHT = frozenset({EventOutcome.QUEUED, EventOutcome.HELD, EventOutcome.RUNNING})


@dataclass(frozen=True, slots=True)
class Entry:
    """One event and its outcome, at one moment; durations in seconds.

    Texts are cut to a bounded length. `summary` shows numbers and short texts of an event, no bodies, and ``***`` for
    values that are named password, token or the like.
    """

    #: Counts up within the process, as `Delivery.id` does.
    id: int
    #: The event whose handler emitted it.
    parent: int | None
    topic: str
    summary: str
    #: The name of the router.
    router: str
    #: When it was accepted, in seconds since 1970.
    time: float
    #: The pattern of its route; ``(fallback)`` if no route matched.
    pattern: str | None
    handler: str | None
    #: The outcome so far.
    what: EventOutcome
    #: The call that it was merged into.
    into: int | None
    #: How many events were merged into this call.
    merged: int
    #: Seconds from acceptance to the call of its handler.
    waited: float | None
    #: Seconds that its last handler took.
    duration: float | None
    error: str | None
    attempt: int
    #: Patterns of the routes whose handlers passed it on, in order.
    passed: tuple[str, ...]

    @property
    def over(self) -> bool:
        """Whether the outcome is final."""
        return self.what not in _IN_FLIGHT

    def to_dict(self) -> dict[str, Any]:
        """Return it as `json.dumps` accepts it."""
        return {name: getattr(self, name) for name in _FIELDS} | {"what": str(self.what), "passed": list(self.passed)}


_FIELDS = tuple(each.name for each in fields(Entry))


def describe(entry: Entry) -> str:
    """Return an event and its outcome in one line for people."""
    words = [f"#{entry.id} {printable(entry.topic)}:", str(entry.what)]
    if entry.into is not None:
        words.append(f"into #{entry.into}")
    elif entry.handler is not None:
        waiting = entry.what in (EventOutcome.QUEUED, EventOutcome.HELD)
        words.append(f"{'for' if waiting else 'by'} {printable(entry.handler)}")
    if entry.merged > 1:
        words.append(f"as {entry.merged} events in one")
    if entry.duration is not None:
        words.append(f"in {duration(entry.duration)}")
    if entry.waited is not None and entry.waited >= _SHORT_WAIT:
        words.append(f"after a wait of {duration(entry.waited)}")
    if entry.passed:
        words.append(f"passed on by {', '.join(map(printable, entry.passed))}")
    text = " ".join(words)
    return text if entry.error is None else f"{text} ({printable(entry.error)})"


# -- causes and effects --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Node:
    """An entry and how many generations it is below the root."""

    entry: Entry
    depth: int


@dataclass(frozen=True, slots=True)
class Trace:
    """The tree that an event belongs to: its oldest known ancestor, and every event that resulted from that.

    Children follow their parents, in the order in which they were accepted. An event that was merged into a call is
    below that call, unless it has a parent of its own.
    """

    #: The event that was asked for.
    id: int
    #: A flat list, since the tree may be as deep as the log is long.
    nodes: tuple[Node, ...]

    @property
    def root(self) -> Entry:
        """The oldest known ancestor."""
        return self.nodes[0].entry

    @property
    def lines(self) -> tuple[str, ...]:
        """The tree for people; the event that was asked for is marked."""
        return tuple(
            f"{'  ' * min(node.depth, _MAX_INDENT)}{describe(node.entry)}{'  <-' if node.entry.id == self.id else ''}"
            for node in self.nodes
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as `json.dumps` accepts it: ``id``, and ``nodes``, each an entry with its ``depth``."""
        nodes = [{"depth": node.depth, **node.entry.to_dict()} for node in self.nodes]
        return {"id": self.id, "nodes": nodes}


def trace_of(number: int, entries: Mapping[int, Entry]) -> Trace:
    """Return the tree of the entry with that id, among ``entries``, which are sorted by id."""
    children: dict[int, list[Entry]] = {}
    for entry in entries.values():
        parent = _parent(entry, entries)
        if parent is not None:
            children.setdefault(parent.id, []).append(entry)
    root = entries[number]
    # This ends: a parent has a smaller id, and a call the parent of the first of its events.
    while (parent := _parent(root, entries)) is not None:
        root = parent
    return Trace(number, tuple(_nodes(root, children)))


def _parent(entry: Entry, entries: Mapping[int, Entry]) -> Entry | None:
    """Return its parent, else the call that it was merged into."""
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

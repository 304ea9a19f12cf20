"""What became of one event: the entry that readers of the event log are given, and its sentence for people."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from lifecycle._text import duration, printable

__all__ = ["Entry", "Fate", "sentence"]

#: Seconds that are worth to be told.
_NOTABLE = 0.001


class Fate(StrEnum):
    """What became of an event."""

    #: It waits in a lane, or for room in one.
    QUEUED = "queued"
    #: It is what a window holds, whose burst is not over.
    HELD = "held"
    #: A window took it into another, whose fate is its own.
    MERGED = "merged"
    RUNNING = "running"
    HANDLED = "handled"
    FAILED = "failed"
    #: It was given up, and counted.
    DROPPED = "dropped"
    #: It was given up, or its handler was cancelled, for a newer event.
    SUPERSEDED = "superseded"
    #: Nobody took it.
    UNROUTED = "unrouted"
    #: There was no room, and whoever sent it was told so.
    REFUSED = "refused"


#: Those that do not change any more.
_UNDER_WAY = frozenset({Fate.QUEUED, Fate.HELD, Fate.RUNNING})


@dataclass(frozen=True, slots=True)
class Entry:
    """One event and what became of it, at one moment; durations in seconds.

    Texts are cut to a bounded length. `summary` shows numbers and short texts of an event, no bodies, and ``***`` for
    what is called a password, a token or alike.
    """

    #: Counts up within the process, as `Delivery.id` does.
    id: int
    #: Of the event whose handler emitted it.
    parent: int | None
    topic: str
    summary: str
    #: The name of the router.
    router: str
    #: When it came in, in seconds since 1970.
    time: float
    #: The route that has it; ``(fallback)`` for what nobody took.
    pattern: str | None
    handler: str | None
    what: Fate
    #: Of the call that it was merged into.
    into: int | None
    #: How many events were merged into this call.
    merged: int
    #: From its coming in to its handler.
    waited: float | None
    #: Of its handler, the last one that had it.
    duration: float | None
    error: str | None
    attempt: int
    #: Patterns of the routes whose handlers passed it on, in order.
    passed: tuple[str, ...]

    @property
    def over(self) -> bool:
        """Whether this is how it ended."""
        return self.what not in _UNDER_WAY

    def to_dict(self) -> dict[str, Any]:
        """As `json.dumps` takes it."""
        return {name: getattr(self, name) for name in _FIELDS} | {"what": str(self.what), "passed": list(self.passed)}


_FIELDS = tuple(each.name for each in fields(Entry))


def sentence(entry: Entry) -> str:
    """What became of an event, as one line for people."""
    words = [f"#{entry.id} {printable(entry.topic)}:", str(entry.what)]
    if entry.into is not None:
        words.append(f"into #{entry.into}")
    elif entry.handler is not None:
        words.append(f"{'for' if entry.what in (Fate.QUEUED, Fate.HELD) else 'by'} {printable(entry.handler)}")
    if entry.merged > 1:
        words.append(f"as {entry.merged} events in one")
    if entry.duration is not None:
        words.append(f"in {duration(entry.duration)}")
    if entry.waited is not None and entry.waited >= _NOTABLE:
        words.append(f"after a wait of {duration(entry.waited)}")
    if entry.passed:
        words.append(f"passed on by {', '.join(map(printable, entry.passed))}")
    text = " ".join(words)
    return text if entry.error is None else f"{text} ({printable(entry.error)})"

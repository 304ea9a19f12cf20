"""`EventLog`: the last events of a program and what became of each."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from lifecycle import hooks
from lifecycle.control.routing import as_pattern
from lifecycle.observe._events.changes import Following
from lifecycle.observe._events.entries import Entry, Fate
from lifecycle.observe._events.recorder import Recorder
from lifecycle.observe._events.routers import Routers
from lifecycle.observe._events.traces import Node, Trace, trace_of
from lifecycle.observe._onlookers import Onlooker
from lifecycle.observe.explaining import Explanation, explain
from lifecycle.runtime.lifetimes import current_life

if TYPE_CHECKING:
    import os
    from contextlib import AsyncExitStack

    from lifecycle.control.patterns import Pattern
    from lifecycle.events import Topical
    from lifecycle.observe._events.files import Writer
    from lifecycle.runtime.lifetimes import Lifetime

__all__ = ["Entry", "EventLog", "EventLogState", "Fate", "Following", "Node", "Trace"]

#: How many events are looked at in one turn of the loop: at most some ten milliseconds, whatever the pattern.
_SLICE = 100

#: How many events of its topic an explanation shows.
_SEEN = 5


@dataclass(frozen=True, slots=True)
class EventLogState:
    """An event log at one moment."""

    name: str
    #: How many events it keeps, and how many it has now.
    size: int
    kept: int
    #: Events so far, and those whose end is not known yet.
    seen: int
    under_way: int
    #: Who follows it.
    followers: int
    #: The file; None: there is none.
    path: str | None
    #: Events that the file could not take.
    lost: int


class EventLog(Onlooker):
    """Remembers the last ``size`` events of the program and what became of each; a main for `run`, best the first.

    It sees the events of every router that runs under its lifetime; outside one, of those that run under none. What is
    kept of an event is small: see `Entry`. With ``path``, each event is also written there once it has ended, as a line
    of JSON: by a thread, so that a slow disk holds nobody up; what a full one cannot take is lost, counted and logged
    once. A file that would grow over ``max_bytes`` is renamed to ``path.1``, and ``backups`` of those are kept.

    ``async with`` does the same as running it; where the file cannot be written, both raise `OSError`. What it has
    seen can still be read when it is closed.

    Raises:
        ValueError: for a ``size`` or ``max_bytes`` below 1, or negative ``backups``.
    """

    def __init__(
        self,
        size: int = 1000,
        *,
        path: str | os.PathLike[str] | None = None,
        max_bytes: int = 10_000_000,
        backups: int = 3,
    ) -> None:
        if size < 1 or max_bytes < 1 or backups < 0:
            raise ValueError(
                f"EventLog({size!r}, max_bytes={max_bytes!r}, backups={backups!r}): give 1 event and 1 byte or more, "
                "and 0 backups or more"
            )
        super().__init__()
        self.name = "events"
        self.size = size
        self._path = None if path is None else Path(path)
        self._limits = max_bytes, backups
        self._writer: Writer | None = None
        self._recorder = Recorder(size)
        # Whose events are noted; None before it is entered.
        self._routers: Routers | None = None

    def __repr__(self) -> str:
        kept = len(self._recorder.last)
        return f"<EventLog of {self.size}: {kept} kept, {'open' if self._up.is_set() else 'closed'}>"

    @classmethod
    def current(cls) -> EventLog | None:
        """The one that is open under the current lifetime, or around it, the first of several; None: there is none."""
        life = current_life.get(None)
        while life is not None:
            for each in life.lifetime.components():
                if isinstance(each, cls):
                    return each
            life = life.outer
        return None

    # -- what can be read ----------------------------------------------------------------------------------------

    def entries(self, pattern: str | Pattern | type[Topical] = "**", *, limit: int | None = None) -> list[Entry]:
        """Those that are kept and whose topic matches, oldest first; with ``limit`` the last so many."""
        wanted = as_pattern(pattern)
        found = (record for record in reversed(self._recorder.last) if wanted.matches(record.topic_now()))
        return [record.entry() for record in islice(found, limit)][::-1]

    async def find(self, pattern: str | Pattern | type[Topical] = "**", *, limit: int | None = None) -> list[Entry]:
        """The same as `entries`, but other tasks have their turn in between, however many events are kept."""
        wanted = as_pattern(pattern)
        found: list[Entry] = []
        # A copy: events come in meanwhile.
        for looked, record in enumerate(reversed(list(self._recorder.last)), 1):
            if len(found) == limit:
                break
            if wanted.matches(record.topic_now()):
                found.append(record.entry())
            if looked % _SLICE == 0:
                await asyncio.sleep(0)
        return found[::-1]

    def get(self, id: int) -> Entry | None:  # noqa: A002  # the field's word
        """The entry of the event with that id; None where it is not known, or not any more."""
        record = self._recorder.get(id)
        return None if record is None else record.entry()

    def trace(self, id: int) -> Trace:  # noqa: A002  # the field's word
        """What the event with that id was caused by, and all that came of that.

        Raises:
            LookupError: when it is not known, or not any more.
        """
        records = self._recorder.all()
        if id not in records:
            raise LookupError(
                f"there is no event {id!r} here: the log keeps the last {self.size}, of {self._recorder.seen} so far"
            )
        return trace_of(id, {number: record.entry() for number, record in records.items()})

    def follow(self, pattern: str | Pattern | type[Topical] = "**", *, maxsize: int = 1000) -> Following:
        """Entries as they change: ``async with log.follow("file/**") as entries: async for entry in entries``.

        An entry that changed several times since the last look comes once, as it is then. At most ``maxsize`` changes
        wait for a reader; then the oldest are dropped and counted in ``entries.dropped``. It ends when the log closes.

        Raises:
            ValueError: for a ``maxsize`` below 1.
        """
        if maxsize < 1:
            raise ValueError(f"follow(maxsize={maxsize!r}) could hold nothing; give 1 or more")
        return Following(self._recorder.changes, as_pattern(pattern), maxsize)

    def explain(self, topic: str) -> Explanation:
        """Why nothing happened, or what would: who gets ``topic``, what it would meet now, what became of the last.

        Raises:
            RuntimeError: before it was opened.
        """
        if self._routers is None:
            raise RuntimeError(f"{self!r} knows no routers yet; enter it, or run it beside the program")
        last = self._recorder.last
        seen = [record.entry() for record in last if record.topic_now() == topic][-_SEEN:]
        topics = {record.topic_now() for record in last}
        return explain(topic, self._routers.names, seen=seen, topics=topics, failures=self._routers.failures)

    def state(self) -> EventLogState:
        """What there is to know about it now."""
        recorder = self._recorder
        return EventLogState(
            name=self.name,
            size=self.size,
            kept=len(recorder.last),
            seen=recorder.seen,
            under_way=len(recorder.under_way),
            followers=len(recorder.changes),
            path=None if self._path is None else str(self._path),
            lost=0 if self._writer is None else self._writer.lost,
        )

    # -- its life ------------------------------------------------------------------------------------------------

    def _begin(self, held: AsyncExitStack, lifetime: Lifetime | None) -> None:  # noqa: ARG002  # inner ones are found too
        self._routers = routers = Routers()
        if self._path is not None:
            from lifecycle.observe._events.files import LineFile, Writer  # most logs have no file

            self._writer = Writer(LineFile(self._path, *self._limits))
            held.push_async_callback(self._writer.aclose)
        self._connect(held, routers.receivers())
        held.callback(self._recorder.end)
        self._recorder.begin(routers, self._writer)
        self._connect(held, self._recorder.receivers())
        hooks.component_opened.announce(self, component=self)
        held.callback(hooks.component_closed.announce, self, component=self)

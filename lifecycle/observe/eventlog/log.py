"""`EventLog`: a program's latest events, and what happened to each one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from lifecycle import hooks
from lifecycle._owners import own_component
from lifecycle.control.routes import as_pattern
from lifecycle.observe.eventlog.entries import trace_of
from lifecycle.observe.eventlog.recorder import Following, Recorder, Routers
from lifecycle.observe.hook_observer import HookObserver
from lifecycle.runtime.lifetimes import current_lifetime

if TYPE_CHECKING:
    import os
    from contextlib import AsyncExitStack

    from lifecycle.control.patterns import Pattern
    from lifecycle.events import Topical
    from lifecycle.observe.eventlog.entries import Entry, Trace
    from lifecycle.observe.eventlog.explanations import Explanation
    from lifecycle.observe.eventlog.files import Writer
    from lifecycle.runtime.lifetimes import Lifetime

__all__ = ["EventLog", "EventLogState"]

#: How many entries `find` compares before it lets other tasks run. Even with the slowest pattern, this takes at most
#: ten milliseconds.
_SLICE = 100

#: The maximum number of past events shown in an explanation.
_SEEN = 5


@dataclass(frozen=True, slots=True)
class EventLogState:
    """An event log's state at one moment."""

    name: str
    #: The maximum number of events to keep.
    size: int
    #: The number of events currently kept.
    kept: int
    #: The total number of events so far.
    seen: int
    #: The number of unfinished events.
    under_way: int
    #: The number of readers following the log.
    followers: int
    #: The path of the file, if the log writes one.
    path: str | None
    #: The number of events that could not be written to the file.
    lost: int


class EventLog(HookObserver):
    """A log of the program's last ``size`` events and their outcomes. Pass it to `run`, preferably first.

    It records the events of all routers that run under its lifetime. Outside a lifetime, it records the events of
    routers that run without one. See `Entry` for the data it keeps per event. If you pass ``path``, each finished event
    is also written to that file as a line of JSON. This happens in a thread, so a slow disk does not delay events.
    Events that cannot be written, for example because the disk is full, are lost and counted, and the first loss is
    logged. Before the file exceeds ``max_bytes``, it is renamed to ``path.1``, and ``backups`` older files are kept.

    Instead of passing the log to `run`, you can use ``async with``. Either way, it raises `OSError` if the file cannot
    be opened for writing. You can still read the entries after the log is closed.

    Raises:
        ValueError: if ``size`` or ``max_bytes`` is less than 1, or ``backups`` is negative.
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
                f"EventLog({size!r}, max_bytes={max_bytes!r}, backups={backups!r}): "
                "size and max_bytes must be 1 or more, and backups 0 or more"
            )
        super().__init__()
        self.name = "events"
        self.size = size
        self._path = None if path is None else Path(path)
        self._limits = max_bytes, backups
        self._writer: Writer | None = None
        self._recorder = Recorder(size)
        # The routers whose events are recorded; None until the log is opened.
        self._routers: Routers | None = None

    def __repr__(self) -> str:
        kept = len(self._recorder.last)
        return f"<EventLog of {self.size}: {kept} kept, {'open' if self._up.is_set() else 'closed'}>"

    @classmethod
    def current(cls) -> EventLog | None:
        """Return the first open log in the current lifetime or an enclosing one, or None if no log is open."""
        life = current_lifetime()
        while life is not None:
            for each in life.components():
                if isinstance(each, cls):
                    return each
            life = life.outer
        return None

    # -- reading ------------------------------------------------------------------------------------------------

    def entries(self, pattern: str | Pattern | type[Topical] = "**", *, limit: int | None = None) -> list[Entry]:
        """Return the entries with a matching topic, oldest first. If ``limit`` is set, return only the newest."""
        wanted = as_pattern(pattern)
        found = (record for record in reversed(self._recorder.last) if wanted.matches(record.current_topic()))
        return [record.entry() for record in islice(found, limit)][::-1]

    async def find(self, pattern: str | Pattern | type[Topical] = "**", *, limit: int | None = None) -> list[Entry]:
        """Do the same as `entries`, but let other tasks run during the search."""
        wanted = as_pattern(pattern)
        found: list[Entry] = []
        # We iterate over a copy, because events may be recorded during the search.
        for looked, record in enumerate(reversed(list(self._recorder.last)), 1):
            if len(found) == limit:
                break
            if wanted.matches(record.current_topic()):
                found.append(record.entry())
            if looked % _SLICE == 0:
                await asyncio.sleep(0)
        return found[::-1]

    def get(self, id: int) -> Entry | None:  # noqa: A002  # matches the field's name
        """Return the entry for the event with this id, or None if the id is unknown or the entry is no longer kept."""
        record = self._recorder.get(id)
        return None if record is None else record.entry()

    def trace(self, id: int) -> Trace:  # noqa: A002  # matches the field's name
        """Return the causes and effects of the event with this id.

        Raises:
            LookupError: if the id is unknown or the entry is no longer kept.
        """
        records = self._recorder.all()
        if id not in records:
            raise LookupError(
                f"the log has no event {id!r}: it has seen {self._recorder.seen} and keeps the last {self.size}"
            )
        return trace_of(id, {number: record.entry() for number, record in records.items()})

    def follow(self, pattern: str | Pattern | type[Topical] = "**", *, maxsize: int = 1000) -> Following:
        """Follow entries as they change: ``async with log.follow("file/**") as entries: async for entry in entries``.

        If an entry changes several times before it is read, the reader receives it once, in its latest state. At most
        ``maxsize`` changes wait to be read. Beyond that, the oldest are dropped and counted in ``entries.dropped``. The
        iteration ends when the log closes.

        Raises:
            ValueError: if ``maxsize`` is less than 1.
        """
        if maxsize < 1:
            raise ValueError(f"follow(maxsize={maxsize!r}): maxsize must be 1 or more")
        return Following(self._recorder.changes, as_pattern(pattern), maxsize)

    def explain(self, topic: str) -> Explanation:
        """Explain what happens to an event with this topic: the matching routes, their lanes, and the latest events.

        Raises:
            RuntimeError: if the log has never been opened.
        """
        from lifecycle.observe.eventlog.explanations import explain  # not needed by most programs

        if self._routers is None:
            raise RuntimeError(f"{self!r} has not been opened; enter it with `async with`, or pass it to run()")
        last = self._recorder.last
        seen = [record.entry() for record in last if record.current_topic() == topic][-_SEEN:]
        topics = {record.current_topic() for record in last}
        return explain(topic, self._routers.names, seen=seen, topics=topics, failures=self._routers.failures)

    def state(self) -> EventLogState:
        """Return the log's current state."""
        recorder = self._recorder
        return EventLogState(
            name=self.name,
            size=self.size,
            kept=len(recorder.last),
            seen=recorder.seen,
            under_way=len(recorder.in_flight),
            followers=len(recorder.changes),
            path=None if self._path is None else str(self._path),
            lost=0 if self._writer is None else self._writer.lost,
        )

    # -- lifecycle -----------------------------------------------------------------------------------------------

    def _begin(self, held: AsyncExitStack, lifetime: Lifetime | None) -> None:  # noqa: ARG002  # the routers also look for inner lifetimes
        self._routers = routers = Routers()
        if self._path is not None:
            from lifecycle.observe.eventlog.files import LineFile, Writer  # most logs have no file

            self._writer = Writer(LineFile(self._path, *self._limits))
            held.push_async_callback(self._writer.aclose)
        self._connect(held, routers.receivers())
        held.callback(self._recorder.end)
        self._recorder.begin(routers, self._writer)
        self._connect(held, self._recorder.receivers())
        held.callback(own_component(self).end)
        hooks.component_opened.announce(self, component=self)
        held.callback(hooks.component_closed.announce, self, component=self)

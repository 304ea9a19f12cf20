"""Who notes what becomes of each event: the hot part of an event log, called a few times for each delivery.

Nothing is made for readers here, and nothing waits: texts are made when somebody reads them, the disk has a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from lifecycle import hooks
from lifecycle.observe._events.changes import Changes
from lifecycle.observe._events.entries import Fate
from lifecycle.observe._events.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lifecycle.control.deliveries import Delivery
    from lifecycle.observe._events.files import Writer
    from lifecycle.observe._events.routers import Routers

__all__ = ["Recorder"]


class Recorder:
    """Keeps the records of the last ``size`` events, and of those that have not ended, which may be older."""

    def __init__(self, size: int) -> None:
        #: The last ones, oldest first.
        self.last: deque[Record] = deque(maxlen=size)
        #: Those that have not ended, by their ids.
        self.under_way: dict[int, Record] = {}
        #: How many there were so far.
        self.seen: int = 0
        #: For those who follow.
        self.changes: Changes = Changes()
        # Whose events are noted, and who is given each that has ended; None before it has begun.
        self._routers: Routers | None = None
        self._writer: Writer | None = None
        self._clock: Callable[[], float] = time.monotonic

    def get(self, number: int) -> Record | None:
        """The record of the event with that id; None where it is not known, or not any more."""
        return self.under_way.get(number) or next((each for each in self.last if each.id == number), None)

    def all(self) -> dict[int, Record]:
        """All that are known, by their ids and in that order."""
        found = {each.id: each for each in (*self.under_way.values(), *self.last)}
        return {number: found[number] for number in sorted(found)}

    # -- its life --------------------------------------------------------------------------------------------------

    def begin(self, routers: Routers, writer: Writer | None) -> None:
        """Be ready for the events of ``routers``."""
        self._routers, self._writer = routers, writer
        self._clock = asyncio.get_running_loop().time
        self.changes.is_over = False

    def receivers(self) -> Iterator[tuple[hooks.Hook, Callable[..., None]]]:
        """What is to be connected, once it has begun."""
        yield hooks.delivery_accepted, self._accepted
        yield hooks.event_merged, self._merged
        yield hooks.handler_started, self._started
        yield hooks.handler_passed, self._passed
        yield hooks.delivery_ended, self._ended

    def end(self) -> None:
        """What has not ended is known as it is now, and no longer; who follows is told that there is no more."""
        for record in self.under_way.values():
            record.let_go()
            self._settled(record)
        self.under_way.clear()
        self.changes.end()

    # -- what becomes of events ------------------------------------------------------------------------------------

    def _accepted(self, router: Any, *, delivery: Delivery) -> None:
        assert self._routers is not None, "it has begun"
        name = self._routers.name(router)
        if name is not None:
            self._add(Record(delivery, name, self._clock()))

    def _add(self, record: Record) -> None:
        self.seen += 1
        self.under_way[record.id] = record
        self.last.append(record)
        if self.changes.is_read:
            self.changes.note(record)

    def _merged(self, _router: object, *, delivery: Delivery, **_: object) -> None:
        record = self.under_way.pop(delivery.id, None)
        into = delivery.into
        if record is None or into is None:
            return
        call = self.under_way.get(into.id)
        if call is None:
            call = Record(into, record.router, record.at)
            call.what = Fate.HELD
            self._add(call)
        call.merged += 1
        record.merge(delivery, into.id)
        self._settled(record)

    def _started(self, _router: object, *, pattern: str, delivery: Delivery, **_: object) -> None:
        record = self.under_way.get(delivery.id)
        if record is not None:
            record.start(pattern, self._clock())
            if self.changes.is_read:
                self.changes.note(record)

    def _passed(self, _router: object, *, pattern: str, delivery: Delivery, **_: object) -> None:
        record = self.under_way.get(delivery.id)
        if record is not None:
            record.passed += (pattern,)
            record.what = Fate.QUEUED

    def _ended(self, _router: object, *, delivery: Delivery) -> None:
        record = self.under_way.pop(delivery.id, None)
        if record is not None:
            record.end(delivery, self._clock())
            self._settled(record)

    def _settled(self, record: Record) -> None:
        if self._writer is not None:
            self._writer.put(record)
        if self.changes.is_read:
            self.changes.note(record)

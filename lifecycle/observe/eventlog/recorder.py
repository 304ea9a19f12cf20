"""The recorder behind an event log. It uses hooks to follow every event from its acceptance to its outcome.

The hook receivers run several times per delivery, so they store little, format nothing and never wait. Texts are
formatted only when an entry is read, and a separate thread writes to the disk.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lifecycle import hooks
from lifecycle._async import Condition
from lifecycle._masking import error_masked
from lifecycle._text import component_name, shorten
from lifecycle._util import name_of
from lifecycle.control.patterns import DEEP
from lifecycle.errors import Dropped, LaneFull, NotHandled
from lifecycle.observe.eventlog.entries import Entry, EventOutcome
from lifecycle.observe.eventlog.summaries import digest, summary
from lifecycle.runtime.lifetimes import current_lifetime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Self

    from lifecycle.control.deliveries import Delivery
    from lifecycle.control.patterns import Pattern
    from lifecycle.observe.eventlog.files import Writer
    from lifecycle.observe.eventlog.summaries import Digest

__all__ = ["Changes", "Failure", "Following", "Record", "Recorder", "Routers"]

#: The maximum length of a stored topic or name, and of a stored error, in characters. Routers reject longer topics.
_TEXT, _ERROR = 1024, 500

#: The maximum number of sources for which the latest failure is stored.
_FAILURES = 100


class Recorder:
    """The records of the last ``size`` events and of all unfinished events, which may be older."""

    def __init__(self, size: int) -> None:
        #: The latest records, oldest first.
        self.last: deque[Record] = deque(maxlen=size)
        #: The records of unfinished events, by id.
        self.in_flight: dict[int, Record] = {}
        #: The total number of events so far.
        self.seen: int = 0
        #: The changes, for followers to read.
        self.changes: Changes = Changes()
        # The routers whose events are recorded, and the writer for finished events, if there is one. Both are None
        # until `begin` is called.
        self._routers: Routers | None = None
        self._writer: Writer | None = None
        self._clock: Callable[[], float] = time.monotonic

    def get(self, number: int) -> Record | None:
        """Return the record of the event with this id, or None if the id is unknown or the record is no longer kept."""
        return self.in_flight.get(number) or next((each for each in self.last if each.id == number), None)

    def all(self) -> dict[int, Record]:
        """Return all known records, sorted by id."""
        found = {each.id: each for each in (*self.in_flight.values(), *self.last)}
        return {number: found[number] for number in sorted(found)}

    def begin(self, routers: Routers, writer: Writer | None) -> None:
        """Prepare to record the events in ``routers``. Call this before connecting the `receivers`."""
        self._routers, self._writer = routers, writer
        self._clock = asyncio.get_running_loop().time
        self.changes.ended = False

    def receivers(self) -> Iterator[tuple[hooks.Hook, Callable[..., None]]]:
        """Yield the hooks and their receivers."""
        yield hooks.delivery_accepted, self._on_accepted
        yield hooks.event_merged, self._on_merged
        yield hooks.handler_started, self._on_handler_started
        yield hooks.handler_passed, self._on_handler_passed
        yield hooks.delivery_ended, self._on_ended

    def end(self) -> None:
        """Freeze the records of unfinished events in their current state, and end the iteration for all followers."""
        for record in self.in_flight.values():
            record.abandon()
            self._done(record)
        self.in_flight.clear()
        self.changes.end()

    # -- receivers -------------------------------------------------------------------------------------------------

    def _on_accepted(self, router: Any, *, delivery: Delivery) -> None:
        assert self._routers is not None, "it has begun"
        name = self._routers.name(router)
        if name is not None:
            self._add(Record(delivery, name, self._clock()))

    def _add(self, record: Record) -> None:
        self.seen += 1
        self.in_flight[record.id] = record
        self.last.append(record)
        if self.changes.followed:
            self.changes.add(record)

    def _on_merged(self, _router: object, *, delivery: Delivery, **_: object) -> None:
        record = self.in_flight.pop(delivery.id, None)
        into = delivery.into
        if record is None or into is None:
            return
        call = self.in_flight.get(into.id)
        if call is None:
            call = Record(into, record.router, record.at)
            call.what = EventOutcome.HELD
            self._add(call)
        call.merged += 1
        record.merge(delivery, into.id)
        self._done(record)

    def _on_handler_started(self, _router: object, *, pattern: str, delivery: Delivery, **_: object) -> None:
        record = self.in_flight.get(delivery.id)
        if record is not None:
            record.start(pattern, self._clock())
            if self.changes.followed:
                self.changes.add(record)

    def _on_handler_passed(self, _router: object, *, pattern: str, delivery: Delivery, **_: object) -> None:
        record = self.in_flight.get(delivery.id)
        if record is not None:
            record.passed += (pattern,)
            record.what = EventOutcome.QUEUED

    def _on_ended(self, _router: object, *, delivery: Delivery) -> None:
        record = self.in_flight.pop(delivery.id, None)
        if record is not None:
            record.end(delivery, self._clock())
            self._done(record)

    def _done(self, record: Record) -> None:
        if self._writer is not None:
            self._writer.put(record)
        if self.changes.followed:
            self.changes.add(record)


class Record:
    """The data stored about one delivery. Texts are only created when the record is read."""

    __slots__ = (
        "at",
        "attempt",
        "began",
        "change",
        "delivery",
        "digest",
        "ended",
        "error",
        "final",
        "handler",
        "id",
        "into",
        "merged",
        "parent",
        "passed",
        "pattern",
        "router",
        "time",
        "topic",
        "what",
    )

    def __init__(self, delivery: Delivery, router: str, at: float) -> None:
        parent, route = delivery.parent, delivery.route
        self.id: int = delivery.id
        self.parent: int | None = None if parent is None else parent.id
        self.router: str = router
        self.time: float = time.time()
        #: Event loop times: when the event was accepted, when its handler was called, and when the handler finished.
        self.at: float = at
        self.began: float | None = None
        self.ended: float | None = None
        #: The delivery, until it finishes. After that, only the fields below are kept.
        self.delivery: Delivery | None = delivery
        self.what: EventOutcome = EventOutcome.QUEUED
        self.pattern: str | None = None if route is None else route.text
        self.handler: str | None = None
        self.topic: str = ""
        self.digest: Digest | None = None
        self.into: int | None = None
        self.merged: int = 0
        self.attempt: int = 1
        self.error: str | None = None
        self.passed: tuple[str, ...] = ()
        #: The number of the latest change. `final` is the entry once the record can no longer change.
        self.change: int = 0
        self.final: Entry | None = None

    def start(self, pattern: str, at: float) -> None:
        """Record that a handler was called."""
        self.pattern = pattern
        self.began = at
        self.what = EventOutcome.RUNNING

    def merge(self, delivery: Delivery, call: int) -> None:
        """Record that the event was merged into the call with the id ``call``."""
        self.into = call
        self.what = EventOutcome.MERGED
        self._release(delivery)

    def abandon(self) -> None:
        """Freeze the record in its current state, because the log is closing before the delivery has finished."""
        if self.delivery is not None:
            self._release(self.delivery)

    def end(self, delivery: Delivery, at: float) -> None:
        """Record the outcome of the delivery, and its error if it failed."""
        error = delivery.error
        if self.began is not None:
            self.ended = at
        if error is None:
            self.what = EventOutcome.HANDLED
        else:
            self.what = _outcome(error, began=self.began is not None)
            self.error = error_masked(error, _ERROR)
        self._release(delivery)

    def _release(self, delivery: Delivery) -> None:
        """Copy the data that an entry needs, so that the event can be garbage collected."""
        route = delivery.route
        if route is not None:
            self.pattern, self.handler = route.text, name_of(route.handler)
        self.attempt = delivery.attempt
        self.topic = _topic(delivery)
        self.digest = digest(delivery.event)
        self.delivery = self.final = None

    def current_topic(self) -> str:
        """Return the event's topic."""
        return self.topic if self.delivery is None else _topic(self.delivery)

    def entry(self) -> Entry:
        """Return the entry for the record's current state."""
        if self.delivery is not None:
            return self._entry()
        if self.final is None:
            self.final = self._entry()
        return self.final

    def _entry(self) -> Entry:
        delivery, pattern, handler, what = self.delivery, self.pattern, self.handler, self.what
        if delivery is not None:
            if delivery.route is not None:
                pattern, handler = delivery.route.text, name_of(delivery.route.handler)
            if what is EventOutcome.HELD and not _is_held(delivery):
                what = EventOutcome.QUEUED
        return Entry(
            id=self.id,
            parent=self.parent,
            topic=self.current_topic(),
            summary=summary(self.digest or digest(None if delivery is None else delivery.event)),
            router=shorten(self.router, _TEXT),
            time=self.time,
            pattern=pattern if pattern is None else shorten(pattern, _TEXT),
            handler=handler if handler is None else shorten(handler, _TEXT),
            what=what,
            into=self.into,
            merged=self.merged,
            waited=None if self.began is None else max(0.0, self.began - self.at),
            duration=None if self.began is None or self.ended is None else max(0.0, self.ended - self.began),
            error=self.error,
            attempt=self.attempt if delivery is None else delivery.attempt,
            passed=tuple(shorten(each, _TEXT) for each in self.passed),
        )


def _outcome(error: BaseException, *, began: bool) -> EventOutcome:
    if isinstance(error, Dropped):
        return EventOutcome.SUPERSEDED if error.superseded else EventOutcome.DROPPED
    if isinstance(error, NotHandled):
        return EventOutcome.UNROUTED
    return EventOutcome.REFUSED if isinstance(error, LaneFull) and not began else EventOutcome.FAILED


def _is_held(call: Delivery) -> bool:
    return call.route is not None and call.route.holds(call)


def _topic(delivery: Delivery) -> str:
    try:
        topic: Any = delivery.event.topic
        if type(topic) is str and len(topic) <= _TEXT:
            return topic
    except Exception:  # noqa: BLE001  # a property in the program may raise anything
        return ""
    if not isinstance(topic, str):
        return f"({type(topic).__name__})"
    # We do not use str(topic), because it returns the member's name for some enums.
    return shorten(topic if type(topic) is str else str.__str__(topic), _TEXT)


# -- followers -----------------------------------------------------------------------------------------------------


class Changes:
    """The latest changes, numbered and shared by all followers. They are stored only while there are followers."""

    __slots__ = ("_changed", "_followers", "_kept", "count", "ended", "followed")

    def __init__(self) -> None:
        #: The total number of changes.
        self.count: int = 0
        # The record behind each of the latest changes. A record that changes again is appended again.
        self._kept: deque[Record] = deque()
        self._followers: list[Following] = []
        self._changed = Condition()
        #: True while there are followers.
        self.followed: bool = False
        #: True if no more changes will follow.
        self.ended: bool = False

    def __len__(self) -> int:
        """Return the number of followers."""
        return len(self._followers)

    def add(self, record: Record) -> None:
        """Store a change of ``record``. Call this only while there are followers."""
        self.count += 1
        record.change = self.count
        self._kept.append(record)
        self._changed.notify_all()

    async def wait(self) -> None:
        """Wait until there is another change, a follower leaves, or no more changes will follow."""
        await self._changed.wait()

    def get(self, number: int) -> Record | None:
        """Return the record behind the change ``number``, or None if the record has changed again since."""
        record = self._kept[number - self.count - 1]
        return record if record.change == number else None

    def join(self, follower: Following, maxsize: int) -> None:
        """Add ``follower``, and keep at least the last ``maxsize`` changes from now on."""
        self._followers.append(follower)
        longest = max(maxsize, self._kept.maxlen or 0)
        if longest != self._kept.maxlen:
            self._kept = deque(self._kept, longest)
        self.followed = True

    def leave(self, follower: Following) -> None:
        """Remove ``follower``. If it was the last one, discard the stored changes."""
        if follower in self._followers:
            self._followers.remove(follower)
        if not self._followers:
            self.followed = False
            self._kept = deque()
        self._changed.notify_all()

    def end(self) -> None:
        """End the iteration for all followers."""
        self.ended = True
        self._changed.notify_all()


class Following:
    """An async iterator of entries as they change, returned by `EventLog.follow`.

    An entry that has changed several times since the last read is returned only once. At most ``maxsize`` changes wait
    to be read. Beyond that, the oldest are dropped and counted in ``dropped``.
    """

    def __init__(self, changes: Changes, pattern: Pattern, maxsize: int) -> None:
        #: The number of changes, with any topic, that were dropped because the follower was too slow.
        self.dropped: int = 0
        self._changes = changes
        self._pattern = None if pattern.segments == (DEEP,) else pattern
        self._maxsize = maxsize
        # The number of the last change that was read; None until the follower is entered.
        self._seen: int | None = None
        self._left = False

    async def __aenter__(self) -> Self:
        """Start following."""
        self._seen = self._changes.count
        self._changes.join(self, self._maxsize)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop following."""
        self._left = True
        self._changes.leave(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Entry:
        if self._seen is None:
            raise RuntimeError("this follower has not been entered yet; write `async with log.follow(…) as entries`")
        while not self._left:
            record = self._next(self._seen)
            if record is not None:
                return record.entry()
            if self._changes.ended:
                break
            await self._changes.wait()
        raise StopAsyncIteration

    def ready(self) -> list[Entry]:
        """Return the changed entries that are available without waiting, each once and in its current state."""
        found: list[Entry] = []
        while self._seen is not None and not self._left and (record := self._next(self._seen)) is not None:
            found.append(record.entry())
        return found

    def _next(self, seen: int) -> Record | None:
        """Return the next matching record, skipping changes that are followed by a newer change of the same record."""
        count = self._changes.count
        late = count - self._maxsize - seen
        if late > 0:
            self.dropped += late
            seen += late
        found = None
        while seen < count and found is None:
            seen += 1
            found = self._changes.get(seen)
            if found is not None and self._pattern is not None and not self._pattern.matches(found.current_topic()):
                found = None
        self._seen = seen
        return found


# -- routers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failure:
    """A source's latest failure."""

    #: Seconds since 1970.
    time: float
    error: str
    #: The number of seconds from the failure until the source is restarted; None if it is not restarted.
    restart_in: float | None


class Routers:
    """The routers under the current lifetime, or, outside a lifetime, the routers that run without one."""

    def __init__(self) -> None:
        self._life = current_lifetime()
        self._loop = asyncio.get_running_loop()
        running = () if self._life is None else self._life.all_routers()
        #: The running routers and their names.
        self.names: dict[Any, str] = {router: component_name(router) for router in running}
        #: The latest failure of each source, by the names of the router and the source.
        self.failures: dict[tuple[str, str], Failure] = {}

    def receivers(self) -> Iterator[tuple[hooks.Hook, Callable[..., None]]]:
        """Yield the hooks and their receivers."""
        yield hooks.router_started, self._on_started
        yield hooks.router_stopped, self._on_stopped
        yield hooks.source_failed, self._on_source_failed

    def name(self, router: Any) -> str | None:
        """Return the name of ``router`` if it or the caller runs under this lifetime, and None otherwise."""
        name = self.names.get(router)
        return component_name(router) if name is None and self._is_here() else name

    def _is_here(self) -> bool:
        """Return whether the caller runs under this lifetime or one of its inner lifetimes."""
        try:
            if self._loop is not asyncio.get_running_loop():
                return False
        except RuntimeError:  # any thread can emit an event to a router that is not running
            return False
        life = current_lifetime()
        while life is not None and life is not self._life:
            life = life.outer
        return life is self._life

    def _on_started(self, _sender: object, *, router: Any) -> None:
        if self._is_here():
            self.names[router] = component_name(router)

    def _on_stopped(self, _sender: object, *, router: Any) -> None:
        self.names.pop(router, None)

    def _on_source_failed(
        self, router: Any, *, name: str, error: BaseException, restart_in: float | None, **_: object
    ) -> None:
        title = self.name(router)
        if title is None:
            return
        if len(self.failures) >= _FAILURES:
            del self.failures[next(iter(self.failures))]
        self.failures[title, name] = Failure(time.time(), error_masked(error, _ERROR), restart_in)

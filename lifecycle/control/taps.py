"""Looking on: taps and subscriptions see every matching event, and can neither stop nor change it."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from lifecycle._async import is_async, was_cancelled
from lifecycle._util import name_of
from lifecycle.control.deliveries import Delivery
from lifecycle.control.routing import Relayed, Route, as_async, caller
from lifecycle.errors import Dropped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from lifecycle.control.dispatcher import Traffic
    from lifecycle.control.lanes import Lane
    from lifecycle.control.patterns import Pattern
    from lifecycle.control.types import Handler
    from lifecycle.events import Topical

__all__ = ["Relay", "Subscription", "Tap", "TapInfo", "notify", "open_relay", "open_tap"]

_log = logging.getLogger("lifecycle.control")


@dataclass(frozen=True, slots=True)
class TapInfo:
    """What can be seen of a tap."""

    pattern: str
    handler: str
    #: Events that wait for it.
    waiting: int
    #: Events that it was not shown because too many waited, or that its handler gave up with `Dropped`.
    missed: int


class Tap:
    """A handler that looks on.

    A plain function is called at once, before the event goes on. An async one has a lane of its own, so that it may
    take its time: an event that finds this lane full is not shown to it, and counted in ``missed``. So is an event
    for which the handler raises `Dropped`, as `notify` does when its queue is full. A direct dispatch has no lanes: it
    waits for an async tap too.
    """

    def __init__(self, route: Route, lane: Lane, detach: Callable[[Tap], None]) -> None:
        self.route = route
        self.missed: int = 0
        self._lane = lane
        self._detach = detach
        self._call = route.call
        # In its lane, as in a direct dispatch, its errors stay its own.
        route.call = self.look
        route.is_tap = True
        self._plain: Handler | None = None if is_async(route.handler) else route.handler

    @property
    def pattern(self) -> Pattern:
        """What it looks at."""
        return self.route.pattern

    def info(self) -> TapInfo:
        """What can be seen of it now."""
        return TapInfo(self.pattern.text, name_of(self.route.handler), len(self._lane.queue), self.missed)

    def remove(self) -> None:
        """Look no longer; twice is as good as once."""
        self._detach(self)

    def show(self, event: Topical) -> None:
        """Let it see an event that is on its way to a lane."""
        if self._plain is None:
            if self._lane.is_full:
                self.missed += 1
            else:
                self._lane.put(Delivery(event, None, self.route))
            return
        try:
            self._plain(event)
        except Dropped:
            self.missed += 1
        except (Exception, asyncio.CancelledError):  # noqa: BLE001  # it looks on: its errors are logged and stay its own
            self._report(event)

    async def look(self, event: Topical) -> None:
        """Let it see an event that is dispatched directly."""
        try:
            await self._call(event)
        except asyncio.CancelledError:
            if was_cancelled():
                raise
            self._report(event)
        except Dropped:
            self.missed += 1
        except Exception:  # noqa: BLE001  # it looks on: its errors are logged and stay its own
            self._report(event)

    def _report(self, event: Topical) -> None:
        _log.exception("the tap %s on %r failed on %s", name_of(self.route.handler), self.route.text, event.topic)


def open_tap(traffic: Traffic, pattern: Pattern, handler: Handler) -> Tap:
    """Let ``handler`` look at what matches ``pattern``, an async one from a lane of its own."""
    route = Route(pattern, handler, (), caller())
    lane = route.lane = traffic.new_lane(f"tap {route.text}", 1)
    table, lanes = traffic.table, traffic.roster.tap_lanes

    def detach(tap: Tap) -> None:
        table.remove_tap(tap)
        lanes.discard(lane)

    tap = Tap(route, lane, detach)
    lanes.add(lane)
    table.add_tap(tap)
    return tap


class Subscription:
    """The events of a pattern as an async iterator, from `Router.subscribe`.

    At most ``maxsize`` wait; then the oldest is dropped and counted in ``dropped``.
    """

    def __init__(self, attach: Callable[[Callable[[Any], None]], Tap], maxsize: int) -> None:
        if maxsize < 1:
            raise ValueError(f"subscribe(maxsize={maxsize!r}) could hold nothing; give 1 or more")
        self.dropped: int = 0
        self._attach = attach
        self._tap: Tap | None = None
        self._events: deque[Topical] = deque()
        self._maxsize = maxsize
        self._arrived = asyncio.Event()
        self._entered = False

    async def __aenter__(self) -> Self:
        self._entered = True
        self._tap = self._attach(self._take)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tap is not None:
            self._tap.remove()
            self._tap = None
        self._arrived.set()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Topical:
        while not self._events:
            if not self._entered:
                raise RuntimeError("nothing is subscribed yet; write `async with router.subscribe(…) as events`")
            if self._tap is None:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._events.popleft()

    def _take(self, event: Topical) -> None:
        if len(self._events) == self._maxsize:
            self._events.popleft()
            self.dropped += 1
        self._events.append(event)
        self._arrived.set()


class Relay:
    """What `Router.relay` registered; ``remove()`` ends it."""

    def __init__(self, route: Route, detach: Callable[[Relay], None]) -> None:
        self.route = route
        self._detach = detach

    @property
    def pattern(self) -> Pattern:
        """What it takes."""
        return self.route.pattern

    def remove(self) -> None:
        """Take nothing more; twice is as good as once."""
        self._detach(self)


def open_relay(
    traffic: Traffic, pattern: Pattern, handler: Callable[[Any], Awaitable[bool]], concurrency: int
) -> Relay:
    """Let ``handler`` have what matches ``pattern`` before any route."""
    route = Route(pattern, _as_relay(handler), (), caller(), concurrency)
    table, roster = traffic.table, traffic.roster

    def detach(relay: Relay) -> None:
        table.remove_relay(relay)
        if route in roster.relays:
            roster.relays.remove(route)
            roster.retire(route)

    relay = Relay(route, detach)
    roster.relays.append(route)
    table.add_relay(relay)
    return relay


def _as_relay(handler: Callable[[Any], Awaitable[bool]]) -> Callable[[Any], Awaitable[None]]:
    """``handler`` as a route's: that the event goes on is said in the way in which a route passes one on."""
    call = as_async(handler)

    @functools.wraps(handler, updated=())
    async def relay(event: Any) -> None:
        if await call(event):
            raise Relayed

    return relay


def notify(queue: asyncio.Queue[Any]) -> Handler:
    """A handler that puts each event into ``queue`` without waiting.

    Raises:
        Dropped: from the handler, when the queue is full; the event is counted as dropped.
    """

    def put(event: Any) -> None:
        try:
            queue.put_nowait(event)
        except asyncio.QueueFull:
            raise Dropped(f"{event.topic!r} was dropped: the queue is full with {queue.qsize()} events") from None

    return put

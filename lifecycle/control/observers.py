"""Observers, which see events in addition to the routes, and relays, which get events before the routes.

An observer never makes ``emit`` wait, and never changes the outcome of an event.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from lifecycle._util import name_of
from lifecycle.control.calls import as_async
from lifecycle.control.deliveries import Delivery, Relayed, current
from lifecycle.control.routes import Route
from lifecycle.errors import Dropped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from lifecycle.control.patterns import Pattern
    from lifecycle.control.records import RouteInfo
    from lifecycle.control.routes import Routes
    from lifecycle.control.types import Handler
    from lifecycle.events import Topical

__all__ = ["Observation", "Observer", "Subscription", "notify", "relay"]


class Observer(Route):
    """A handler that sees each matching event in its own lane, and misses it if that lane is full."""

    __slots__ = ()

    text: str
    routed: int

    def rename(self, taken: set[str]) -> None:
        """Take a name that differs from those in ``taken``, such as ``a/* (observed by audit)``."""
        base = f"{self.pattern.text} (observed by {name_of(self.handler).rpartition('.')[2]}"
        names = (f"{base})", *(f"{base} {number})" for number in range(2, len(taken) + 2)))
        self.text = next(name for name in names if name not in taken)

    def offer(self, event: Topical) -> None:
        """Put the event into the lane if it has room. Otherwise, count it as dropped."""
        if self.removed:  # by a receiver of a hook, while the event is on its way
            return
        delivery = Delivery(event, None, self, current.get())
        delivery.announce(self.counts, routed=True)
        if not self.is_full:
            self.take(delivery)
            return
        self.routed += 1
        lane = self.lane or self._open_lane()
        delivery.drop(f"lane {lane.name!r} is full")

    def info(self) -> RouteInfo:
        """Return the settings and counts of the observer."""
        return replace(super().info(), also=True)


class Observation:
    """A handle for an observer, which `Router.observe` returns."""

    def __init__(self, routes: Routes, observer: Observer) -> None:
        self._routes = routes
        self._observer = observer

    @property
    def pattern(self) -> Pattern:
        """The pattern of the observer."""
        return self._observer.pattern

    @property
    def missed(self) -> int:
        """The number of events that were missed because the lane was full or the handler raised `Dropped`."""
        return self._observer.dropped

    def info(self) -> RouteInfo:
        """Return the settings and counts of the observer."""
        return self._observer.info()

    def remove(self) -> None:
        """Observe no more events. Those that were accepted are still handled. Further calls do nothing."""
        self._routes.remove_observer(self._observer.pattern, self._observer)


class Subscription:
    """An async iterator over the events that match a pattern. `Router.subscribe` returns it.

    At most ``maxsize`` events wait. If more arrive, the oldest is dropped and counted in ``dropped``.
    """

    def __init__(self, routes: Routes, pattern: Pattern, maxsize: int) -> None:
        if maxsize < 1:
            raise ValueError(f"subscribe(maxsize={maxsize!r}) cannot hold any events; use 1 or more")
        self.dropped: int = 0
        self._routes = routes
        self.pattern: Pattern = pattern
        self._events: deque[Topical] = deque()
        self._maxsize = maxsize
        self._arrived = asyncio.Event()
        # None until the block is entered, then True, and False once it has ended.
        self._is_open: bool | None = None

    async def __aenter__(self) -> Self:
        self._is_open = True
        self._routes.add_observer(self.pattern, self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        self._routes.remove_observer(self.pattern, self)
        self._arrived.set()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Topical:
        while not self._events:
            if self._is_open is None:
                raise RuntimeError(
                    "the subscription has not been entered; write `async with router.subscribe(…) as events`"
                )
            if not self._is_open:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._events.popleft()

    def offer(self, event: Topical) -> None:
        """Keep the event until the block reads it."""
        if len(self._events) == self._maxsize:
            self._events.popleft()
            self.dropped += 1
        self._events.append(event)
        self._arrived.set()


def notify(queue: asyncio.Queue[Any]) -> Handler:
    """Return a handler that puts each event into ``queue`` without waiting.

    Raises:
        Dropped: raised by the returned handler if the queue is full. The event is counted as dropped.
    """

    def put(event: Any) -> None:
        try:
            queue.put_nowait(event)
        except asyncio.QueueFull:
            raise Dropped(f"{event.topic!r} was dropped: the queue is full ({queue.qsize()} events)") from None

    return put


def relay(handler: Callable[[Any], Awaitable[bool]]) -> Handler:
    """Return the handler of a relay, which raises `Relayed` if ``handler`` returns true."""
    call = as_async(handler)

    @functools.wraps(handler, updated=())
    async def send(event: Any) -> None:
        if await call(event):
            raise Relayed

    return send

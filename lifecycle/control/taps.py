"""Taps, subscriptions and relays, which receive events in addition to routes.

Taps and subscriptions see every matching event. Relays get an event before its route does.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from lifecycle._async import is_async, was_cancelled
from lifecycle._util import name_of
from lifecycle.control.deliveries import Begun, current
from lifecycle.control.dispatcher import Relayed
from lifecycle.control.routing import Route, as_async, as_pattern
from lifecycle.errors import Dropped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from lifecycle.control.dispatcher import Dispatcher
    from lifecycle.control.patterns import Pattern
    from lifecycle.control.records import TapInfo
    from lifecycle.control.router import Router
    from lifecycle.control.types import Handler, RouteHandler
    from lifecycle.events import Topical

__all__ = ["Subscription", "Tap", "add_relay", "add_tap", "notify", "tap_info"]


class Tap:
    """A handler that is called with every matching event, in addition to the event's route.

    A plain function is called immediately, before the event reaches its route. An async function has its own lane. The
    lane also awaits an awaitable that a plain function returns. The tap misses an event if this lane is full, or if the
    handler raises `Dropped`, as `notify` does when its queue is full. `Router.dispatch` uses no lanes, so it also
    awaits async taps.

    `Router.also` also returns an object of this class, whose `missed` counts all dropped events.
    """

    def __init__(self, dispatcher: Dispatcher, route: Route) -> None:
        self._dispatcher = dispatcher
        self._route = route

    @property
    def pattern(self) -> Pattern:
        """The pattern of the tap."""
        return self._route.pattern

    @property
    def missed(self) -> int:
        """The number of events that were missed because the lane was full or the handler raised `Dropped`."""
        return self._route.dropped

    def info(self) -> TapInfo:
        """Return the settings and counts of the tap."""
        return tap_info(self._route, self._dispatcher)

    def remove(self) -> None:
        """Remove the tap.

        A route registered with `Router.also` still handles the events that it has accepted. Further calls do nothing.
        """
        route, dispatcher = self._route, self._dispatcher
        if route.is_removed:
            return
        dispatcher.table.remove_tap(route)
        if route.is_also:
            dispatcher.remove(route)
        else:
            route.is_removed = True
            dispatcher.lanes.pop(route, None)


def add_tap(dispatcher: Dispatcher, pattern: Pattern, handler: RouteHandler) -> Tap:
    """Register a tap."""
    route = Route(pattern, handler)
    route.is_tap, route.is_direct = True, not is_async(handler)
    route.lane = f"tap {route.text}"
    # Errors raised by the tap never reach the emitter, whether the tap runs in its lane or in a direct dispatch.
    route.call = _contained(route, dispatcher)
    dispatcher.table.add_tap(route)
    return Tap(dispatcher, route)


def tap_info(route: Route, dispatcher: Dispatcher) -> TapInfo:
    """Return the settings and counts of the tap with this route."""
    from lifecycle.control.records import TapInfo

    lane = dispatcher.lanes.get(route)
    return TapInfo(route.text, name_of(route.handler), 0 if lane is None else len(lane.queue), route.dropped)


def _contained(route: Route, dispatcher: Dispatcher) -> Callable[[Any], Awaitable[None]]:
    call = route.call

    async def look(event: Any) -> None:
        here = current.get()
        begun = here.take(event) if isinstance(here, Begun) else None
        try:
            await (call(event) if begun is None else begun)
        except Dropped:
            route.dropped += 1
        except asyncio.CancelledError:
            if was_cancelled():
                raise
            dispatcher.report.log_tap_failed(route, event)
        except Exception:  # noqa: BLE001  # errors from taps are only logged
            dispatcher.report.log_tap_failed(route, event)

    return look


class Subscription:
    """An async iterator over the events that match a pattern. `Router.subscribe` returns it.

    At most ``maxsize`` events wait. If more arrive, the oldest is dropped and counted in ``dropped``.
    """

    def __init__(self, attach: Callable[[Callable[[Any], None]], Tap], maxsize: int) -> None:
        if maxsize < 1:
            raise ValueError(f"subscribe(maxsize={maxsize!r}) cannot hold any events; use 1 or more")
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
                raise RuntimeError(
                    "the subscription has not been entered; write `async with router.subscribe(…) as events`"
                )
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


def add_relay(
    router: Router, pattern: str | Pattern, handler: Callable[[Any], Awaitable[bool]], *, concurrency: int = 1
) -> Callable[[], None]:
    """Pass every matching event to ``handler`` before its route.

    Bridges use this. Return a function that removes the relay.

    The handler returns whether to pass the event on. If it returns true, the event continues to its debouncer and route
    as if it had just been emitted. Awaiting its `Delivery` waits for the relay and the route, and the event is
    considered handled even if no route takes it. If the handler returns false, the delivery ends. If it raises
    `NotHandled`, the event is passed on as if there had been no relay. Any other error ends the delivery.

    A relay has its own lane with ``concurrency`` tasks. If there is only one task, events are handled in order. The
    router's middleware does not wrap the relay.
    """
    dispatcher = router._dispatcher  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # not public, so not a method
    call = as_async(handler)

    @functools.wraps(handler, updated=())
    async def relay(event: Any) -> None:
        if await call(event):
            raise Relayed

    route = Route(as_pattern(pattern), relay, (), concurrency)
    dispatcher.table.add_relay(route)

    def remove() -> None:
        if dispatcher.table.remove_relay(route):
            dispatcher.remove(route)

    return remove

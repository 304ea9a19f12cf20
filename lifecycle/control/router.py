"""`Router`: events in, handlers out, in the manner of a ServeMux.

The work is done elsewhere: ``table`` finds the route, ``traffic`` moves the event, ``running`` starts and stops,
``overviews`` has what operators see and pause.
Do not add behaviour here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Unpack, overload

from lifecycle._util import name_of
from lifecycle.backoff import Backoff
from lifecycle.control.commands import Command, Commands, Completer, help_of
from lifecycle.control.deliveries import taken
from lifecycle.control.dispatcher import Traffic
from lifecycle.control.lanes import Busy
from lifecycle.control.patterns import Pattern, quoted
from lifecycle.control.routing import Route, Table, as_pattern, caller
from lifecycle.control.running import Running
from lifecycle.control.source_runner import Pump
from lifecycle.control.taps import Relay, Subscription, Tap, open_relay, open_tap
from lifecycle.errors import NotHandled, RouteNotFound
from lifecycle.events import Event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from lifecycle.control.debouncing import Debounce
    from lifecycle.control.deliveries import Delivery
    from lifecycle.control.lanes import LaneInfo
    from lifecycle.control.routing import RouteInfo
    from lifecycle.control.source_runner import RestartSource, SourceInfo
    from lifecycle.control.taps import TapInfo
    from lifecycle.control.types import Handler, Middleware, RouteSettings, Source
    from lifecycle.events import Topical

__all__ = ["Overview", "Router", "RouterState"]


@dataclass(frozen=True, slots=True)
class RouterState:
    """What can be seen of a router: how many of each there are, and counts of events that came through lanes."""

    name: str
    routes: int
    middlewares: int
    sources: int
    running: bool
    routed: int
    handled: int
    failed: int
    unrouted: int
    dropped: int
    #: The handler that has what nobody takes.
    fallback: str | None = None


class Overview:
    """The part of a router that looks."""

    # What its router is made of.
    name: str
    _table: Table
    _traffic: Traffic
    _running: Running
    _middleware: list[Middleware]

    def __repr__(self) -> str:
        return f"<Router {self.name!r}: {len(self._table)} routes, {'running' if self._running.is_up else 'at rest'}>"

    def routes(self) -> list[RouteInfo]:
        """Every route, sorted by pattern."""
        return [route.info() for _, route in sorted(self._table.routes.items())]

    def sources(self) -> list[SourceInfo]:
        """Every source, in the order in which they were added."""
        return [pump.info() for pump in self._running.pumps]

    def lanes(self) -> list[LaneInfo]:
        """Every lane that has had an event, or that several routes share; those of taps are not among them."""
        lanes = dict.fromkeys(self._traffic.roster.lanes())
        return [lane.info() for lane in lanes if lane not in self._traffic.roster.tap_lanes]

    def taps(self) -> list[TapInfo]:
        """Every tap and subscription, sorted by pattern."""
        return [tap.info() for tap in self._table.taps()]

    def explain(self, topic: str) -> list[RouteInfo]:
        """Who would get an event of ``topic``, in order: the first is the winner."""
        return [route.info() for route in self._table.plan(Event(topic)).routes]

    def state(self) -> RouterState:
        """How many of everything there are, and what became of the events that came through lanes."""
        routed, handled, failed, dropped = self._traffic.roster.counts()
        fallback = self._traffic.roster.fallback
        return RouterState(
            name=self.name,
            routes=len(self._table),
            middlewares=len(self._middleware),
            sources=len(self._running.pumps),
            running=self._running.is_up,
            routed=routed,
            handled=handled,
            failed=failed,
            unrouted=self._traffic.outcomes.unrouted,
            dropped=dropped,
            fallback=None if fallback is None else name_of(fallback.handler),
        )

    # -- pausing --------------------------------------------------------------------------------------------------

    def hold_source(self, name: str) -> None:
        """Take no events from the sources called ``name`` until `release_source`; nothing happens if it is held.

        One with plain methods ``suspend`` and ``resume`` is suspended (a webhook answers 503); any other waits with
        its next event. The end of the router ends the hold.

        Raises:
            RouteNotFound: when no source has that name.
        """
        for pump in self._pumps_called(name):
            pump.hold()

    def release_source(self, name: str) -> None:
        """Take events from them again; nothing happens if none is held.

        Raises:
            RouteNotFound: when no source has that name.
        """
        for pump in self._pumps_called(name):
            pump.release()

    def _pumps_called(self, name: str) -> list[Pump]:
        pumps = [pump for pump in self._running.pumps if pump.name == name]
        if not pumps:
            raise RouteNotFound(f"no source of router {self.name!r} is called {name!r}; router.sources() lists them")
        return pumps


_H = TypeVar("_H", bound=Callable[..., Any])


class Router(Overview):
    """Gives each event to the handler whose pattern fits its topic best.

    ``buffer`` events wait in each lane before their source has to; ``drain_timeout`` seconds are given to what is
    under way when the router stops.

    Raises:
        ValueError: for a negative ``buffer`` or ``drain_timeout``.
    """

    def __init__(self, name: str = "router", *, buffer: int = 100, drain_timeout: float = 5.0) -> None:
        if buffer < 0 or drain_timeout < 0:
            raise ValueError(f"Router(buffer={buffer!r}, drain_timeout={drain_timeout!r}): give 0 or more for both")
        self.name = name
        #: The commands that were registered; prompts read it.
        self.commands: Final = Commands()
        self._table = Table()
        self._hot = self._table.hot
        self._traffic = Traffic(self._table, buffer, self)
        self._running = Running(self._traffic, drain_timeout)
        self._middleware: list[Middleware] = []

    # -- routes ------------------------------------------------------------------------------------------------

    def handle(
        self,
        pattern: str | Pattern | type[Topical],
        handler: Handler,
        *,
        debounce: float | Debounce | None = None,
        busy: Busy | Literal["queue", "drop", "restart"] = Busy.QUEUE,
        concurrency: int = 1,
        lane: str | None = None,
        middleware: Iterable[Middleware] = (),
        replace: bool = False,
    ) -> Route:
        """Give events whose topic matches ``pattern`` to ``handler``.

        The way is window (``debounce``, in seconds or as a `Debounce`), lane, ``middleware``, handler. Each route has
        a lane of its own, unless it names one to share; ``concurrency`` handlers of a lane run at once, and when that
        many are at work ``busy`` decides: ``"queue"``, ``"drop"`` or ``"restart"``. An event class in place of a
        pattern stands for the topics of its events.

        Raises:
            InvalidPattern: for a pattern that cannot be read.
            RouteConflict: when the pattern is taken, unless ``replace`` is true.
            TypeError: for a handler that is no callable of one argument, or a lane that is not a string.
            ValueError: for a concurrency below 1, an unknown ``busy``, or a lane of another concurrency.
        """
        if lane is not None and not isinstance(lane, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # users pass what they like
            raise TypeError(f"expected the name of a lane as a string, got lane={lane!r}; a lane is chosen per route")
        route = Route(as_pattern(pattern), handler, middleware, caller(), concurrency)
        self._table.check_free(route, replace=replace)
        route.busy = Busy(busy)
        if self._middleware:
            route.add_middleware(self._middleware)
        if debounce is not None:
            self._traffic.open_window(route, debounce)
        if lane is not None:
            self._traffic.roster.share(route, lane)
        route.is_plain = route.window is None and route.busy is Busy.QUEUE
        old = self._table.add(route, replace=replace)
        if old is not None:
            old.successor = route
            self._traffic.roster.retire(old)
        return route

    def on(self, pattern: str | Pattern | type[Topical], **settings: Unpack[RouteSettings]) -> Callable[[_H], _H]:
        """`handle` as a decorator, with the same settings; the function stays what it is."""
        parsed = as_pattern(pattern)

        def register(handler: _H) -> _H:
            self.handle(parsed, handler, **settings)
            return handler

        return register

    def remove(self, pattern: str | Pattern | type[Topical]) -> None:
        """Take a route out; what it has accepted is still delivered to it.

        Raises:
            RouteNotFound: when nothing is registered under ``pattern``.
        """
        route = self._table.remove(as_pattern(pattern))
        self._traffic.roster.retire(route)
        self.commands.forget(route.pattern)

    def fallback(self, handler: _H) -> _H:
        """Give events that no route took to ``handler`` (one at a time; a later call replaces it)."""
        self._traffic.roster.fall_back_to(handler, self._middleware)
        return handler

    def use(self, *middleware: Middleware) -> None:
        """Wrap ``middleware`` around every route and the fallback, earlier and later ones.

        The first named is the outermost.
        """
        self._table.wrap(middleware)
        if (fallback := self._traffic.roster.fallback) is not None:
            fallback.add_middleware(middleware)
        self._middleware += middleware

    # -- commands ----------------------------------------------------------------------------------------------

    @overload
    def command(self, name: _H, /) -> _H: ...

    @overload
    def command(self, name: str, handler: Handler, *, help: str = "", complete: Completer | None = None) -> Route: ...

    def command(
        self,
        name: str | Callable[..., Any],
        handler: Handler | None = None,
        *,
        help: str = "",  # noqa: A002  # the field's word
        complete: Completer | None = None,
    ) -> Any:
        """Register a command: typing ``name`` sends a `CommandEvent` with its arguments to ``handler``.

        As a decorator it takes the name from the function. The docstring is the help, if ``help`` is not given.
        ``complete`` gives candidates for an argument: words, or a function from what is typed to words. Commands
        share the lane ``command``, so that they keep their order.

        Raises:
            RouteConflict: when the name is taken.
            ValueError: for a name that is not one word.
        """
        if not isinstance(name, str):
            self.command(name_of(name).rpartition(".")[2], name)
            return name
        if handler is None:
            raise TypeError(f"command({name!r}) has no handler; give one: router.command({name!r}, handler)")
        place = "{}:{}".format(*caller())
        self.commands.add(Command(name, help or help_of(handler), complete=complete, place=place))
        try:
            return self.handle(f"command/{quoted(name)}", handler, lane="command")
        except BaseException:
            self.commands.remove(name)
            raise

    # -- onlookers and sources ---------------------------------------------------------------------------------

    def tap(self, pattern: str | Pattern | type[Topical], handler: Handler) -> Tap:
        """Let ``handler`` see every matching event as well; it can neither stop nor change it.

        A plain function is called at once; an async one has a lane of its own, and misses (``tap.missed``) what
        finds it full. ``tap.remove()`` ends it.
        """
        return open_tap(self._traffic, as_pattern(pattern), handler)

    def relay(
        self, pattern: str | Pattern | type[Topical], handler: Callable[[Any], Awaitable[bool]], *, concurrency: int = 1
    ) -> Relay:
        """Let ``handler`` have every matching event before its route does; it returns whether the event goes on.

        An event that goes on comes to its window and route as if it came only now; awaiting its `Delivery` covers
        both, and it is handled though no route wants it. One that does not is handled with that. A handler that
        raises `NotHandled` leaves the event as if there were no relay; any other error ends it. A relay has a lane of
        its own with ``concurrency`` hands; with 1 events go on in the order in which they came. The router's
        middleware is not around it. ``relay.remove()`` ends it.
        """
        return open_relay(self._traffic, as_pattern(pattern), handler, concurrency)

    def subscribe(self, pattern: str | Pattern | type[Topical] = "**", *, maxsize: int = 100) -> Subscription:
        """The matching events as an async iterator: ``async with router.subscribe() as events: async for …``.

        At most ``maxsize`` events wait; then the oldest is dropped and counted in ``events.dropped``.
        """
        parsed = as_pattern(pattern)
        return Subscription(lambda take: self.tap(parsed, take), maxsize)

    def add_source(
        self, source: Source, *, restart: RestartSource = "on_failure", backoff: Backoff | None = None
    ) -> None:
        """Let ``source`` feed this router while it runs.

        A source is an async iterable of events, a function that returns one, or an object with ``async def
        run(emit)``; one that is an async context manager too is entered first, and what fails there ends `run` with
        `SourceFailed`. One that fails later is logged and started again with ``backoff``, unless ``restart`` is
        ``"never"``.

        Raises:
            TypeError: for what is no source.
            ValueError: for another ``restart``, or a source that was added before.
        """
        self._running.add(Pump(source, restart, backoff or Backoff(), self._traffic), self)

    def remove_source(self, source: Source) -> None:
        """Take a source out and end it.

        Raises:
            RouteNotFound: when it was not added.
        """
        self._running.remove(source, self.name)

    # -- events ------------------------------------------------------------------------------------------------

    async def dispatch(self, event: Topical) -> None:
        """Call the handler for ``event`` here and now, past windows and lanes; nothing is counted.

        The handlers are those that `emit` would give the event to, the fallback included. An error of the handler
        comes out as it is.

        Raises:
            NotHandled: when no route matches, or every matching one has passed, and there is no fallback.
            LifecycleError: for a handler that raised CancelledError although its task was not cancelled.
        """
        try:
            call, plan = self._hot[event.topic]
        except (AttributeError, TypeError):  # no topic, or one without a hash
            plan = self._table.plan(event)
            call = plan.call
        try:
            await call(event)
        except (NotHandled, asyncio.CancelledError) as error:
            rest = self._traffic.dispatch_on(event, plan, error)
        else:
            return
        await rest

    async def emit(self, event: Topical) -> Delivery:
        """Send ``event`` through its window and lane, waiting for room; the `Delivery` tells what becomes of it.

        While the router does not run, events wait in their lanes.

        Raises:
            NotHandled: when nothing matches and there is no fallback.
            LaneFull: when waiting would be for itself, or the router does not run and the lane is full.
        """
        return taken(await self._traffic.accept(event))

    def emit_nowait(self, event: Topical) -> Delivery:
        """`emit` without waiting.

        Raises:
            LaneFull: when there is no room now.
            NotHandled: when nothing matches and there is no fallback.
        """
        return taken(self._traffic.accept_nowait(event))

    async def run(self) -> None:
        """Run sources and handlers until `stop`, cancelled, or a source that cannot start.

        Raises:
            RouterRunning: when it runs already.
            SourceFailed: naming the source that could not start; the cause is its error.
        """
        await self._running.run(self.name)

    async def wait_running(self) -> None:
        """Wait until `run` has started every source."""
        while not self._running.is_up:
            await self._running.changed()

    def stop(self) -> None:
        """Let `run` end: sources stop, windows flush, lanes drain. Cancelling ``run`` drains nothing."""
        self._running.stop()

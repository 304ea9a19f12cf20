"""`Router`: events in, handlers out, in the manner of a ServeMux; and what operators see and hold of it.

The work is done elsewhere: ``routing`` finds the route, ``dispatcher`` moves the event, ``running`` starts and stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, TypeVar, Unpack, overload

from lifecycle._util import name_of
from lifecycle.backoff import Backoff
from lifecycle.control.commands import Command, Commands, Completer, help_of
from lifecycle.control.dispatcher import Dispatcher
from lifecycle.control.patterns import Pattern, quoted
from lifecycle.control.routing import Busy, Route, RouteTable, as_pattern, caller
from lifecycle.control.running import Lifespan
from lifecycle.control.source_runner import SourceRunner
from lifecycle.control.taps import Subscription, Tap, tap_info
from lifecycle.errors import NotHandled, RouteNotFound
from lifecycle.events import Event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lifecycle.control.debouncing import Debounce
    from lifecycle.control.deliveries import Delivery
    from lifecycle.control.lanes import LaneInfo
    from lifecycle.control.routing import RouteInfo
    from lifecycle.control.source_runner import RestartSource, Source, SourceInfo
    from lifecycle.control.taps import TapInfo
    from lifecycle.control.types import Handler, Middleware
    from lifecycle.events import Topical

__all__ = ["Router", "RouterState"]

_H = TypeVar("_H", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class RouterState:
    """The figures of a router: how many of each there are, and counts of events that passed through lanes."""

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
    #: The handler of events that no route takes.
    fallback: str | None = None


class _RouteSettings(TypedDict, total=False):
    """The settings of a route, which `Router.handle` documents."""

    debounce: float | Debounce | None
    busy: Busy | Literal["queue", "drop", "restart"]
    concurrency: int
    lane: str | None
    middleware: Iterable[Middleware]
    replace: bool


class Router:
    """Gives each event to the handler with the pattern that fits its topic best.

    ``buffer`` events wait in each lane before their emitter has to. When the router stops, events and handlers that are
    under way have ``drain_timeout`` seconds.

    Raises:
        ValueError: for a negative ``buffer`` or ``drain_timeout``.
    """

    def __init__(self, name: str = "router", *, buffer: int = 100, drain_timeout: float = 5.0) -> None:
        if buffer < 0 or drain_timeout < 0:
            raise ValueError(f"Router(buffer={buffer!r}, drain_timeout={drain_timeout!r}): give 0 or more for both")
        self.name = name
        #: The registered commands; prompts read it.
        self.commands: Final = Commands()
        self._table = RouteTable()
        self._matches = self._table.matches
        self._dispatcher = Dispatcher(self._table, buffer, self)
        self._lifespan = Lifespan(name, self._dispatcher, drain_timeout)
        self._middleware: list[Middleware] = []

    def __repr__(self) -> str:
        return f"<Router {self.name!r}: {len(self._table)} routes, {'running' if self._lifespan.is_up else 'at rest'}>"

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
        """Give events with a topic that matches ``pattern`` to ``handler``.

        An event passes ``debounce`` (in seconds, or a `Debounce`), the lane and ``middleware`` on its way to the
        handler. Each route has its own lane, unless it names one to share. ``concurrency`` handlers of a lane run at
        once. When that many are running, ``busy`` decides: ``"queue"``, ``"drop"`` or ``"restart"``. An event class in
        place of a pattern means the topics of its events.

        Raises:
            InvalidPattern: for a pattern that cannot be read.
            RouteConflict: when the pattern is taken, unless ``replace`` is true.
            TypeError: for a handler that is not a callable of one argument, or a lane that is not a string.
            ValueError: for a concurrency below 1, an unknown ``busy``, or a lane of another concurrency.
        """
        if lane is not None and not isinstance(lane, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # users pass what they like
            raise TypeError(f"expected the name of a lane as a string, got lane={lane!r}; a lane is chosen per route")
        route = Route(as_pattern(pattern), handler, middleware, concurrency)
        self._table.check_free(route, replace=replace)
        route.busy = Busy(busy)
        route.is_plain = debounce is None and route.busy is Busy.QUEUE
        if self._middleware:
            route.add_middleware(self._middleware)
        self._dispatcher.add(route, debounce, lane, replace=replace)
        return route

    def on(self, pattern: str | Pattern | type[Topical], **settings: Unpack[_RouteSettings]) -> Callable[[_H], _H]:
        """`handle` as a decorator, with the same settings; it returns the function unchanged."""
        parsed = as_pattern(pattern)

        def register(handler: _H) -> _H:
            self.handle(parsed, handler, **settings)
            return handler

        return register

    def remove(self, pattern: str | Pattern | type[Topical]) -> None:
        """Remove a route; the events that it has accepted are still delivered to it.

        Raises:
            RouteNotFound: when nothing is registered under ``pattern``.
        """
        route = self._table.remove(as_pattern(pattern))
        self._dispatcher.remove(route)
        self.commands.forget(route.pattern)

    def fallback(self, handler: _H) -> _H:
        """Give events that no route took to ``handler``, one at a time; a later call replaces it."""
        self._dispatcher.set_fallback(handler, self._middleware)
        return handler

    def use(self, *middleware: Middleware) -> None:
        """Wrap ``middleware`` around every route and the fallback, earlier and later ones.

        The first named is the outermost.
        """
        self._table.wrap(middleware)
        if (fallback := self._dispatcher.fallback) is not None:
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
        ``complete`` gives candidates for an argument: words, or a function from the typed text to words. Commands
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

    # -- taps and sources --------------------------------------------------------------------------------------

    def tap(self, pattern: str | Pattern | type[Topical], handler: Handler) -> Tap:
        """Let ``handler`` see every matching event as well; it can neither stop nor change it.

        A plain function is called at once. An async one has its own lane, and misses (``tap.missed``) the events that
        find it full. ``tap.remove()`` ends it.
        """
        return Tap(self._dispatcher, as_pattern(pattern), handler)

    def subscribe(self, pattern: str | Pattern | type[Topical] = "**", *, maxsize: int = 100) -> Subscription:
        """Return the matching events as an async iterator: ``async with router.subscribe() as events: async for …``.

        At most ``maxsize`` events wait; then the oldest is dropped and counted in ``events.dropped``.
        """
        parsed = as_pattern(pattern)
        return Subscription(lambda take: self.tap(parsed, take), maxsize)

    def add_source(
        self, source: Source, *, restart: RestartSource = "on_failure", backoff: Backoff | None = None
    ) -> None:
        """Let ``source`` feed this router while it runs.

        A source is an async iterable of events, a function that returns one, or an object with ``async def
        run(emit)``. If it is also an async context manager, it is entered first, and an error there ends `run` with
        `SourceFailed`. A source that fails later is logged and restarted with ``backoff``, unless ``restart`` is
        ``"never"``.

        Raises:
            TypeError: for an object that is not a source.
            ValueError: for another ``restart``, or a source that was added before.
        """
        runner = SourceRunner(source, restart, backoff or Backoff(), self._dispatcher)
        if any(each.source is source for each in self._lifespan.sources):
            raise ValueError(f"{source!r} is a source of router {self.name!r} already; add it once")
        for method, argument in (("use_commands", self.commands), ("use_router", self)):
            use = getattr(source, method, None)
            if use is not None:
                use(argument)
        self._lifespan.add(runner)

    def remove_source(self, source: Source) -> None:
        """Remove a source and cancel it.

        Raises:
            RouteNotFound: when it was not added.
        """
        self._lifespan.remove(source)

    def hold_source(self, name: str) -> None:
        """Take no events from the sources called ``name`` until `release_source`; nothing happens if it is held.

        One with plain methods ``suspend`` and ``resume`` is suspended (a webhook answers 503); any other waits with
        its next event. When the router stops, its sources are released.

        Raises:
            RouteNotFound: when no source has that name.
        """
        for source in self._sources_called(name):
            source.hold()

    def release_source(self, name: str) -> None:
        """Take events from the sources called ``name`` again; nothing happens if none is held.

        Raises:
            RouteNotFound: when no source has that name.
        """
        for source in self._sources_called(name):
            source.release()

    def _sources_called(self, name: str) -> list[SourceRunner]:
        sources = [each for each in self._lifespan.sources if each.name == name]
        if not sources:
            raise RouteNotFound(f"no source of router {self.name!r} is called {name!r}; router.sources() lists them")
        return sources

    # -- events ------------------------------------------------------------------------------------------------

    async def dispatch(self, event: Topical) -> None:
        """Call the handler for ``event`` here and now, past debouncers and lanes; nothing is counted.

        The handlers are those that `emit` would give the event to, the fallback included. An error of the handler
        is raised as it is.

        Raises:
            NotHandled: when no route matches, or every matching one has passed, without a fallback; `InvalidTopic` when
                the topic is not valid.
            TypeError: for an object without a topic.
            LifecycleError: for a handler that raised CancelledError although its task was not cancelled.
        """
        try:
            match = self._matches[event.topic]
        except (AttributeError, TypeError):  # no topic, or one without a hash
            match = self._table.match(event)
        call = match.call
        if call is None:
            await self._dispatcher.call_directly(event, match)
            return
        try:
            await call(event)
        except (NotHandled, asyncio.CancelledError) as error:
            rest = self._dispatcher.call_directly(event, match, error)
        else:
            return
        await rest

    async def emit(self, event: Topical) -> Delivery:
        """Send ``event`` through its debounce and lane, waiting for capacity; await the `Delivery` for its end.

        Awaiting the delivery returns None when the handler has returned, and raises its error. While the router does
        not run, events wait in their lanes.

        Raises:
            NotHandled: when no route matches, without a fallback; `InvalidTopic` when the topic is not valid.
            TypeError: for an object without a topic.
            LaneFull: when the handler would wait for itself, or the router does not run and the lane is full.
        """
        return _taken(await self._dispatcher.accept(event))

    def emit_nowait(self, event: Topical) -> Delivery:
        """`emit` without waiting.

        Raises:
            LaneFull: when the lane is full.
            NotHandled: when no route matches, without a fallback; `InvalidTopic` when the topic is not valid.
            TypeError: for an object without a topic.
        """
        return _taken(self._dispatcher.accept_nowait(event))

    # -- running -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run sources and handlers until `stop`, cancelled, or a source that cannot start.

        Raises:
            RouterRunning: when it runs already.
            SourceFailed: naming the source that could not start; the cause is its error.
        """
        await self._lifespan.run()

    async def wait_running(self) -> None:
        """Wait until `run` has started every source."""
        await self._lifespan.wait_up()

    def stop(self) -> None:
        """Let `run` end: sources stop, debouncers flush, lanes drain. Cancelling ``run`` drains nothing."""
        self._lifespan.stop()

    # -- statistics --------------------------------------------------------------------------------------------

    def routes(self) -> list[RouteInfo]:
        """Return every route, sorted by pattern."""
        return [route.info() for _, route in sorted(self._table.routes.items())]

    def sources(self) -> list[SourceInfo]:
        """Return every source, in the order in which they were added."""
        return [source.info() for source in self._lifespan.sources]

    def lanes(self) -> list[LaneInfo]:
        """Return every lane that has had an event, or that several routes share, except those of taps."""
        routes = list(self._dispatcher.lanes.items())
        return [lane.info() for lane in dict.fromkeys(lane for route, lane in routes if not route.is_tap)]

    def taps(self) -> list[TapInfo]:
        """Return every tap and subscription, sorted by pattern."""
        return [tap_info(tap, self._dispatcher) for tap in self._table.taps()]

    def explain(self, topic: str) -> list[RouteInfo]:
        """Return the routes of an event of ``topic``, in order: the first is the winner."""
        return [route.info() for route in self._table.match(Event(topic)).routes]

    def state(self) -> RouterState:
        """Return how many of everything there are, and the counts of the events that passed through lanes."""
        routed, handled, failed, dropped = self._dispatcher.counts()
        fallback = self._dispatcher.fallback
        return RouterState(
            name=self.name,
            routes=len(self._table),
            middlewares=len(self._middleware),
            sources=len(self._lifespan.sources),
            running=self._lifespan.is_up,
            routed=routed,
            handled=handled,
            failed=failed,
            unrouted=self._dispatcher.report.unrouted_count,
            dropped=dropped,
            fallback=None if fallback is None else name_of(fallback.handler),
        )


def _taken(delivery: Delivery) -> Delivery:
    """Return ``delivery``, or raise the `NotHandled` with which it ended because no route took it."""
    if delivery.route is None and delivery.error is not None:
        raise delivery.error
    return delivery

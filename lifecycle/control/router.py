"""`Router`: registration of handlers and sources, and delivery of events.

``routing`` finds the route, ``dispatcher`` moves the event, and ``running`` starts and stops the router.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, TypeVar, Unpack, overload

from lifecycle._durations import in_seconds
from lifecycle._util import name_of
from lifecycle.backoff import Backoff
from lifecycle.control.commands import Command, Commands, Completer, help_of
from lifecycle.control.dispatcher import Dispatcher
from lifecycle.control.patterns import Pattern, quoted
from lifecycle.control.routing import Busy, Route, RouteTable, as_pattern, caller
from lifecycle.control.running import Lifespan
from lifecycle.control.source_runner import SourceRunner
from lifecycle.control.taps import Subscription, Tap, add_tap, tap_info
from lifecycle.errors import NotHandled, RouteNotFound
from lifecycle.events.base import Event

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from lifecycle._durations import Duration
    from lifecycle.control.debouncing import Debounce
    from lifecycle.control.deliveries import Delivery
    from lifecycle.control.records import LaneInfo, RouteInfo, RouterState, SourceInfo, TapInfo
    from lifecycle.control.source_runner import RestartSource, Source
    from lifecycle.control.types import Middleware, RouteHandler
    from lifecycle.events import Topical

__all__ = ["Router"]

_H = TypeVar("_H", bound=Callable[..., Any])


class _RouteSettings(TypedDict, total=False):
    """The settings of a route. `Router.handle` documents them."""

    debounce: Duration | Debounce | None
    busy: Busy | Literal["queue", "drop", "restart"]
    concurrency: int
    lane: str | Callable[[Any], Hashable] | None
    middleware: Iterable[Middleware]
    replace: bool


class Router:
    """Delivers each event to the handler with the most specific pattern that matches its topic.

    Args:
        name: The router's name in messages and states.
        buffer: The maximum number of events waiting in each lane. If a lane is full, `emit` waits.
        drain_timeout: How long, in seconds, queued events and running handlers have to finish when the router stops.

    Raises:
        ValueError: if ``buffer`` or ``drain_timeout`` is negative.
    """

    def __init__(self, name: str = "router", *, buffer: int = 100, drain_timeout: Duration = 5.0) -> None:
        if buffer < 0:
            raise ValueError(f"buffer must be 0 or more events, got {buffer!r}")
        self.name = name
        #: The registered commands, which prompts offer.
        self.commands: Final = Commands()
        self._table = RouteTable()
        self._matches = self._table.matches
        self._dispatcher = Dispatcher(self._table, buffer, self)
        self._lifespan = Lifespan(name, self._dispatcher, in_seconds("drain_timeout", drain_timeout, least=0))
        self._middleware: list[Middleware] = []

    def __repr__(self) -> str:
        return (
            f"<Router {self.name!r}: {len(self._table)} routes, {'running' if self._lifespan.is_up else 'not running'}>"
        )

    # -- routes ------------------------------------------------------------------------------------------------

    def handle(
        self,
        pattern: str | Pattern | type[Topical],
        handler: RouteHandler,
        *,
        debounce: Duration | Debounce | None = None,
        busy: Busy | Literal["queue", "drop", "restart"] = Busy.QUEUE,
        concurrency: int = 1,
        lane: str | Callable[[Any], Hashable] | None = None,
        middleware: Iterable[Middleware] = (),
        replace: bool = False,
    ) -> Route:
        """Register ``handler`` for events whose topic matches ``pattern``.

        Args:
            pattern: A topic, a glob such as ``file/*`` or ``device/{id}``, or an event class. A class represents the
                topics of its events.
            handler: An async or plain function. Its first argument is the event. Parameters whose names appear in the
                pattern get their values from the topic: ``async def temp(event, id: str)``. A plain function runs in
                the event loop.
            debounce: A number of seconds, or a `Debounce`. A burst ends after this many seconds without an event, and
                is delivered as one event.
            busy: The action if an event arrives while the lane is already running as many handlers as ``concurrency``
                allows. ``"queue"`` makes the event wait, ``"drop"`` drops it, and ``"restart"`` cancels the oldest
                running handler of this route.
            concurrency: The maximum number of handlers that run at the same time in the lane. If it is 1, events are
                handled in order.
            lane: The name of a shared lane, or a function, such as ``lambda event: event.topic``, that returns an
                event's key. Routes with the same name or function share the lane's queue and must have the same
                ``concurrency``. By default, the route has its own lane. If you pass a function, the events of each key
                are handled in order, one at a time. ``concurrency`` is then the number of keys handled at the same
                time, and ``busy`` applies to each key separately. The function is called with the debounced event. If
                it raises an error or returns an unhashable key, the delivery fails. All keys share one queue. If it is
                full, an event whose key is idle waits if ``busy`` is ``"queue"``, and is dropped otherwise.
            middleware: Functions that wrap the handler. The first is the outermost. Middleware added with `use` wraps
                these.
            replace: If true, replace a route with this or an equivalent pattern instead of raising `RouteConflict`.

        Returns:
            The route.

        Raises:
            InvalidPattern: if the pattern cannot be parsed.
            RouteConflict: if ``replace`` is false, and the pattern or an equivalent one is already registered. Names
                make no difference: ``device/{id}`` and ``device/*`` are equivalent.
            TypeError: if ``handler`` cannot be called with the event and the names in the pattern, or ``lane`` is
                neither a string nor a function of one argument.
            ValueError: if ``concurrency`` is less than 1 or differs from that of the shared lane, or ``busy`` is
                unknown.
        """
        route = Route(as_pattern(pattern), handler, middleware, concurrency)
        route.busy = Busy(busy)
        self._table.check_free(route, replace=replace)
        if self._middleware:
            route.add_middleware(self._middleware)
        self._dispatcher.add(route, debounce, lane, replace=replace)
        return route

    def also(
        self,
        pattern: str | Pattern | type[Topical],
        handler: RouteHandler,
        *,
        debounce: Duration | Debounce | None = None,
        busy: Busy | Literal["queue", "drop", "restart"] = Busy.QUEUE,
        concurrency: int = 1,
        lane: str | Callable[[Any], Hashable] | None = None,
        middleware: Iterable[Middleware] = (),
    ) -> Tap:
        """Register ``handler`` for every matching event, in addition to the route that handles the event.

        The handler has its own lane, debounce, counts and deliveries. Its errors are logged and counted, but do not
        affect the event's delivery to its route. It never makes `emit` wait: if its lane is full, the handler misses
        the event, which is counted as dropped. Several handlers may be registered for the same pattern. `emit` still
        raises `NotHandled` if no route matches.

        Args:
            pattern: See `handle`.
            handler: See `handle`. If it raises `NotHandled`, its delivery ends and no other route gets the event.
            debounce: See `handle`.
            busy: See `handle`. If it is ``"queue"``, events are dropped only if the queue is full.
            concurrency: See `handle`.
            lane: See `handle`.
            middleware: See `handle`.

        Returns:
            A handle for the registration. Call its ``remove()`` method to undo it.

        Raises:
            InvalidPattern: See `handle`.
            TypeError: See `handle`.
            ValueError: See `handle`.
        """
        route = Route(as_pattern(pattern), handler, middleware, concurrency)
        route.busy = Busy(busy)
        self._table.name_also(route)
        if self._middleware:
            route.add_middleware(self._middleware)
        self._dispatcher.add_also(route, debounce, lane)
        return Tap(self._dispatcher, route)

    def on(self, pattern: str | Pattern | type[Topical], **settings: Unpack[_RouteSettings]) -> Callable[[_H], _H]:
        """Register the decorated function as a handler, and return it unchanged.

        Args:
            pattern: See `handle`.
            settings: ``debounce``, ``busy``, ``concurrency``, ``lane``, ``middleware`` and ``replace``. See `handle`.
        """
        parsed = as_pattern(pattern)

        def register(handler: _H) -> _H:
            self.handle(parsed, handler, **settings)
            return handler

        return register

    def remove(self, pattern: str | Pattern | type[Topical]) -> None:
        """Remove the route for ``pattern`` or an equivalent one.

        The route still handles the events that it has already accepted.

        Raises:
            RouteNotFound: if no route is registered for ``pattern``.
        """
        route = self._table.remove(as_pattern(pattern))
        self._dispatcher.remove(route)
        self.commands.forget(route.pattern)

    def fallback(self, handler: _H) -> _H:
        """Register ``handler`` for events that no route takes, and return it. This can be used as a decorator.

        The fallback handles one event at a time. Calling this again replaces the handler.
        """
        self._dispatcher.set_fallback(handler, self._middleware)
        return handler

    def use(self, *middleware: Middleware) -> None:
        """Wrap ``middleware`` around the handlers of all routes and the fallback, including those registered later.

        Args:
            middleware: Functions that take a handler and return the wrapped handler. The first is the outermost.

        Raises:
            TypeError: if ``middleware`` cannot wrap a handler. Nothing is changed in that case.
        """
        self._table.wrap(middleware, self._dispatcher.fallback)
        self._middleware += middleware

    # -- commands ----------------------------------------------------------------------------------------------

    @overload
    def command(self, name: _H, /) -> _H: ...

    @overload
    def command(
        self, name: str | None = None, /, *, help: str = "", complete: Completer | None = None
    ) -> Callable[[_H], _H]: ...

    @overload
    def command(
        self, name: str, handler: Callable[..., Any], *, help: str = "", complete: Completer | None = None
    ) -> Route: ...

    def command(
        self,
        name: str | Callable[..., Any] | None = None,
        handler: Callable[..., Any] | None = None,
        *,
        help: str = "",  # noqa: A002  # the usual name
        complete: Completer | None = None,
    ) -> Any:
        """Register a command. When a user types its name, ``handler`` is called.

        If `command` is used as a decorator, with or without parentheses, the name is taken from the function, unless
        you pass one: ``@router.command("name")``. All commands share the lane ``command``, so they run one after
        another.

        A handler gets the `CommandEvent` itself if it has a single parameter that is unannotated or annotated with an
        event class. For any other handler, the arguments are parsed: ``async def deploy(target: str, force: bool =
        False)`` accepts ``deploy prod --force``. Parameters with a default are optional, and keyword-only parameters
        are options. Words are converted to the annotated type: a class such as ``int`` or ``Path``, an enum, or a
        ``Literal``. The type also provides completions, or you can supply your own with ``Annotated[str, function]``.
        If the user makes a mistake, the usage is logged.

        Args:
            name: The word that the user types.
            handler: An async or plain function.
            help: Help text. By default, the handler's docstring.
            complete: Completions for an argument: a list of words, or a function that returns words for the typed text.

        Returns:
            The route, or the function if used as a decorator.

        Raises:
            RouteConflict: if the name is taken.
            ValueError: if the name is not a single word.
            TypeError: if a parameter of the handler cannot be filled from the command line, or its annotations cannot
                be evaluated, for example because a type is imported only under ``TYPE_CHECKING``.
        """
        if callable(name):
            self._command(_last_name(name), name)
            return name
        if name is not None and handler is not None:
            return self._command(name, handler, help, complete)

        def register(handler: Callable[..., Any]) -> Callable[..., Any]:
            self._command(_last_name(handler) if name is None else name, handler, help, complete)
            return handler

        return register

    def _command(
        self, name: str, handler: Callable[..., Any], text: str = "", complete: Completer | None = None
    ) -> Route:
        from lifecycle.control.arguments import arguments_of  # this imports argparse, which is slow

        arguments = arguments_of(name, handler)
        command = Command(name, text or help_of(handler), complete=complete, place="{}:{}".format(*caller()))
        if arguments is not None:
            command = replace(command, usage=arguments.usage, complete=complete or arguments.complete)
        self.commands.add(command)
        try:
            called = handler if arguments is None else arguments.handler()
            return self.handle(f"command/{quoted(name)}", called, lane="command")
        except BaseException:
            self.commands.remove(name)
            raise

    # -- taps and sources --------------------------------------------------------------------------------------

    def tap(self, pattern: str | Pattern | type[Topical], handler: RouteHandler) -> Tap:
        """Call ``handler`` with every matching event, in addition to the event's route.

        A tap cannot stop or change an event. A plain function is called immediately. An async function gets its own
        lane. If that lane is full, the tap misses the event, which is counted in ``tap.missed``.

        Args:
            pattern: See `handle`.
            handler: See `handle`.

        Returns:
            The tap. ``tap.remove()`` removes it.
        """
        return add_tap(self._dispatcher, as_pattern(pattern), handler)

    def subscribe(self, pattern: str | Pattern | type[Topical] = "**", *, maxsize: int = 100) -> Subscription:
        """Return the matching events as an async iterator.

        Use it as ``async with router.subscribe() as events:`` and ``async for event in events:``.

        Args:
            pattern: See `handle`.
            maxsize: The maximum number of waiting events. If more arrive, the oldest is dropped and counted in
                ``events.dropped``.
        """
        parsed = as_pattern(pattern)
        return Subscription(lambda take: self.tap(parsed, take), maxsize)

    def add_source(
        self, source: Source, *, restart: RestartSource = "on_failure", backoff: Backoff | None = None
    ) -> None:
        """Add a source, which sends events to this router while the router is running.

        Args:
            source: An async iterable of events, a function that returns one, or an object with ``async def run(emit)``.
                If the source is also an async context manager, it is entered first. If entering it fails, `run` raises
                `SourceFailed`.
            restart: ``"on_failure"`` restarts a source that fails after it has started, and ``"never"`` does not. Each
                failure is logged.
            backoff: Delays between restarts.

        Raises:
            TypeError: if ``source`` is not a source.
            ValueError: if ``restart`` is unknown, or the source has already been added.
        """
        runner = SourceRunner(source, restart, backoff or Backoff(), self._dispatcher)
        if any(each.source is source for each in self._lifespan.sources):
            raise ValueError(f"{source!r} is already a source of router {self.name!r}; add it once")
        for method, argument in (("use_commands", self.commands), ("use_router", self)):
            use = getattr(source, method, None)
            if use is not None:
                use(argument)
        self._lifespan.add(runner)

    def remove_source(self, source: Source) -> None:
        """Remove a source and cancel it.

        Raises:
            RouteNotFound: if the source was not added.
        """
        self._lifespan.remove(source)

    def hold_source(self, name: str) -> None:
        """Hold the sources named ``name``: the router accepts no events from them until `release_source` is called.

        A source with plain (not async) ``hold`` and ``release`` methods does this itself. For example, a held
        `WebhookSource` responds with 503. Any other source waits when it emits its next event. When the router stops,
        it releases its sources. Holding a source that is already held does nothing. A source that is also suspended,
        for example by a `SuspendHandler`, continues once it is both released and resumed.

        Raises:
            RouteNotFound: if no source has that name.
        """
        for source in self._sources_called(name):
            source.hold()

    def release_source(self, name: str) -> None:
        """Release the sources named ``name``, so that the router accepts their events again.

        Releasing a source that is not held does nothing.

        Raises:
            RouteNotFound: if no source has that name.
        """
        for source in self._sources_called(name):
            source.release()

    def _sources_called(self, name: str) -> list[SourceRunner]:
        sources = [each for each in self._lifespan.sources if each.name == name]
        if not sources:
            raise RouteNotFound(f"no source of router {self.name!r} is named {name!r}; router.sources() lists them")
        return sources

    # -- events ------------------------------------------------------------------------------------------------

    async def dispatch(self, event: Topical) -> None:
        """Call the handler for ``event`` directly, bypassing debounces, lanes and counts, and wait until it returns.

        This is the handler that `emit` would choose, which may be the fallback. If it raises an error, the error
        propagates.

        Raises:
            NotHandled: if no route takes the event and the router has no fallback.
            InvalidTopic: if the topic is invalid.
            TypeError: if the object has no topic.
            LifecycleError: if a handler raised CancelledError although its task was not cancelled.
        """
        try:
            match = self._matches[event.topic]
        except (AttributeError, TypeError):  # the event has no topic, or an unhashable one
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
        """Send ``event`` to its handler. If the lane is full, wait for space.

        ``emit`` returns once the event is in its lane. To wait for the handler, await the returned `Delivery`, which
        returns None once the handler has returned, or raises the handler's error. Events emitted before the router runs
        wait in their lanes.

        Returns:
            The delivery of the event.

        Raises:
            NotHandled: if no route matches and the router has no fallback.
            InvalidTopic: if the topic is invalid.
            TypeError: if the object has no topic.
            LaneFull: if the lane is full and waiting would cause a deadlock, because the router is not running or the
                calling handler would wait for itself.
            RuntimeError: if the router runs in another thread.
        """
        return _taken(await self._dispatcher.accept(event))

    def emit_nowait(self, event: Topical) -> Delivery:
        """Send ``event`` to its handler like `emit`, but don't wait for space in the lane.

        Raises:
            LaneFull: if the lane is full, or its space is reserved for an emitter that has waited for it.
            RuntimeError: if the router runs in another thread. Use `BaseSource.emit_threadsafe` there.
            NotHandled: if no route matches and the router has no fallback.
            InvalidTopic: if the topic is invalid.
            TypeError: if the object has no topic.
        """
        return _taken(self._dispatcher.accept_nowait(event))

    # -- running -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run sources and handlers until `stop` is called, the task is cancelled, or a source fails to start.

        Raises:
            RouterRunning: if the router is already running.
            SourceFailed: if a source fails to start. The message names the source, and ``__cause__`` is the source's
                error.
        """
        await self._lifespan.run()

    async def wait_running(self) -> None:
        """Wait until `run` has started all sources."""
        await self._lifespan.wait_up()

    def stop(self) -> None:
        """Make `run` return after it has stopped the sources, flushed the debouncers and drained the lanes.

        If you cancel `run` instead, nothing is drained.
        """
        self._lifespan.stop()

    # -- statistics --------------------------------------------------------------------------------------------

    def routes(self) -> list[RouteInfo]:
        """Return every route, sorted by pattern. Routes registered with `also` come last."""
        routes = sorted(self._table.routes.values(), key=lambda route: route.text)
        return [route.info() for route in (*routes, *sorted(self._table.also, key=lambda route: route.pattern.text))]

    def sources(self) -> list[SourceInfo]:
        """Return every source, in the order of registration."""
        return [source.info() for source in self._lifespan.sources]

    def lanes(self) -> list[LaneInfo]:
        """Return the lanes that have received an event or are shared by routes, except the lanes of taps."""
        routes = list(self._dispatcher.lanes.items())
        return [lane.info() for lane in dict.fromkeys(lane for route, lane in routes if not route.is_tap)]

    def taps(self) -> list[TapInfo]:
        """Return every tap and subscription, sorted by pattern."""
        return [tap_info(tap, self._dispatcher) for tap in self._table.taps()]

    def explain(self, topic: str) -> list[RouteInfo]:
        """Return the routes that match ``topic``, in order of precedence. The first gets the event.

        The matching routes registered with `also` come last, and each of them also gets the event.
        """
        match = self._table.match(Event(topic))
        return [route.info() for route in (*match.routes, *(tap for tap in match.taps if tap.is_also))]

    def state(self) -> RouterState:
        """Return the number of routes and sources, and the counts of events that passed through lanes."""
        from lifecycle.control.records import RouterState

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


def _last_name(handler: object) -> str:
    return name_of(handler).rpartition(".")[2]


def _taken(delivery: Delivery) -> Delivery:
    """Return ``delivery``, or raise its `NotHandled` error if no route took the event."""
    if delivery.route is None and delivery.error is not None:
        raise delivery.error
    return delivery

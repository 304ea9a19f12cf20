"""`Router`: registration of handlers and sources, and the way of an event.

``routes`` finds the routes of an event, ``lanes`` calls the handler, and ``running`` starts and stops the router.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, TypeVar, Unpack, overload

from lifecycle import hooks
from lifecycle._async import was_cancelled
from lifecycle._durations import in_seconds
from lifecycle._util import name_of
from lifecycle.backoff import Backoff
from lifecycle.control.commands import Command, Commands, Completer, help_of
from lifecycle.control.debouncing import Debounce
from lifecycle.control.deliveries import Counts, Delivery, Relayed, current, current_lane
from lifecycle.control.lanes import Busy, Lanes
from lifecycle.control.observers import Observation, Observer, Subscription, relay
from lifecycle.control.patterns import Pattern, quoted
from lifecycle.control.routes import Fallback, Match, Route, Routes, as_pattern, caller
from lifecycle.control.running import Lifespan
from lifecycle.control.source_runner import SourceRunner
from lifecycle.errors import Dropped, InvalidTopic, LaneFull, LifecycleError, NotHandled, RouteNotFound
from lifecycle.events.base import Event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Hashable, Iterable
    from concurrent.futures import Future

    from lifecycle._durations import Duration
    from lifecycle.control.records import LaneInfo, RouteInfo, RouterState, SourceInfo
    from lifecycle.control.source_runner import RestartSource, SourceLike
    from lifecycle.control.types import Middleware, RouteHandler
    from lifecycle.events import Topical

__all__ = ["Router", "add_relay", "call_directly"]

# A hook keeps the same dictionary of receivers for as long as it exists, so we can keep a reference to it. The
# dictionary is empty if the hook has no receivers.
_ROUTED, _ACCEPTED = hooks.event_routed.receivers, hooks.delivery_accepted.receivers

_H = TypeVar("_H", bound=Callable[..., Any])
_R = TypeVar("_R", bound=Route)


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
        self._counts = Counts(self)
        self._lanes = Lanes(buffer)
        self._routes = Routes(self._counts)
        # The match of each known topic.
        self._known = self._routes.known
        self._lifespan = Lifespan(self, self._routes, self._lanes, in_seconds("drain_timeout", drain_timeout, least=0))
        self._middleware: list[Middleware] = []

    def __repr__(self) -> str:
        state = "running" if self._lifespan.is_up else "not running"
        return f"<Router {self.name!r}: {len(self._routes)} routes, {state}>"

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
        route = Route(
            as_pattern(pattern),
            handler,
            self._lanes,
            self._counts,
            middleware=middleware,
            busy=busy,
            concurrency=concurrency,
        )
        self._routes.check_free(route, replace=replace)
        if self._middleware:
            route.prepare(self._middleware)()
        route.open(_settings(debounce), lane)
        self._routes.add(route, replace=replace)
        return route

    def observe(
        self,
        pattern: str | Pattern | type[Topical],
        handler: RouteHandler,
        *,
        debounce: Duration | Debounce | None = None,
        busy: Busy | Literal["queue", "drop", "restart"] = Busy.QUEUE,
        concurrency: int = 1,
        lane: str | Callable[[Any], Hashable] | None = None,
        middleware: Iterable[Middleware] = (),
    ) -> Observation:
        """Call ``handler`` with every matching event, in addition to the route that handles the event.

        The handler has its own lane, debounce, counts and deliveries. Its errors are logged and counted, but do not
        affect the event's delivery to its route. It never makes `emit` wait: if its lane is full, the handler misses
        the event, which is counted as dropped. Several handlers may observe the same pattern. `emit` still raises
        `NotHandled` if no route matches.

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
        observer = Observer(
            as_pattern(pattern),
            handler,
            self._lanes,
            self._counts,
            middleware=middleware,
            busy=busy,
            concurrency=concurrency,
        )
        observer.rename({each.text for each in self._routes.observers()})
        if self._middleware:
            observer.prepare(self._middleware)()
        observer.open(_settings(debounce), lane)
        self._routes.add_observer(observer.pattern, observer)
        return Observation(self._routes, observer)

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
        route = self._routes.remove(as_pattern(pattern))
        self.commands.forget(route.pattern)

    def fallback(self, handler: _H) -> _H:
        """Register ``handler`` for events that no route takes, and return it. This can be used as a decorator.

        The fallback handles one event at a time. Calling this again replaces the handler.
        """
        fallback = Fallback(handler, self._lanes, self._counts)
        if self._middleware:
            fallback.prepare(self._middleware)()
        self._routes.set_fallback(fallback)
        return handler

    def use(self, *middleware: Middleware) -> None:
        """Wrap ``middleware`` around the handlers of all routes and the fallback, including those registered later.

        Args:
            middleware: Functions that take a handler and return the wrapped handler. The first is the outermost.

        Raises:
            TypeError: if ``middleware`` cannot wrap a handler. Nothing is changed in that case.
        """
        self._routes.wrap(middleware)
        self._middleware += middleware

    def include(self, router: Router, *, prefix: str = "") -> None:
        """Add the routes, observers, commands and middleware of ``router``, as a module of a larger program has them.

        Include a router once its handlers are registered, because later registrations are not included. ``router``
        itself is not changed, so a test can run it alone. `explain` and `routes` show the name of the router from which
        a route was included.

        Args:
            router: The router to include. It must not have sources or a fallback, which belong to a whole program.
            prefix: Comes before each pattern: with ``prefix="shop"``, the pattern ``order/*`` becomes ``shop/order/*``.
                Lanes that are shared by name get the prefix as well. Commands do not.

        Raises:
            RouteConflict: if a pattern or a command is taken. Nothing is included in that case.
            InvalidPattern: if a pattern with the prefix is invalid.
            ValueError: if ``router`` is this router, or has sources or a fallback, or a shared lane has a different
                concurrency in the two routers. Nothing is included in that case.
        """
        if router is self:
            raise ValueError(f"router {self.name!r} cannot include itself; include another router")
        for what, found in (("sources", router._lifespan.sources), ("a fallback", router._routes.fallback)):
            if found:
                raise ValueError(
                    f"router {router.name!r} has {what}, which belong to a whole program; add them to {self.name!r}"
                )
        words = {f"command/{quoted(each.name)}" for each in router.commands}
        routes = [self._included(Route, each, router, "" if each.text in words else prefix) for each in router._routes]
        inner = [*router._routes, *router._routes.observers()]
        observers = [self._included(Observer, each, router, prefix) for each in router._routes.observers()]
        for route in routes:
            self._routes.check_free(route, replace=False)
        with ExitStack() as undo:
            for made, each in zip([*routes, *observers], inner, strict=True):
                undo.callback(made.remove)
                made.included(each, router.name, "" if each.text in words else prefix)
            self.commands.merge(router.commands)
            undo.pop_all()
        for route in routes:
            self._routes.add(route, replace=False)
        for observer in observers:
            observer.rename({each.text for each in self._routes.observers()})
            self._routes.add_observer(observer.pattern, observer)

    def _included(self, kind: type[_R], route: Route, router: Router, prefix: str) -> _R:
        """Return a route of this router for the same handler."""
        text = route.pattern.text
        made = kind(
            Pattern(f"{prefix}/{text}" if prefix else text),
            route.handler,
            self._lanes,
            self._counts,
            middleware=(*router._middleware, *route.middleware),
            busy=route.busy,
            concurrency=route.concurrency,
        )
        if self._middleware:
            made.prepare(self._middleware)()
        return made

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

    # -- subscriptions and sources ------------------------------------------------------------------------------

    def subscribe(self, pattern: str | Pattern | type[Topical] = "**", *, maxsize: int = 100) -> Subscription:
        """Return the matching events as an async iterator.

        Use it as ``async with router.subscribe() as events:`` and ``async for event in events:``.

        Args:
            pattern: See `handle`.
            maxsize: The maximum number of waiting events. If more arrive, the oldest is dropped and counted in
                ``events.dropped``.
        """
        return Subscription(self._routes, as_pattern(pattern), maxsize)

    def add_source(
        self, source: SourceLike, *, restart: RestartSource = "on_failure", backoff: Backoff | None = None
    ) -> None:
        """Add a source, which sends events to this router while the router is running.

        Args:
            source: A `Source`, an async iterable of events, a function that returns one, or an object with ``async def
                run(emit)``. If the source is also an async context manager, it is entered first. If entering it fails,
                `run` raises `SourceFailed`.
            restart: ``"on_failure"`` restarts a source that fails after it has started, and ``"never"`` does not. Each
                failure is logged.
            backoff: Delays between restarts.

        Raises:
            TypeError: if ``source`` is not a source.
            ValueError: if ``restart`` is unknown, or the source has already been added.
        """
        runner = SourceRunner(source, restart, backoff or Backoff(), router=self, emit=self._accept, lanes=self._lanes)
        if any(each.given is source for each in self._lifespan.sources):
            raise ValueError(f"{source!r} is already a source of router {self.name!r}; add it once")
        runner.source.use_router(self)
        self._lifespan.add(runner)

    def remove_source(self, source: SourceLike) -> None:
        """Remove a source and cancel it.

        Raises:
            RouteNotFound: if the source was not added.
        """
        self._lifespan.remove(source)

    def hold_source(self, name: str) -> None:
        """Hold the sources named ``name``: the router accepts no events from them until `release_source` is called.

        A held source waits when it emits its next event, unless it overrides `Source.pause_changed`. For example, a
        held `WebhookSource` responds with 503. When the router stops, it releases its sources. Holding a source that is
        already held does nothing. A source that is also suspended, for example by a `SuspendHandler`, continues once it
        is both released and resumed.

        Raises:
            RouteNotFound: if no source has that name.
        """
        for source in self._sources_called(name):
            source.source.hold()

    def release_source(self, name: str) -> None:
        """Release the sources named ``name``, so that the router accepts their events again.

        Releasing a source that is not held does nothing.

        Raises:
            RouteNotFound: if no source has that name.
        """
        for source in self._sources_called(name):
            source.source.release()

    def _sources_called(self, name: str) -> list[SourceRunner]:
        sources = [each for each in self._lifespan.sources if each.name == name]
        if not sources:
            raise RouteNotFound(f"no source of router {self.name!r} is named {name!r}; router.sources() lists them")
        return sources

    # -- events ------------------------------------------------------------------------------------------------

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
        # Sources emit in the thread of the router, so they need no check.
        if self._lanes.thread is not None and self._lanes.thread != get_ident():
            raise _wrong_thread("emit")
        return _taken(await self._accept(event))

    async def call(self, event: Topical, *, timeout: Duration | None = None) -> Any:
        """Send ``event`` to its handler, wait for the handler, and return its value.

        The event goes through its debounce and its lane, like an event sent with `emit`. A handler may call another
        handler. If its own lane could handle the event only afterwards, the call is refused, and the event is not sent.

        Args:
            event: The event.
            timeout: The maximum time, in seconds, to wait for the handler. The handler continues after a timeout, and
                its error is logged. By default, there is no limit.

        Raises:
            TimeoutError: if the handler has not finished within ``timeout``.
            LifecycleError: if the calling handler would wait for itself, directly or through other lanes.
            NotHandled: if no route takes the event, and the router has no fallback.
            Dropped: if the event was dropped, because the lane is busy or the router was stopped.
        """
        home, match = current_lane.get(), None
        if home is not None:
            with suppress(InvalidTopic):  # `emit` raises it
                match = self._routes.match(event)
            if match is not None and match.route is not None:
                home.check_call(event, match.route)
        if timeout is None:
            return await (await self.emit(event))
        async with asyncio.timeout(in_seconds("timeout", timeout)):
            return await (await self.emit(event))

    def emit_nowait(self, event: Topical) -> Delivery:
        """Send ``event`` to its handler like `emit`, but don't wait for space in the lane.

        Raises:
            LaneFull: if the lane is full, or its space is reserved for an emitter that has waited for it.
            RuntimeError: if the router runs in another thread. Use `emit_threadsafe` there.
            NotHandled: if no route matches and the router has no fallback.
            InvalidTopic: if the topic is invalid.
            TypeError: if the object has no topic.
        """
        if self._lanes.loop is not None and self._lanes.loop is not _running_loop():
            raise _wrong_thread("emit_nowait")
        try:
            match = self._routes.match(event)
        except InvalidTopic as error:
            return _taken(self._refuse(event, error))
        if match.route is not None and match.route.is_full:
            raise LaneFull(f"no space for {event.topic!r}: lane {match.route.info().lane!r} is full")
        delivery = Delivery(event, match, match.route, current.get())
        self._show(delivery, match)
        waiting = match.first.take(delivery)
        if waiting is not None:
            # A receiver of a hook has emitted events since we looked.
            waiting.close()
            assert match.route is not None
            assert match.route.lane is not None
            match.route.lane.put(delivery)
        return _taken(delivery)

    def emit_threadsafe(self, event: Topical) -> Future[Delivery]:
        """Send ``event`` to its handler like `emit`, from another thread than that of the router's event loop.

        Returns:
            A future whose ``result()`` waits until the event is in its lane, and returns the delivery. It raises what
            `emit` raises. If you don't need the result, ignore the future.

        Raises:
            RuntimeError: if the router is not running.
        """
        loop = self._lanes.loop
        if loop is None:
            raise RuntimeError(f"router {self.name!r} is not running, so it has no event loop for {event.topic!r}")
        return asyncio.run_coroutine_threadsafe(self.emit(event), loop)

    async def _accept(self, event: Topical) -> Delivery:
        """Give an event to its observers and its route, and wait until there is room for it.

        If no route takes the event, the returned delivery has no route and has ended with `NotHandled`. Every event
        from every source passes through this method.
        """
        try:
            match = self._known[event.topic]
        except InvalidTopic as error:
            return self._refuse(event, error)
        except (AttributeError, TypeError):  # the event has no topic, or an unhashable one
            try:
                match = self._routes.match(event)
            except InvalidTopic as error:
                return self._refuse(event, error)
        delivery = Delivery(event, match, match.route, current.get())
        if match.observers or _ACCEPTED or _ROUTED:
            self._show(delivery, match)
        waiting = match.first.take(delivery)
        if waiting is not None:
            try:
                await waiting
            except LaneFull as error:
                delivery.refuse(error)
                raise
        return delivery

    def _show(self, delivery: Delivery, match: Match) -> None:
        """Give the event to the observers, and announce it."""
        for observer in match.observers:
            observer.offer(delivery.event)
        delivery.announce(self._counts, routed=bool(match.routes))
        if match.route is not None and match.route.removed:  # by a receiver of a hook
            self._routes.keep(match.route)

    def _refuse(self, event: Topical, error: InvalidTopic) -> Delivery:
        delivery = Delivery(event, None, None, current.get())
        delivery.announce(self._counts, routed=False)
        delivery.decline(error, self._counts)
        return delivery

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
        """Return every route, sorted by pattern. Observers come last."""
        observers = sorted(self._routes.observers(), key=lambda route: route.pattern.text)
        return [route.info() for route in (*self._routes, *observers)]

    def sources(self) -> list[SourceInfo]:
        """Return every source, in the order of registration."""
        return [source.info() for source in self._lifespan.sources]

    def lanes(self) -> list[LaneInfo]:
        """Return the lanes that have received an event or are shared by routes."""
        return [lane.info() for lane in self._lanes]

    def explain(self, topic: str) -> list[RouteInfo]:
        """Return the routes that match ``topic``, in order of precedence. The first gets the event.

        The matching observers come last, and each of them also gets the event.
        """
        match = self._routes.match(Event(topic))
        observers = [each for each in match.observers if isinstance(each, Observer)]
        return [route.info() for route in (*match.routes, *observers)]

    def state(self) -> RouterState:
        """Return the number of routes and sources, and the counts of events that passed through lanes."""
        from lifecycle.control.records import RouterState

        fallback = self._routes.fallback
        return RouterState(
            name=self.name,
            routes=len(self._routes) + len(self._routes.observers()),
            middlewares=len(self._middleware),
            sources=len(self._lifespan.sources),
            running=self._lifespan.is_up,
            routed=self._routes.count("routed"),
            handled=self._routes.count("handled"),
            failed=self._routes.count("failed"),
            unrouted=self._counts.unrouted,
            dropped=self._routes.count("dropped"),
            fallback=None if fallback is None else name_of(fallback.handler),
        )


def _settings(debounce: Duration | Debounce | None) -> Debounce | None:
    return debounce if debounce is None or isinstance(debounce, Debounce) else Debounce(debounce)


def _last_name(handler: object) -> str:
    return name_of(handler).rpartition(".")[2]


def _taken(delivery: Delivery) -> Delivery:
    """Return ``delivery``, or raise its `NotHandled` error if no route took the event."""
    if delivery.route is None and delivery.error is not None:
        raise delivery.error
    return delivery


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _wrong_thread(method: str) -> RuntimeError:
    return RuntimeError(
        f"{method}() was called outside the thread of the router's event loop, so the event was not accepted; in other "
        "threads, call emit_threadsafe()"
    )


async def call_directly(router: Router, event: Topical) -> None:
    """Call the handler that `Router.emit` would choose, without its debounce and its lane, and without counting.

    The commands for suspending and stopping a program use this, because they must not wait for a busy lane. Observers
    do not get the event. An error raised by the handler propagates.

    Raises:
        NotHandled: if no route takes the event and the router has no fallback.
        LifecycleError: if a handler raised CancelledError although its task was not cancelled.
    """
    match = router._routes.match(event)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of this module
    error = NotHandled(f"no route matches {event.topic!r}, and there is no fallback")
    is_relayed = False
    for route in match.candidates():
        if is_relayed and isinstance(route, Fallback):
            return
        try:
            await route.call(event)
        except Dropped:
            raise
        except NotHandled as passed:
            error, is_relayed = passed, is_relayed or isinstance(passed, Relayed)
        except asyncio.CancelledError as cancelled:
            if was_cancelled():
                raise
            text = f"{name_of(route.handler)} raised CancelledError, although it was not cancelled"
            raise LifecycleError(text) from cancelled
        else:
            return
    if not is_relayed:
        raise error


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
    routes, lanes, counts = router._routes, router._lanes, router._counts  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of this module
    route = Route(as_pattern(pattern), relay(handler), lanes, counts, concurrency=concurrency)
    routes.add_relay(route)
    return lambda: routes.remove_relay(route)

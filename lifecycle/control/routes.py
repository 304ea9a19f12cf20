"""Routes: which handlers get an event, and in which order.

An exact route takes precedence over every glob, and a more specific glob over a less specific one (`Pattern.rank`).
`Routes.match` looks a topic up in one cache. For a new topic, an index narrows the patterns down, and the matcher of
`Pattern` decides.
"""

from __future__ import annotations

import sys
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from lifecycle._owners import Part
from lifecycle._util import name_of
from lifecycle.control.calls import Call, check_middleware
from lifecycle.control.debouncing import Debouncer
from lifecycle.control.lanes import Busy
from lifecycle.control.patterns import DEEP, MAX_SEGMENTS, Literal, Pattern, Wild
from lifecycle.errors import InvalidTopic, LaneFull, NotHandled, RouteConflict, RouteNotFound
from lifecycle.events.base import topics_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Sequence

    from lifecycle.control.debouncing import Debounce
    from lifecycle.control.deliveries import Counts, Delivery
    from lifecycle.control.lanes import KeyedLane, Lane, Lanes
    from lifecycle.control.records import RouteInfo
    from lifecycle.control.types import AsyncHandler, LaneKey, Middleware, RouteHandler
    from lifecycle.events import Topical

__all__ = ["MAX_TOPIC", "Fallback", "Index", "Match", "Observing", "Route", "Routes", "as_pattern", "caller"]

#: The maximum length of a topic in characters. Since the number of cached entries is limited, this limits the size of
#: the cache.
MAX_TOPIC = 1024

#: Half the maximum number of cached matches.
_CACHED = 2048

T = TypeVar("T")

#: A file and a line.
Place: TypeAlias = tuple[str, int]


def as_pattern(pattern: str | Pattern | type[Topical]) -> Pattern:
    """Convert a string or an event class to a pattern.

    The pattern for an event class matches the topics of its events.

    Raises:
        InvalidPattern: if the string cannot be parsed.
        TypeError: if ``pattern`` is a function, or a class that does not define the topics of its events.
    """
    if isinstance(pattern, Pattern):
        return pattern
    if callable(pattern) and not isinstance(pattern, type):
        raise TypeError(
            f"expected a pattern, got the function {name_of(pattern)}; "
            "a decorator takes the pattern in parentheses: @router.on('file/*')"
        )
    return Pattern(topics_of(pattern) if isinstance(pattern, type) else pattern)


def caller() -> Place:
    """Return the file and line of the nearest caller outside this package."""
    frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # inspect.stack reads source files
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("lifecycle.control"):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


# -- one route ---------------------------------------------------------------------------------------------------


class Route:
    """A pattern and its handler, with the debounce and the lane through which events reach it.

    Raises:
        TypeError: if ``handler`` or ``middleware`` is unsuitable, or ``lane`` is neither a string nor a function.
        ValueError: if a setting is invalid.
    """

    __slots__ = (
        "_call",
        "_lanes",
        "_shared",
        "busy",
        "call",
        "concurrency",
        "counts",
        "debouncer",
        "dropped",
        "failed",
        "handled",
        "handler",
        "lane",
        "middleware",
        "origin",
        "pattern",
        "place",
        "removed",
        "routed",
        "successor",
        "text",
    )

    def __init__(
        self,
        pattern: Pattern,
        handler: RouteHandler,
        lanes: Lanes,
        counts: Counts,
        *,
        middleware: Iterable[Middleware] = (),
        busy: str = Busy.QUEUE,
        concurrency: int = 1,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency={concurrency!r} would never run a handler; use 1 or more")
        self.pattern: Pattern = pattern
        self.text: str = pattern.text
        self.handler: RouteHandler = handler
        self.place: Place = caller()
        #: The route's own middleware, and that of the routers from which it was included.
        self.middleware: tuple[Middleware, ...] = tuple(middleware)
        #: The name of the router from which the route was included.
        self.origin: str | None = None
        self._call = Call(handler, pattern, self.middleware)
        #: The handler wrapped in middleware. The lane calls it.
        self.call: AsyncHandler = self._call.call
        self.busy: Busy = Busy(busy)
        self.concurrency: int = concurrency
        self.debouncer: Debouncer | None = None
        self._lanes = lanes
        self.counts: Counts = counts
        self._shared: str | LaneKey | None = None
        # A lane of the route's own is opened when the first event arrives, because many routes never receive one.
        self.lane: Lane | KeyedLane | None = None
        # True if the route was removed and is finishing the events that it has accepted.
        self.removed: bool = False
        # The route that replaced this one.
        self.successor: Route | None = None
        self.routed: int = 0
        self.handled: int = 0
        self.failed: int = 0
        self.dropped: int = 0

    def __repr__(self) -> str:
        return f"<Route {self.text!r} to {name_of(self.handler)}>"

    def open(self, settings: Debounce | None, lane: str | LaneKey | None) -> None:
        """Create the debouncer, and enter the shared lane, if any.

        Raises:
            TypeError: if ``lane`` is neither a string nor a function of one argument.
            ValueError: if another route of that lane has a different concurrency.
        """
        if settings is not None:
            self.debouncer = Debouncer(settings, self._deliver)
        self._shared = lane
        if lane is not None:
            self.lane = self._lanes.open(self.text, self.concurrency, lane)

    def included(self, route: Route, origin: str, prefix: str) -> None:
        """Take over the place, the debounce and the lane of ``route``, which belongs to the router ``origin``.

        A lane that ``route`` shares by name is shared only by the routes that are included together.
        """
        self.place, self.origin = route.place, route.origin or origin
        shared = route._shared  # of this class
        if isinstance(shared, str) and prefix:
            shared = f"{prefix}/{shared}"
        self.open(None if route.debouncer is None else route.debouncer.settings, shared)

    # -- events ------------------------------------------------------------------------------------------------------

    def take(self, delivery: Delivery, _passed: NotHandled | None = None) -> Coroutine[Any, Any, None] | None:
        """Put the event into the debouncer or the lane. If the lane has no room, return a wait for it."""
        self.routed += 1
        if self.debouncer is not None:
            self._hold(delivery, self.debouncer)
            return None
        return (self.lane or self._open_lane()).take(delivery, self.busy)

    @property
    def is_full(self) -> bool:
        """True if an event would have to wait for room."""
        return self.debouncer is None and self.busy is Busy.QUEUE and (self.lane or self._open_lane()).is_full

    def _open_lane(self) -> Lane | KeyedLane:
        lane = self.lane = self._lanes.open(self.text, self.concurrency, self._shared)
        if self.removed:
            lane.users -= 1
        return lane

    def _hold(self, delivery: Delivery, debouncer: Debouncer) -> None:
        try:
            call = debouncer.add(delivery.event, delivery)
        except Exception as error:  # noqa: BLE001  # raised by `key` or `merge`; reported like a handler's error
            delivery.finish(error=error)
        else:
            delivery.merge_into(call)

    def _deliver(self, key: Hashable, call: Delivery) -> bool:
        """Put a merged event into the lane. If there is no room, return False, and try again when there is."""
        lane, debouncer = self.lane or self._open_lane(), self.debouncer
        assert debouncer is not None
        try:
            lane.offer(call, self.busy)
        except LaneFull:
            lane.when_free(lambda: debouncer.retry(key))
            return False
        return True

    # -- registration ------------------------------------------------------------------------------------------------

    @property
    def current(self) -> Route | None:
        """The route now registered in this place: this one, the one that replaced it, or None."""
        route: Route | None = self
        while route is not None and route.removed:
            route = route.successor
        return route

    def holds(self, call: Delivery) -> bool:
        """Return whether a burst that has not ended is the event of ``call``."""
        return self.debouncer is not None and any(each is call for each in self.debouncer.calls())

    @property
    def has_events(self) -> bool:
        """True if an event waits in the debouncer, or the lane has events."""
        return bool(self.debouncer) or (self.lane is not None and not self.lane.is_idle)

    def prepare(self, middleware: Iterable[Middleware]) -> Callable[[], None]:
        """Return a function that adds the router's middleware and cannot fail."""
        add = self._call.prepare(middleware)

        def wrap() -> None:
            add()
            self.call = self._call.call

        return wrap

    def remove(self) -> None:
        """Take no more events. The route still handles those that it has accepted."""
        if self.debouncer is not None:
            self.debouncer.closed = True
            self.debouncer.flush()
        self.removed = True
        if self.lane is not None:
            self._lanes.leave(self.lane)

    def forget_lane(self) -> None:
        """Forget the lane of a removed route, unless another route uses it."""
        if self.lane is not None:
            self._lanes.forget(self.lane)

    def info(self) -> RouteInfo:
        """Return the settings and counts of the route."""
        from lifecycle.control.records import RouteInfo

        return RouteInfo(
            pattern=self.text,
            handler=name_of(self.handler),
            lane=self.text if self.lane is None else self.lane.name,
            busy=str(self.busy),
            routed=self.routed,
            handled=self.handled,
            failed=self.failed,
            dropped=self.dropped,
            place="{}:{}".format(*self.place),
            debounce=None if self.debouncer is None else self.debouncer.wait,
            held=0 if self.debouncer is None else len(self.debouncer),
            included_from=self.origin,
        )


class Fallback(Route):
    """The handler for events that no route takes."""

    __slots__ = ()

    def __init__(self, handler: RouteHandler, lanes: Lanes, counts: Counts) -> None:
        super().__init__(Pattern("**"), handler, lanes, counts)
        self.text = "(fallback)"

    def take(self, delivery: Delivery, _passed: NotHandled | None = None) -> Coroutine[Any, Any, None] | None:
        """Count the event as unrouted, and put it into the lane. It is passed on to no route."""
        # A receiver of a hook may have registered this fallback while the event was on its way.
        delivery.match, delivery.route = None, self
        self.counts.unroute(delivery)
        return (self.lane or self._open_lane()).take(delivery, self.busy)


class _End:
    """The end of all routes: the fallback, if the router has one."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self.fallback: Fallback | None = None

    def take(self, delivery: Delivery, passed: NotHandled | None = None) -> Coroutine[Any, Any, None] | None:
        """Give the event to the fallback, or end the delivery because no route took the event."""
        if self.fallback is not None:
            return self.fallback.take(delivery)
        topic = delivery.event.topic
        delivery.decline(passed or NotHandled(f"no route matches {topic!r}, and there is no fallback"), self._counts)
        return None


class _Sent:
    """The end of the routes of an event that a relay has passed on, so that it counts as handled."""

    fallback = None

    def take(self, delivery: Delivery, _passed: NotHandled | None = None) -> None:
        """End the delivery."""
        delivery.end(None)


class Taking(Protocol):
    """A route, or the end of the routes."""

    def take(self, delivery: Delivery, passed: NotHandled | None = None, /) -> Coroutine[Any, Any, None] | None:
        """Take the event, and return a wait if there is no room for it yet."""
        ...


class Observing(Protocol):
    """An observer, which never waits and never fails."""

    pattern: Pattern

    def offer(self, event: Topical, /) -> None:
        """Look at an event."""
        ...


class Match:
    """The observers and the routes of a topic, with the most specific route first."""

    __slots__ = ("end", "first", "observers", "route", "routes")

    def __init__(self, routes: Sequence[Route], end: _End | _Sent, observers: Sequence[Observing] = ()) -> None:
        self.routes: Sequence[Route] = routes
        #: Gets the event if none of the routes takes it.
        self.end: _End | _Sent = end
        self.first: Taking = routes[0] if routes else end
        #: The first route, or the fallback. None if there is neither.
        self.route: Route | None = routes[0] if routes else end.fallback
        self.observers: Sequence[Observing] = observers

    def candidates(self) -> Iterator[Route]:
        """Iterate over the routes and the fallback. Removed routes are left out, and replaced ones are replaced."""
        for route in self.routes:
            if (now := route.current) is not None:
                yield now
        if self.end.fallback is not None:
            yield self.end.fallback

    def rest(self, *, relayed: bool) -> Match:
        """Return the match without its first route. Removed routes are left out, and replaced ones are replaced."""
        left = [now for route in self.routes[1:] if (now := route.current) is not None]
        return Match(left, _Sent() if relayed else self.end)


# -- all routes --------------------------------------------------------------------------------------------------


class Routes:
    """The routes, observers and relays of one router."""

    def __init__(self, counts: Counts) -> None:
        # Routes by the canonical text of their pattern.
        self._routes: dict[str, Route] = {}
        self._index: Index[Route] = Index()
        self._observers: Index[Observing] = Index()
        # Relays, in the order of registration. There are only a few, so we don't index them.
        self._relays: list[Route] = []
        self._end = _End(counts)
        # Removed routes that still have events.
        self._leaving: list[Route] = []
        self._counts = counts
        #: Called when the registrations have changed.
        self.changed: Callable[[], None] = Part().changed
        #: The match of each known topic.
        self.known: Matches = Matches(self._find)

    def _forget(self) -> None:
        self.known.forget()
        self.changed()

    def __len__(self) -> int:
        return len(self._routes)

    def __iter__(self) -> Iterator[Route]:
        """Iterate over the routes, sorted by pattern."""
        return iter(sorted(self._routes.values(), key=lambda route: route.text))

    def all(self) -> Iterator[Route]:
        """Iterate over everything that may have events: routes, relays, observers, the fallback, and removed routes."""
        yield from self._routes.values()
        yield from self._relays
        yield from self.observers()
        yield from self._leaving
        if self.fallback is not None:
            yield self.fallback

    @property
    def fallback(self) -> Fallback | None:
        """The route for events that no other route takes."""
        return self._end.fallback

    def match(self, event: Topical) -> Match:
        """Return the match of the topic of ``event``.

        Raises:
            InvalidTopic: if the topic is not a string, is empty or too long, or has too many segments.
            TypeError: if the object has no topic.
        """
        try:
            topic = event.topic
        except AttributeError:
            raise TypeError(f"{event!r} is not an event: it has no topic; use Event(topic, data)") from None
        # An object that is not a string may be unhashable.
        return self.known[topic if type(topic) is str else _checked(topic)]

    def _find(self, topic: str) -> Match:
        routes = self._index.find(topic)
        if len(routes) > 1:
            routes.sort(key=_rank)
        if self._relays:
            routes[:0] = [relay for relay in self._relays if relay.pattern.matches(topic)]
        observers = self._observers.find(topic)
        if len(observers) > 1:
            observers.sort(key=_rank)
        return Match(routes, self._end, observers)

    # -- registration ------------------------------------------------------------------------------------------------

    def check_free(self, route: Route, *, replace: bool) -> Route | None:
        """Return the route that ``route`` would replace.

        Raises:
            RouteConflict: if such a route exists and ``replace`` is false.
        """
        old = self._routes.get(route.pattern.canonical)
        if old is not None and not replace:
            raise RouteConflict(
                f"{route.text!r} registered at {_at(route)} conflicts with {old.text!r} registered at "
                f"{_at(old)}: they match the same topics. Remove one of them, or pass replace=True"
            )
        return old

    def add(self, route: Route, *, replace: bool) -> None:
        """Register ``route``.

        Raises:
            RouteConflict: if the pattern is taken and ``replace`` is false.
        """
        old = self.check_free(route, replace=replace)
        if old is not None:
            self.remove(old.pattern, successor=route)
        self._routes[route.pattern.canonical] = route
        self._index.add(route.pattern, route)
        self._forget()

    def remove(self, pattern: Pattern, successor: Route | None = None) -> Route:
        """Remove the route for ``pattern`` or for an equivalent pattern.

        Raises:
            RouteNotFound: if the pattern has no route.
        """
        route = self._routes.pop(pattern.canonical, None)
        if route is None:
            raise RouteNotFound(f"no route is registered for {pattern.text!r}; router.routes() lists all routes")
        self._index.remove(route.pattern, route)
        route.successor = successor
        self._let_go(route)
        return route

    def _let_go(self, route: Route) -> None:
        self._forget()
        route.remove()
        self._leaving.append(route)
        self._forget_finished()

    def keep(self, route: Route) -> None:
        """Keep a route that was removed while an event was on its way to it."""
        if route not in self._leaving:
            self._leaving.append(route)

    def _forget_finished(self) -> None:
        unfinished: list[Route] = []
        for route in self._leaving:
            if route.has_events:
                unfinished.append(route)
            else:
                self._counts.take_over(route)
                route.forget_lane()
        self._leaving = unfinished

    def count(self, what: str) -> int:
        """Return how many events were ``"routed"``, ``"handled"``, ``"failed"`` or ``"dropped"``."""
        self._forget_finished()
        counts: list[int] = [getattr(each, what) for each in (self._counts, *self.all())]
        return sum(counts)

    def set_fallback(self, fallback: Fallback) -> None:
        """Register the fallback, and remove the old one."""
        old, self._end.fallback = self.fallback, fallback
        self._forget()
        if old is not None:
            self._let_go(old)

    def add_relay(self, relay: Route) -> None:
        """Register a relay, which gets matching events before any route."""
        self._relays.append(relay)
        self._forget()

    def remove_relay(self, relay: Route) -> None:
        """Remove a relay. If it is not registered, do nothing."""
        if relay in self._relays:
            self._relays.remove(relay)
            self._let_go(relay)

    def add_observer(self, pattern: Pattern, observer: Observing) -> None:
        """Register an observer. Several may share a pattern."""
        self._observers.add(pattern, observer)
        self._forget()

    def remove_observer(self, pattern: Pattern, observer: Observing) -> None:
        """Remove an observer. If it is not registered, do nothing."""
        if not self._observers.remove(pattern, observer):
            return
        self._forget()
        if isinstance(observer, Route):
            self._let_go(observer)

    def observers(self) -> list[Route]:
        """Return the observers with a lane, in the order of registration."""
        return [each for each in self._observers if isinstance(each, Route)]

    def wrap(self, middleware: Sequence[Middleware]) -> None:
        """Add ``middleware`` to every route, observer and fallback. If it cannot wrap one of them, change nothing."""
        check_middleware(middleware)
        routes = [*self._routes.values(), *self.observers(), *filter(None, [self.fallback])]
        for add in [route.prepare(middleware) for route in routes]:
            add()


class Matches(dict[str, Match]):
    """The match of each known topic. This is the only cache.

    Once it is full, the matches are set aside, and those that are not used again before the next time are forgotten.
    Therefore, a flood of topics that occur once does not evict those that recur.

    This is a dict subclass to keep `Router.emit` fast: a known topic costs one look-up, and no call.
    """

    __slots__ = ("_find", "aside")

    def __init__(self, find: Callable[[str], Match]) -> None:
        super().__init__()
        self._find = find
        #: The matches that were set aside.
        self.aside: dict[str, Match] = {}

    def __missing__(self, topic: str) -> Match:
        # A topic with fewer than MAX_SEGMENTS characters cannot have MAX_SEGMENTS slashes, so the full check is
        # skipped.
        if type(topic) is not str or not MAX_SEGMENTS > len(topic) > 0:
            topic = _checked(topic)
        match = self.aside.get(topic) or self._find(topic)
        if len(self) >= _CACHED:
            self.aside = dict(self)
            self.clear()
        self[topic] = match
        return match

    def forget(self) -> None:
        """Forget all matches. Called whenever the registrations change."""
        self.clear()
        self.aside.clear()


class _Shape(Generic[T]):
    """The patterns whose literal segments are at the same places, by the text of these segments."""

    __slots__ = ("decides", "is_deep", "key", "size", "values")

    def __init__(self, size: int, places: tuple[int, ...], *, is_deep: bool, decides: bool) -> None:
        self.size = size
        self.is_deep = is_deep
        # True if a topic of the right size with these literals matches, so that there is nothing else to compare.
        self.decides = decides
        self.key: Callable[[Sequence[str]], Any] = itemgetter(*places) if places else lambda _: ()
        self.values: dict[Any, tuple[tuple[Pattern, T], ...]] = {}


class Index(Generic[T]):
    """Patterns and their values, to find the values whose patterns match a topic.

    The patterns are kept by shape. A look-up costs one step for each shape, of which there are few: ``device/*/error``
    and ``house/*/door`` have the same one.
    """

    def __init__(self) -> None:
        self._shapes: dict[Hashable, _Shape[T]] = {}

    def __iter__(self) -> Iterator[T]:
        """Iterate over the values."""
        for shape in self._shapes.values():
            for each in shape.values.values():
                yield from (value for _, value in each)

    def _place(self, pattern: Pattern) -> tuple[Hashable, _Shape[T], Any]:
        """Return the shape of ``pattern`` with its name, and the key of the pattern in that shape."""
        segments = pattern.segments
        deep = [at for at, each in enumerate(segments) if each is DEEP]
        head, tail = (segments[: deep[0]], segments[deep[-1] + 1 :]) if deep else (segments, ())
        places = (
            *(at for at, each in enumerate(head) if isinstance(each, Literal)),
            *(at - len(tail) for at, each in enumerate(tail) if isinstance(each, Literal)),
        )
        size, is_deep = len(segments) - len(deep), bool(deep)
        decides = len(deep) <= 1 and not any(isinstance(each, Wild) for each in segments)
        name = (size, places, is_deep, decides)
        shape = self._shapes.get(name)
        if shape is None:
            shape = self._shapes[name] = _Shape(size, places, is_deep=is_deep, decides=decides)
        return name, shape, shape.key([each.text for each in (*head, *tail)])

    def add(self, pattern: Pattern, value: T) -> None:
        """Add a value. A pattern may have several."""
        _, shape, key = self._place(pattern)
        shape.values[key] = (*shape.values.get(key, ()), (pattern, value))

    def remove(self, pattern: Pattern, value: T) -> bool:
        """Remove a value, and return whether it was there."""
        name, shape, key = self._place(pattern)
        values = shape.values.pop(key, ())
        left = tuple(each for each in values if each[1] is not value)
        if left:
            shape.values[key] = left
        elif not shape.values:
            del self._shapes[name]
        return len(left) < len(values)

    def find(self, topic: str) -> list[T]:
        """Return the values of all patterns that match ``topic``."""
        found: list[T] = []
        parts = topic.split("/")
        size = len(parts)
        for shape in self._shapes.values():
            if size == shape.size or (shape.is_deep and size > shape.size):
                for pattern, value in shape.values.get(shape.key(parts), ()):
                    if shape.decides or pattern.matches(topic):
                        found.append(value)
        return found


def _rank(route: Route | Observing) -> tuple[tuple[int, ...], str]:
    return route.pattern.rank


def _at(route: Route) -> str:
    return "{}:{}".format(*route.place)


def _checked(topic: object) -> str:
    """Return ``topic`` as a plain string, or raise InvalidTopic if it is not a valid topic."""
    if not isinstance(topic, str):
        raise InvalidTopic(f"an event's topic must be a string such as 'file/modified', got {topic!r:.100}")
    if not topic:
        raise InvalidTopic("an event's topic must not be empty; use one such as 'file/modified'")
    if len(topic) > MAX_TOPIC:
        raise InvalidTopic(
            f"the topic {topic[:40]!r}… has {len(topic):,} characters; the maximum is {MAX_TOPIC}; "
            "put long values into the event's data"
        )
    if topic.count("/") >= MAX_SEGMENTS:
        raise InvalidTopic(
            f"the topic {topic[:40]!r}… has {topic.count('/') + 1:,} segments; the maximum is {MAX_SEGMENTS}; "
            "put a deep path into the event's data"
        )
    # We don't use str(topic), because it returns the name of an enum member instead of its value.
    return str.__str__(topic)

"""Which routes a topic comes to: registration with its conflicts, resolution with its caches.

An exact route beats every glob; between globs the more specific one wins (`Pattern.rank`). Resolved topics are kept:
those that have an exact route in a dictionary, which they cannot outgrow, the others in a least-recently-used cache,
so that a flood of topics that come once leaves the ones that come again where they are.
"""

from __future__ import annotations

import functools
import inspect
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lifecycle._util import name_of
from lifecycle.control.index import Index
from lifecycle.control.lanes import Busy
from lifecycle.control.patterns import MAX_SEGMENTS, Pattern
from lifecycle.errors import InvalidTopic, NotHandled, RouteConflict, RouteNotFound
from lifecycle.events import topics_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Iterable, Sequence

    from lifecycle.control.debouncing import Window
    from lifecycle.control.lanes import Lane
    from lifecycle.control.taps import Relay, Tap
    from lifecycle.control.types import AsyncHandler, Handler, Middleware
    from lifecycle.events import Topical

__all__ = [
    "MAX_TOPIC",
    "Chain",
    "Place",
    "Plan",
    "Relayed",
    "Route",
    "RouteInfo",
    "Table",
    "as_async",
    "as_pattern",
    "caller",
    "wrap",
]


class Relayed(NotHandled):
    """Raised for a relay that took an event and lets it go on; never seen outside this room."""


class Plan:
    """What a topic comes to: its relays, its routes, the most specific first, and the taps that look on."""

    __slots__ = ("_steps", "call", "first", "relayed", "routes", "taps", "was_relayed")

    def __init__(
        self,
        routes: tuple[Route, ...],
        taps: tuple[Tap, ...] = (),
        relays: tuple[Route, ...] = (),
        *,
        was_relayed: bool = False,
    ) -> None:
        self.routes: tuple[Route, ...] = routes
        self._steps = relays + routes
        self.first: Route | None = self._steps[0] if self._steps else None
        self.taps: tuple[Tap, ...] = taps
        # Whether somebody has the event already, so that it is handled though no route wants it.
        self.was_relayed: bool = was_relayed
        # The same for an event that a relay has taken.
        self.relayed: Final = Plan(routes, relays=relays, was_relayed=True) if relays and not was_relayed else self
        # How `Router.dispatch` begins: the taps look on, then the first route is called.
        self.call: AsyncHandler = _without_route if self.first is None else self.first.call
        if taps:
            self.call = _tapped(self.call, taps)

    def after(self, route: Route) -> Route | None:
        """The next relay or route after ``route``; one that was replaced since is represented by its replacement."""
        latest, is_later = route if route.successor is None else route.latest, False
        for step in self._steps:
            now = step if step.successor is None else step.latest
            if is_later and not now.is_retired:
                return now
            is_later = is_later or now is latest
        return None


async def _without_route(event: Any) -> None:
    raise NotHandled(f"no route matches {event.topic!r}; router.routes() lists those that are there")


def _tapped(call: AsyncHandler, taps: tuple[Tap, ...]) -> AsyncHandler:
    async def seen_first(event: Any) -> None:
        for tap in taps:
            await tap.look(event)
        await call(event)

    return seen_first


@dataclass(frozen=True, slots=True)
class RouteInfo:
    """What can be seen of a route; the counts are of events that came through its lane."""

    pattern: str
    handler: str
    lane: str
    busy: str
    #: Events that were given to it, those merged into a window among them.
    routed: int
    #: Calls that returned.
    handled: int
    #: Calls that raised.
    failed: int
    #: Events that were given up.
    dropped: int
    #: Where it was registered.
    place: str
    #: Seconds that its window waits for a burst to end; None: it has no window.
    debounce: float | None = None
    #: Bursts that its window holds now.
    held: int = 0


class Route:
    """One pattern and its handler, inside its middleware."""

    __slots__ = (
        "_plan",
        "busy",
        "call",
        "chain",
        "concurrency",
        "dropped",
        "failed",
        "handled",
        "handler",
        "is_fallback",
        "is_plain",
        "is_retired",
        "is_tap",
        "lane",
        "pattern",
        "place",
        "routed",
        "successor",
        "text",
        "window",
    )

    def __init__(
        self,
        pattern: Pattern,
        handler: Handler,
        middleware: Iterable[Middleware],
        place: Place,
        concurrency: int = 1,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency={concurrency!r} would never run a handler; give 1 or more")
        self.pattern: Pattern = pattern
        self.text: str = pattern.text
        self.handler: Handler = handler
        self.place: Place = place
        # The handler inside this route's own middleware, to be wrapped in the router's.
        self.call: AsyncHandler = wrap(as_async(handler), middleware)
        self.chain: Chain | None = None
        self._plan: Plan | None = None
        # One of its own is made for the first event: most of ten thousand routes never see one.
        self.lane: Lane | None = None
        self.busy: Busy = Busy.QUEUE
        self.concurrency: int = concurrency
        self.window: Window | None = None
        # Whether its way is a queue and nothing else; decided when it is registered.
        self.is_plain: bool = True
        # Whether it has what nobody takes.
        self.is_fallback: bool = False
        # Whether it was removed, and only works off what it had accepted.
        self.is_retired: bool = False
        # The route that replaced it.
        self.successor: Route | None = None
        # Whether it only looks on: what it sees is no delivery of its own to others.
        self.is_tap: bool = False
        self.routed: int = 0
        self.handled: int = 0
        self.failed: int = 0
        self.dropped: int = 0

    def __repr__(self) -> str:
        return f"<Route {self.text!r} to {name_of(self.handler)}>"

    @property
    def latest(self) -> Route:
        """The route that stands for this one now: itself, or the last in the chain of its replacements."""
        route = self
        while route.successor is not None:
            route = route.successor
        return route

    def alone(self) -> Plan:
        """What a topic comes to that matches nothing else: one plan for all such topics."""
        if self._plan is None:
            self._plan = Plan((self,))
        return self._plan

    def add_middleware(self, middleware: Iterable[Middleware]) -> None:
        """Wrap the router's middleware around the handler, inside what came earlier."""
        self.chain = self.chain or Chain(self.call)
        self.chain.add(middleware)
        self.call = self.chain.call
        self._plan = None

    def info(self) -> RouteInfo:
        """What can be seen of it now."""
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
            debounce=None if self.window is None else self.window.wait,
            held=0 if self.window is None else len(self.window),
        )


#: File and line.
Place: TypeAlias = tuple[str, int]


def caller() -> Place:
    """The place outside this room that is registering something."""
    frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # inspect.stack reads source files
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("lifecycle.control"):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


#: Marks a plain function that always returns an awaitable, so that it is not wrapped once more.
_AWAITABLE = "returns_awaitable"


def as_async(handler: Handler) -> AsyncHandler:
    """``handler`` as something to await; an ``async def`` is returned as it is.

    Raises:
        TypeError: for what is no callable of one argument.
    """
    if getattr(handler, _AWAITABLE, False):
        return handler
    _check(handler)
    if inspect.iscoroutinefunction(handler):
        return handler
    return _method(handler) or _awaiting(handler)


def _method(handler: Handler) -> AsyncHandler | None:
    """The async method of an object that is called like a function: awaiting it is faster than the object."""
    # Of a class it would be the function of its instances.
    method = None if isinstance(handler, type) else getattr(handler, "__call__", None)  # noqa: B004
    return method if inspect.iscoroutinefunction(method) else None


def _check(handler: Handler) -> None:
    if not callable(handler):
        raise TypeError(f"{handler!r} is no handler: give a function of one argument, the event")
    if inspect.isasyncgenfunction(handler) or inspect.isgeneratorfunction(handler):
        raise TypeError(f"{name_of(handler)} is a generator and would never run: a handler has no `yield`")
    try:
        signature = inspect.signature(handler)
    except ValueError:  # some callables written in C have none
        return
    try:
        signature.bind(None)
    except TypeError:
        raise TypeError(
            f"{name_of(handler)}{signature} is no handler: it must be callable with one argument, the event"
        ) from None


def _awaiting(handler: Handler) -> AsyncHandler:
    """A plain function, called where it is awaited; what it returns is awaited too if it can be."""

    @functools.wraps(handler, updated=())
    async def call(event: Any) -> None:
        result = handler(event)
        if result is not None and inspect.isawaitable(result):
            await result

    return call


def wrap(handler: AsyncHandler, middleware: Iterable[Middleware]) -> AsyncHandler:
    """``handler`` inside ``middleware``, the first of which is the outermost."""
    for each in reversed(tuple(middleware)):
        wrapped = each(handler)
        if not callable(wrapped):
            raise TypeError(f"middleware {name_of(each)} returned {wrapped!r}; it must return a handler")
        handler = as_async(wrapped)
    return handler


class Chain:
    """A handler inside middleware that keeps coming: each wraps it exactly once, the latest comer the closest.

    What a middleware remembers (`once` does) therefore lives as long as the route.
    """

    __slots__ = ("_handler", "_seat", "call")

    def __init__(self, handler: AsyncHandler) -> None:
        self.call: AsyncHandler = handler
        self._handler = handler
        # Puts a handler where the innermost middleware looks for its next.
        self._seat: Callable[[AsyncHandler], None] | None = None

    def add(self, middleware: Iterable[Middleware]) -> None:
        """Wrap ``middleware`` around the handler, inside what is wrapped around it already."""
        enter, seat = _seat(self._handler)
        wrapped = wrap(enter, middleware)
        if self._seat is None:
            self.call = wrapped
        else:
            self._seat(wrapped)
        self._seat = seat


def _seat(handler: AsyncHandler) -> tuple[AsyncHandler, Callable[[AsyncHandler], None]]:
    """A handler that calls another, which can be exchanged."""

    @functools.wraps(handler, updated=())
    def enter(event: Any) -> Awaitable[Any]:
        return handler(event)

    setattr(enter, _AWAITABLE, True)

    def exchange(other: AsyncHandler) -> None:
        nonlocal handler
        handler = other

    return enter, exchange


#: The longest topic, in characters: what is cached is bounded in number, and so it is in size.
MAX_TOPIC = 1024

#: Resolved topics that are kept, besides those of exact routes.
_CACHED = 4096


#: A plan behind its ``call``: `Router.dispatch` unpacks the two faster than it looks the attribute up.
_Entry: TypeAlias = "tuple[AsyncHandler, Plan]"


def as_pattern(pattern: str | Pattern | type[Topical]) -> Pattern:
    """A pattern from its text, or from an event class, which stands for the topics of its events.

    Raises:
        InvalidPattern: for a text that cannot be read.
        TypeError: for a function, and for a class that does not define the topics of its events.
    """
    if isinstance(pattern, Pattern):
        return pattern
    if callable(pattern) and not isinstance(pattern, type):
        raise TypeError(
            f"expected a pattern, got the function {name_of(pattern)}; "
            "a decorator takes the pattern in parentheses: @router.on('file/*')"
        )
    return Pattern(topics_of(pattern) if isinstance(pattern, type) else pattern)


class Table:
    """The routes and taps of one router."""

    def __init__(self) -> None:
        # Routes by pattern text; those of exact patterns also by topic, the others in the tree.
        self.routes: dict[str, Route] = {}
        self._exact: dict[str, Route] = {}
        self._globs: Index[Route] = Index()
        # Taps by pattern text, in the order they came; several may share a pattern.
        self._taps: dict[str, list[Tap]] = {}
        self._tap_globs: Index[list[Tap]] = Index()
        # Relays, in the order they came; there are few.
        self._relays: list[Relay] = []
        self._cold = functools.lru_cache(_CACHED)(self._plan)
        #: The plan of each topic; those of topics with an exact route are kept here, so far as they have come by.
        self.hot: Final = _Plans(self._exact, self._cold, self._plan)

    def __len__(self) -> int:
        return len(self.routes)

    # -- registration ------------------------------------------------------------------------------------------

    def add(self, route: Route, *, replace: bool) -> Route | None:
        """Register ``route``; the one that it replaces is returned.

        Raises:
            RouteConflict: when the pattern is taken and ``replace`` is false.
        """
        old = self.check_free(route, replace=replace)
        if old is not None:
            self.remove(old.pattern)
        pattern = route.pattern
        self.routes[pattern.text] = route
        if pattern.is_exact:
            self._exact[pattern.topic] = route
        else:
            self._globs.add(pattern, route)
        self.forget()
        return old

    def check_free(self, route: Route, *, replace: bool) -> Route | None:
        """The route that ``route`` would replace.

        Raises:
            RouteConflict: when there is one and ``replace`` is false.
        """
        old = self._same(route.pattern)
        if old is not None and not replace:
            raise RouteConflict(
                f"{route.text!r} registered at {_at(route)} conflicts with {old.text!r} registered at "
                f"{_at(old)}: they are the same pattern. Remove one, or say replace=True"
            )
        return old

    def _same(self, pattern: Pattern) -> Route | None:
        """The route of that pattern; quoted or not, an exact one is the same as another of its topic."""
        return self._exact.get(pattern.topic) if pattern.is_exact else self.routes.get(pattern.text)

    def remove(self, pattern: Pattern) -> Route:
        """Take out the route of ``pattern``.

        Raises:
            RouteNotFound: when there is none.
        """
        route = self._same(pattern)
        if route is None:
            raise RouteNotFound(f"no route is registered under {pattern.text!r}; router.routes() lists those that are")
        del self.routes[route.text]
        if route.pattern.is_exact:
            del self._exact[route.pattern.topic]
        else:
            self._globs.remove(route.pattern)
        self.forget()
        return route

    def add_tap(self, tap: Tap) -> None:
        """Let ``tap`` look on."""
        taps = self._taps.setdefault(tap.pattern.text, [])
        taps.append(tap)
        self._tap_globs.add(tap.pattern, taps)
        self.forget()

    def remove_tap(self, tap: Tap) -> None:
        """Let ``tap`` look no longer; nothing happens if it does not."""
        taps = self._taps.get(tap.pattern.text, [])
        if tap in taps:
            taps.remove(tap)
            if not taps:
                del self._taps[tap.pattern.text]
                self._tap_globs.remove(tap.pattern)
            self.forget()

    def add_relay(self, relay: Relay) -> None:
        """Let ``relay`` have what it matches before any route."""
        self._relays.append(relay)
        self.forget()

    def remove_relay(self, relay: Relay) -> None:
        """Give ``relay`` nothing more; nothing happens if it is not there."""
        if relay in self._relays:
            self._relays.remove(relay)
            self.forget()

    def taps(self) -> list[Tap]:
        """Who looks on, sorted by pattern."""
        return [tap for _, taps in sorted(self._taps.items()) for tap in taps]

    def wrap(self, middleware: Sequence[Middleware]) -> None:
        """Put ``middleware`` around every route."""
        for each in middleware:
            as_async(each)
        for route in self.routes.values():
            route.add_middleware(middleware)
        self.forget()

    def forget(self) -> None:
        """Resolve every topic anew: something was registered."""
        self.hot.clear()
        self._cold.cache_clear()

    # -- resolution --------------------------------------------------------------------------------------------

    def plan(self, event: Topical) -> Plan:
        """What ``event`` comes to; a plan without routes if nobody wants it.

        Raises:
            InvalidTopic: for a topic that is no string, is empty or too long, or has too many segments.
            TypeError: for what has no topic.
        """
        try:
            topic = event.topic
        except AttributeError:
            raise TypeError(f"{event!r} is no event: it has no topic; use Event(topic, data)") from None
        # What is not a string may not even have a hash.
        return self.hot[topic if type(topic) is str else _checked(topic)][1]

    def _plan(self, topic: str) -> _Entry:
        routes = self._globs.find(topic)
        if len(routes) == 1 and not self._taps and not self._relays and topic not in self._exact:
            plan = routes[0].alone()
            return plan.call, plan
        routes.sort(key=_rank)
        if topic in self._exact:
            routes.insert(0, self._exact[topic])
        taps = tuple(tap for taps in self._tap_globs.find(topic) for tap in taps) if self._taps else ()
        relays = tuple(relay.route for relay in self._relays if relay.pattern.matches(topic))
        plan = Plan(tuple(routes), taps, relays) if routes or taps or relays else _NOBODY
        return plan.call, plan

    def cached(self) -> tuple[int, int]:
        """How many look-ups the cache answered, and how many it did not (those of exact routes are not counted)."""
        info = self._cold.cache_info()
        return info.hits, info.misses


class _Plans(dict[str, "tuple[AsyncHandler, Plan]"]):
    """Plans by topic, each behind its first call; looking up one that is missing resolves it.

    A dictionary for the sake of `Router.dispatch`: catching a KeyError for each new topic would cost four handlers.
    """

    __slots__ = ("_cold", "_exact", "_make")

    def __init__(self, exact: Container[str], cold: Callable[[str], _Entry], make: Callable[[str], _Entry]) -> None:
        super().__init__()
        self._exact = exact
        self._cold = cold
        self._make = make

    def __missing__(self, topic: str) -> _Entry:
        # A topic that is shorter than the largest number of segments cannot have too many.
        if type(topic) is not str or not MAX_SEGMENTS > len(topic) > 0:
            topic = _checked(topic)
        if topic not in self._exact:
            return self._cold(topic)
        entry = self[topic] = self._make(topic)
        return entry


_NOBODY = Plan(())


def _rank(route: Route) -> tuple[tuple[int, ...], str]:
    return route.pattern.rank


def _at(route: Route) -> str:
    return "{}:{}".format(*route.place)


def _checked(topic: object) -> str:
    """A string of a subclass as a plain one; anything that is not a topic is refused."""
    if not isinstance(topic, str):
        raise InvalidTopic(f"the topic of an event must be a string such as 'file/modified', got {topic!r:.100}")
    if not topic:
        raise InvalidTopic("the topic of an event is empty; give one such as 'file/modified'")
    if len(topic) > MAX_TOPIC:
        raise InvalidTopic(
            f"the topic {topic[:40]!r}… has {len(topic):,} characters, and {MAX_TOPIC} is the most; "
            "put what is long into the event's data"
        )
    if topic.count("/") >= MAX_SEGMENTS:
        raise InvalidTopic(
            f"the topic {topic[:40]!r}… has {topic.count('/') + 1:,} segments, and {MAX_SEGMENTS} is the most; "
            "put a deep path into the event's data"
        )
    # Not str(topic): an enum's members answer with their name.
    return str.__str__(topic)

"""Routes, their registration, and a cached look-up of the routes that match a topic.

An exact route takes precedence over every glob, and a more specific glob over a less specific one (`Pattern.rank`). If
a topic has an exact route, its match is kept in a dictionary, whose size is bounded by the number of such routes. All
other matches are kept in a least-recently-used cache with a protected part, so that a flood of one-off topics does not
evict recurring topics.
"""

from __future__ import annotations

import functools
import inspect
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from lifecycle._async import is_async
from lifecycle._owners import Part
from lifecycle._util import name_of
from lifecycle.control.index import Index
from lifecycle.control.patterns import MAX_SEGMENTS, Pattern
from lifecycle.errors import InvalidTopic, LifecycleError, RouteConflict, RouteNotFound
from lifecycle.events.base import topics_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Iterable, Sequence

    from lifecycle.control.debouncing import Debouncer
    from lifecycle.control.records import RouteInfo
    from lifecycle.control.types import AsyncHandler, Handler, LaneKey, Middleware, RouteHandler
    from lifecycle.events import Topical

__all__ = [
    "MAX_TOPIC",
    "Busy",
    "Match",
    "Route",
    "RouteTable",
    "as_async",
    "as_pattern",
    "caller",
    "returns_middleware",
]

_F = TypeVar("_F", bound="Callable[..., Any]")

#: The maximum length of a topic in characters. Since the number of cached entries is limited, this limits the size of
#: the cache.
MAX_TOPIC = 1024

#: The maximum number of cached matches, not including the matches of exact routes.
_CACHED = 4096

#: Marks a plain function that returns an awaitable, so that it is not wrapped again.
_AWAITABLE = "_returns_awaitable"

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

#: A file and a line.
Place: TypeAlias = tuple[str, int]


# -- handlers and source locations -------------------------------------------------------------------------------


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


def as_async(handler: Handler) -> AsyncHandler:
    """Return ``handler`` as an async function. An ``async def`` is returned unchanged.

    Raises:
        TypeError: if ``handler`` is not a callable of one argument.
    """
    if not _is_marked(handler):
        _check(handler)
    return _as_async(handler)


def _is_marked(handler: Handler) -> bool:
    # Compare by identity, because middleware that uses `functools.wraps` copies the attribute.
    return getattr(handler, _AWAITABLE, _AWAITABLE) is handler


def _as_async(handler: Handler) -> AsyncHandler:
    if _is_marked(handler) or inspect.iscoroutinefunction(handler):
        return handler
    # Calling the async `__call__` method of an object is faster than calling the object. If the handler is a class, its
    # `__call__` is for its instances.
    method = None if isinstance(handler, type) else getattr(handler, "__call__", None)  # noqa: B004
    return method if inspect.iscoroutinefunction(method) else _awaiting(handler)


def _with_params(handler: RouteHandler, pattern: Pattern) -> Handler:
    """Return a function that calls ``handler`` with the event and with values for its parameters named in ``pattern``.

    Raises:
        TypeError: if ``handler`` cannot be called with the event and these names.
    """
    names = _check(handler, pattern)
    if not names:
        return handler
    call = functools.update_wrapper(_calling(handler, pattern, names), handler, updated=())
    # Otherwise, `inspect.signature(call)` would return the handler's parameters.
    del call.__wrapped__
    if is_async(handler):
        setattr(call, _AWAITABLE, call)
    return call


def _calling(handler: RouteHandler, pattern: Pattern, names: list[str]) -> Callable[[Any], Any]:
    match = pattern.search(names)

    def call(event: Any) -> Any:
        found = match(event.topic)
        if found is None:
            raise _mismatch(event, pattern, handler)
        return handler(event, **found.groupdict(""))

    def call_with_one(event: Any) -> Any:
        # This is the usual case. It costs half as much as passing keyword arguments.
        found = match(event.topic)
        if found is None:
            raise _mismatch(event, pattern, handler)
        return handler(event, found[1] or "")

    return call_with_one if names == _positional(handler) else call


def _positional(handler: RouteHandler) -> list[str]:
    """Return a list with the name of the second positional parameter, or an empty list if none exists."""
    parameters = list(inspect.signature(handler).parameters.values())[:2]
    return [each.name for each in parameters[1:] if all(one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters)]


def _mismatch(event: Topical, pattern: Pattern, handler: RouteHandler) -> LifecycleError:
    return LifecycleError(
        f"{event.topic!r} does not match {pattern.text!r}, so {name_of(handler)} cannot get its parameters; "
        "if middleware or `merge` replaces an event, use a matching topic for the new one"
    )


def _check(handler: RouteHandler, pattern: Pattern | None = None) -> list[str]:
    """Return the names of ``pattern`` that are parameters of ``handler``.

    Raises:
        TypeError: if ``handler`` cannot be called with the event and these names.
    """
    if not callable(handler):
        raise TypeError(f"{handler!r} is not a handler: expected a function with one argument, the event")
    if inspect.isasyncgenfunction(handler) or inspect.isgeneratorfunction(handler):
        raise TypeError(
            f"{name_of(handler)} is a generator function and would never run; a handler must not contain `yield`"
        )
    try:
        signature = inspect.signature(handler)
    except ValueError:  # some callables written in C have no signature
        return []
    names = [] if pattern is None else _declared(signature, pattern.names)
    try:
        signature.bind(None, **dict.fromkeys(names))
    except TypeError:
        told = f"{name_of(handler)}{signature} is not a handler{'' if pattern is None else f' of {pattern.text!r}'}"
        problem = _problem(list(signature.parameters.values()), pattern)
        raise TypeError(f"{told}: it must be callable with one argument, the event{problem}") from None
    return names


def _declared(signature: inspect.Signature, names: Sequence[str]) -> list[str]:
    """Return the ``names`` that the function accepts as keyword arguments."""
    parameters = signature.parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return list(names)
    by_name = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    return [name for name in names if name in by_name]


def _problem(parameters: list[inspect.Parameter], pattern: Pattern | None) -> str:
    """Explain why a function with several required parameters is not a valid handler."""
    names = () if pattern is None else pattern.names
    if parameters and parameters[0].name in names:
        first = parameters[0].name
        return f", so its first parameter cannot share the name {first!r} with the pattern; rename one of them"
    needed = [each.name for each in parameters[1:] if each.default is each.empty and each.kind not in _VARIABLE]
    missing = next((name for name in needed if name not in names), None)
    if missing is None:
        return ""
    if pattern is None:
        return "; to get values from a pattern, register the function itself with middleware= or debounce="
    return f"; the pattern does not name {missing}, so add a segment {{{missing}}}, or give the parameter a default"


def _awaiting(handler: Handler) -> AsyncHandler:
    """Wrap a plain function in an async function, which awaits the result if it is awaitable."""

    @functools.wraps(handler, updated=())
    async def call(event: Any) -> Any:
        result = handler(event)
        return await result if result is not None and inspect.isawaitable(result) else result

    return call


#: The functions of this library that take settings and return middleware.
_factories: Final[list[Callable[..., Any]]] = []


def returns_middleware(function: _F) -> _F:
    """Mark a function that takes settings and returns middleware, such as `recover`, and return it unchanged."""
    _factories.append(function)
    return function


def _refuse_factory(middleware: object) -> None:
    """Raise TypeError if the parentheses after a function such as `recover` are missing."""
    if any(middleware is each for each in _factories):
        name = name_of(middleware)
        raise TypeError(f"{name} takes settings and returns middleware; call it: {name}(…)")


def _wrap(handler: AsyncHandler, middleware: Iterable[Middleware]) -> AsyncHandler:
    """Wrap ``middleware`` around ``handler``. The first is the outermost."""
    for each in reversed(tuple(middleware)):
        _refuse_factory(each)
        wrapped = each(handler)
        if not callable(wrapped):
            raise TypeError(f"middleware {name_of(each)} returned {wrapped!r}; it must return a handler")
        handler = as_async(wrapped)
    return handler


def _replaceable(handler: AsyncHandler) -> tuple[AsyncHandler, Callable[[AsyncHandler], None]]:
    """Return a function that calls ``handler``, and a function that replaces ``handler``."""

    @functools.wraps(handler, updated=())
    def call(event: Any) -> Awaitable[Any]:
        return handler(event)

    setattr(call, _AWAITABLE, call)

    def replace(other: AsyncHandler) -> None:
        nonlocal handler
        handler = other

    return call, replace


def caller() -> Place:
    """Return the file and line of the nearest caller outside this package."""
    frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # inspect.stack reads source files
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("lifecycle.control"):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


class Busy(StrEnum):
    """The action for an event if its lane is already running as many handlers as its concurrency allows."""

    #: The event waits in the queue. If the queue is full, ``emit`` waits.
    QUEUE = "queue"
    #: The event is dropped.
    DROP = "drop"
    #: The route's oldest running handler is cancelled, and the event is handled next.
    RESTART = "restart"

    @classmethod
    def _missing_(cls, value: object) -> Busy:
        raise ValueError(f"busy={value!r} is unknown; use 'queue', 'drop' or 'restart'")


class Route:
    """A pattern and its handler, wrapped in middleware."""

    __slots__ = (
        "_handler",
        "_match",
        "_replace_innermost",
        "bound",
        "busy",
        "call",
        "concurrency",
        "debouncer",
        "dropped",
        "failed",
        "handled",
        "handler",
        "is_also",
        "is_direct",
        "is_fallback",
        "is_plain",
        "is_removed",
        "is_tap",
        "lane",
        "pattern",
        "place",
        "routed",
        "shared_lane",
        "successor",
        "text",
    )

    def __init__(
        self, pattern: Pattern, handler: RouteHandler, middleware: Iterable[Middleware] = (), concurrency: int = 1
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency={concurrency!r} would never run a handler; use 1 or more")
        self.pattern: Pattern = pattern
        self.text: str = pattern.text
        self.handler: RouteHandler = handler
        # The handler as a function that takes only the event.
        self.bound: Handler = _with_params(handler, pattern)
        self.place: Place = caller()
        # The handler wrapped in this route's own middleware, and then in the router's.
        self.call: AsyncHandler = _wrap(_as_async(self.bound), middleware)
        self._handler: AsyncHandler = self.call
        # A function that replaces the handler called by the router's innermost middleware.
        self._replace_innermost: Callable[[AsyncHandler], None] | None = None
        self._match: Match | None = None
        # The name of the lane. Routes with the same lane name share the lane.
        self.lane: str = self.text
        # The name or function that was passed as the lane.
        self.shared_lane: str | LaneKey | None = None
        self.busy: Busy = Busy.QUEUE
        self.concurrency: int = concurrency
        self.debouncer: Debouncer | None = None
        # True if events go directly into a queue. Set when the route is registered.
        self.is_plain: bool = True
        # True if the route gets the events that no other route has taken.
        self.is_fallback: bool = False
        # True if the route was removed and is finishing the events that it has accepted.
        self.is_removed: bool = False
        # The route that replaced this one.
        self.successor: Route | None = None
        # True if the route belongs to a tap. Deliveries to taps are not announced.
        self.is_tap: bool = False
        # True if the route belongs to a tap whose handler is a plain function. The emitter calls it directly.
        self.is_direct: bool = False
        # True if the route was registered with `Router.also`.
        self.is_also: bool = False
        self.routed: int = 0
        self.handled: int = 0
        self.failed: int = 0
        self.dropped: int = 0

    def __repr__(self) -> str:
        return f"<Route {self.text!r} to {name_of(self.handler)}>"

    @property
    def latest(self) -> Route:
        """The route currently registered for the pattern: this route, or the last of its replacements."""
        route = self
        while route.successor is not None:
            route = route.successor
        return route

    def alone(self) -> Match:
        """Return the match for topics that no other route matches. The match is created once."""
        if self._match is None:
            self._match = Match((self,))
        return self._match

    def add_middleware(self, middleware: Iterable[Middleware]) -> None:
        """Wrap the handler in more of the router's middleware, inside the router's earlier middleware.

        Each middleware wraps the handler exactly once. Any state that it keeps, as `once` does, therefore lasts as long
        as the route.
        """
        self.prepare_middleware(middleware)()

    def prepare_middleware(self, middleware: Iterable[Middleware]) -> Callable[[], None]:
        """Return a function that does the same as `add_middleware` and cannot fail."""
        innermost, replace = _replaceable(self._handler)
        wrapped = _wrap(innermost, middleware)

        def add() -> None:
            if self._replace_innermost is None:
                self.call = wrapped
            else:
                self._replace_innermost(wrapped)
            self._replace_innermost = replace
            self._match = None

        return add

    def info(self) -> RouteInfo:
        """Return the settings and counts of the route."""
        from lifecycle.control.records import RouteInfo

        return RouteInfo(
            pattern=self.text,
            handler=name_of(self.handler),
            lane=self.lane,
            busy=str(self.busy),
            routed=self.routed,
            handled=self.handled,
            failed=self.failed,
            dropped=self.dropped,
            place="{}:{}".format(*self.place),
            debounce=None if self.debouncer is None else self.debouncer.wait,
            held=0 if self.debouncer is None else len(self.debouncer),
            also=self.is_also,
        )


# -- matches -----------------------------------------------------------------------------------------------------


class Match:
    """The relays, routes and taps for a topic. The routes are sorted, most specific first."""

    __slots__ = ("_steps", "call", "first", "relayed", "routes", "taps", "was_relayed")

    def __init__(
        self,
        routes: tuple[Route, ...],
        taps: tuple[Route, ...] = (),
        relays: tuple[Route, ...] = (),
        *,
        was_relayed: bool = False,
    ) -> None:
        self.routes: tuple[Route, ...] = routes
        self.taps: tuple[Route, ...] = taps
        self._steps = relays + routes
        self.first: Route | None = self._steps[0] if self._steps else None
        # The first handler that a direct dispatch calls. None if there are taps to call before it, or no route matches.
        self.call: AsyncHandler | None = None if taps or self.first is None else self.first.call
        # True if a relay has received the event. The event is then considered handled even if no route takes it.
        self.was_relayed: bool = was_relayed
        # The same match for an event that a relay has received.
        self.relayed: Final = Match(routes, relays=relays, was_relayed=True) if relays and not was_relayed else self

    def after(self, route: Route) -> Route | None:
        """Return the relay or route that follows ``route``.

        Removed routes are skipped, and a replaced route's replacement is returned instead.
        """
        latest, is_later = route if route.successor is None else route.latest, False
        for step in self._steps:
            now = step if step.successor is None else step.latest
            if is_later and not now.is_removed:
                return now
            is_later = is_later or now is latest
        return None


class RouteTable:
    """The routes, taps and relays of one router."""

    def __init__(self) -> None:
        # Routes by the canonical text of their pattern. Routes with an exact pattern are also stored by topic, and all
        # others in the index.
        self.routes: dict[str, Route] = {}
        self._exact: dict[str, Route] = {}
        self._globs: Index[Route] = Index()
        # Taps by the canonical text of their pattern, in the order of registration.
        self._taps: dict[str, list[Route]] = {}
        self._tap_globs: Index[list[Route]] = Index()
        #: The routes registered with `Router.also`, in the order of registration. They are matched like taps.
        self.also: list[Route] = []
        # Relays, in the order of registration. There are only a few, so we don't index them.
        self.relays: list[Route] = []
        #: Called when the registrations have changed.
        self.changed: Callable[[], None] = Part().changed
        self._cold = functools.lru_cache(_CACHED)(self._resolve)
        #: Matches by topic. The matches of topics with an exact route are stored here after the first look-up.
        self.matches: Final = _Matches(self._exact, self._cold, self._resolve)

    def __len__(self) -> int:
        return len(self.routes) + len(self.also)

    # -- registration ------------------------------------------------------------------------------------------

    def add(self, route: Route, *, replace: bool) -> Route | None:
        """Register ``route``, and return the route that it replaces.

        Raises:
            RouteConflict: if the pattern is taken and ``replace`` is false.
        """
        old = self.check_free(route, replace=replace)
        if old is not None:
            self.remove(old.pattern)
            old.successor = route
        pattern = route.pattern
        self.routes[pattern.canonical] = route
        if pattern.is_exact:
            self._exact[pattern.topic] = route
        else:
            self._globs.add(pattern, route)
        self.forget()
        return old

    def check_free(self, route: Route, *, replace: bool) -> Route | None:
        """Return the route that ``route`` would replace.

        Raises:
            RouteConflict: if such a route exists and ``replace`` is false.
        """
        old = self.routes.get(route.pattern.canonical)
        if old is not None and not replace:
            raise RouteConflict(
                f"{route.text!r} registered at {_at(route)} conflicts with {old.text!r} registered at "
                f"{_at(old)}: they match the same topics. Remove one of them, or pass replace=True"
            )
        return old

    def remove(self, pattern: Pattern) -> Route:
        """Remove the route for ``pattern`` or for an equivalent pattern.

        Raises:
            RouteNotFound: if the pattern has no route.
        """
        route = self.routes.pop(pattern.canonical, None)
        if route is None:
            raise RouteNotFound(f"no route is registered for {pattern.text!r}; router.routes() lists all routes")
        if route.pattern.is_exact:
            del self._exact[route.pattern.topic]
        else:
            self._globs.remove(route.pattern)
        self.forget()
        return route

    def add_tap(self, tap: Route) -> None:
        """Register the route of a tap, or of `Router.also`. Several such routes may share a pattern."""
        taps = self._taps.setdefault(tap.pattern.canonical, [])
        taps.append(tap)
        if tap.is_also:
            self.also.append(tap)
        self._tap_globs.add(tap.pattern, taps)
        self.forget()

    def remove_tap(self, tap: Route) -> None:
        """Remove the route of a tap. If it is not registered, do nothing."""
        taps = self._taps.get(tap.pattern.canonical, [])
        if tap in taps:
            taps.remove(tap)
            if tap.is_also:
                self.also.remove(tap)
            if not taps:
                del self._taps[tap.pattern.canonical]
                self._tap_globs.remove(tap.pattern)
            self.forget()

    def taps(self) -> list[Route]:
        """Return the routes of all taps, sorted by pattern."""
        taps = [tap for taps in self._taps.values() for tap in taps if not tap.is_also]
        return sorted(taps, key=lambda tap: tap.text)

    def name_also(self, route: Route) -> None:
        """Give a route registered with `Router.also` its own lane and a unique name, such as ``a/* (also audit)``."""
        taken = {each.text for each in self.also}
        base = f"{route.pattern.text} (also {name_of(route.handler).rpartition('.')[2]}"
        names = (f"{base})", *(f"{base} {number})" for number in range(2, len(taken) + 2)))
        route.is_also = True
        route.text = route.lane = next(name for name in names if name not in taken)

    def add_relay(self, relay: Route) -> None:
        """Register a relay, which gets matching events before any route."""
        self.relays.append(relay)
        self.forget()

    def remove_relay(self, relay: Route) -> bool:
        """Remove a relay, and return whether it was registered."""
        if relay not in self.relays:
            return False
        self.relays.remove(relay)
        self.forget()
        return True

    def wrap(self, middleware: Sequence[Middleware], fallback: Route | None) -> None:
        """Add ``middleware`` to every route and to ``fallback``. If it cannot wrap one of them, change nothing."""
        for each in middleware:
            _refuse_factory(each)
            as_async(each)
        routes = (*self.routes.values(), *self.also, *([] if fallback is None else [fallback]))
        for add in [route.prepare_middleware(middleware) for route in routes]:
            add()
        self.forget()

    def forget(self) -> None:
        """Clear the cached matches. Called whenever the registrations change."""
        self.matches.clear()
        self._cold.cache_clear()
        self.changed()

    # -- resolution --------------------------------------------------------------------------------------------

    def match(self, event: Topical) -> Match:
        """Return the match for the event's topic. It has no routes if no pattern matches.

        Raises:
            InvalidTopic: if the topic is not a string, is empty or too long, or has too many segments.
            TypeError: if the object has no topic.
        """
        try:
            topic = event.topic
        except AttributeError:
            raise TypeError(f"{event!r} is not an event: it has no topic; use Event(topic, data)") from None
        # An object that is not a string may be unhashable.
        return self.matches[topic if type(topic) is str else _checked(topic)]

    def _resolve(self, topic: str) -> Match:
        routes = self._globs.find(topic)
        if len(routes) == 1 and not self._taps and not self.relays and topic not in self._exact:
            return routes[0].alone()
        routes.sort(key=_rank)
        if topic in self._exact:
            routes.insert(0, self._exact[topic])
        taps = tuple(tap for taps in self._tap_globs.find(topic) for tap in taps) if self._taps else ()
        relays = tuple(relay for relay in self.relays if relay.pattern.matches(topic))
        return Match(tuple(routes), taps, relays) if routes or taps or relays else _NO_MATCH

    def cached(self) -> tuple[int, int]:
        """Return the cache's hits and misses. Topics with an exact route do not use the cache."""
        info = self._cold.cache_info()
        return info.hits, info.misses


class _Matches(dict[str, Match]):
    """Matches by topic. Looking up a missing topic resolves it.

    This is a dict subclass to keep `Router.dispatch` fast: catching a KeyError for each new topic would cost as much as
    calling four handlers.
    """

    __slots__ = ("_cold", "_exact", "_resolve")

    def __init__(self, exact: Container[str], cold: Callable[[str], Match], resolve: Callable[[str], Match]) -> None:
        super().__init__()
        self._exact = exact
        self._cold = cold
        self._resolve = resolve

    def __missing__(self, topic: str) -> Match:
        # A topic with fewer than MAX_SEGMENTS characters cannot have MAX_SEGMENTS slashes, so the full check is
        # skipped.
        if type(topic) is not str or not MAX_SEGMENTS > len(topic) > 0:
            topic = _checked(topic)
        if topic not in self._exact:
            return self._cold(topic)
        match = self[topic] = self._resolve(topic)
        return match


_NO_MATCH = Match(())


def _rank(route: Route) -> tuple[tuple[int, ...], str]:
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

"""Which routes a topic comes to: registration with its conflicts, resolution with its caches.

An exact route beats every glob; between globs the more specific one wins (`Pattern.rank`). Resolved topics are kept:
those that have an exact route in a dictionary, which they cannot outgrow, the others in a least-recently-used cache,
so that a flood of topics that come once leaves the ones that come again where they are.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, TypeAlias

from lifecycle._util import name_of
from lifecycle.control.composing import as_async
from lifecycle.control.index import Index
from lifecycle.control.patterns import MAX_SEGMENTS, Pattern
from lifecycle.control.plans import Plan
from lifecycle.errors import InvalidTopic, RouteConflict, RouteNotFound
from lifecycle.events import topics_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from lifecycle.control.relays import Relay
    from lifecycle.control.routes import Route
    from lifecycle.control.taps import Tap
    from lifecycle.control.types import AsyncHandler, Middleware
    from lifecycle.events import Topical

__all__ = ["MAX_TOPIC", "Table", "as_pattern"]

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

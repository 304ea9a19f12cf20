"""A pattern and its handler, what an event's topic comes to, and what can be seen of both."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from lifecycle.control.composing import Chain, as_async, name_of, wrap
from lifecycle.control.lanes import Busy
from lifecycle.errors import Dropped, NotHandled

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lifecycle.control.lanes import Lane
    from lifecycle.control.patterns import Pattern
    from lifecycle.control.taps import Tap
    from lifecycle.control.types import AsyncHandler, Handler, Middleware
    from lifecycle.control.windows import Window

__all__ = ["Place", "Plan", "Relayed", "Route", "RouteInfo", "RouterState", "caller"]


class Relayed(NotHandled):
    """Raised for a relay that took an event and lets it go on; never seen outside this room."""


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
        self.pattern = pattern
        self.text = pattern.text
        self.handler = handler
        self.place = place
        # The handler inside this route's own middleware, to be wrapped in the router's.
        self.call: AsyncHandler = wrap(as_async(handler), middleware)
        self.chain: Chain | None = None
        self._plan: Plan | None = None
        # One of its own is made for the first event: most of ten thousand routes never see one.
        self.lane: Lane | None = None
        self.busy = Busy.QUEUE
        self.concurrency = concurrency
        self.window: Window | None = None
        # Whether its way is a queue and nothing else; decided when it is registered.
        self.is_plain = True
        # Whether it has what nobody takes, or was removed and only works off what it had accepted.
        self.is_fallback = self.is_retired = False
        # Whether it only looks on: what it sees is no delivery of its own to others.
        self.is_tap = False
        self.routed = self.handled = self.failed = self.dropped = 0

    def __repr__(self) -> str:
        return f"<Route {self.text!r} to {name_of(self.handler)}>"

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
        self.routes = routes
        self._steps = relays + routes
        self.first = self._steps[0] if self._steps else None
        self.taps = taps
        # Whether somebody has the event already, so that it is handled though no route wants it.
        self.was_relayed = was_relayed
        # The same for an event that a relay has taken.
        self.relayed = Plan(routes, relays=relays, was_relayed=True) if relays and not was_relayed else self
        # The direct way, for `Router.dispatch`: compiled here, with nothing in it that this topic does not need.
        self.call: AsyncHandler = _direct(routes)
        for relay in reversed(relays):
            self.call = _relaying(relay.call, self.call)
        if taps:
            self.call = _tapped(self.call, taps)

    def after(self, route: Route) -> Route | None:
        """Who is next, of those that are still there: another relay, or the next most specific route."""
        if route not in self._steps:
            return None
        later = self._steps[self._steps.index(route) + 1 :]
        return next((each for each in later if not each.is_retired), None)


def _direct(routes: tuple[Route, ...]) -> AsyncHandler:
    if not routes:
        return _nobody
    call = routes[-1].call
    for route in reversed(routes[:-1]):
        call = _falling(route.call, call)
    return call


async def _nobody(event: Any) -> None:
    raise NotHandled(f"no route matches {event.topic!r}; router.routes() lists those that are there")


def _falling(first: AsyncHandler, second: AsyncHandler) -> AsyncHandler:
    async def first_or_next(event: Any) -> None:
        try:
            await first(event)
        except Dropped:
            raise
        except NotHandled:
            await second(event)

    return first_or_next


def _relaying(first: AsyncHandler, second: AsyncHandler) -> AsyncHandler:
    async def relay_and_go_on(event: Any) -> None:
        taken = False
        try:
            await first(event)
        except Relayed:
            taken = True
        except Dropped:
            raise
        except NotHandled:
            pass
        else:
            return
        try:
            await second(event)
        except NotHandled as error:
            if isinstance(error, Dropped) or not taken:
                raise

    return relay_and_go_on


def _tapped(call: AsyncHandler, taps: tuple[Tap, ...]) -> AsyncHandler:
    async def seen_first(event: Any) -> None:
        for tap in taps:
            await tap.look(event)
        await call(event)

    return seen_first


#: File and line.
Place: TypeAlias = tuple[str, int]


def caller() -> Place:
    """The place outside this room that is registering something."""
    frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # inspect.stack reads source files
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("lifecycle.control"):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno

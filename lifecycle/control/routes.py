"""What was registered: a pattern and its handler inside middleware, and what can be seen of both."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from lifecycle._util import name_of
from lifecycle.control.composing import Chain, as_async, wrap
from lifecycle.control.lanes import Busy
from lifecycle.control.plans import Plan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lifecycle.control.lanes import Lane
    from lifecycle.control.patterns import Pattern
    from lifecycle.control.types import AsyncHandler, Handler, Middleware
    from lifecycle.control.windows import Window

__all__ = ["Place", "Route", "RouteInfo", "caller"]


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

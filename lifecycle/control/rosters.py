"""Which routes and lanes a router has to care for, those among them that were removed and still have work to end.

How events move through them stands in ``traffic``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle.control.patterns import Pattern
from lifecycle.control.routes import Route, caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lifecycle.control.lanes import Lane
    from lifecycle.control.table import Table
    from lifecycle.control.types import Handler, Middleware

__all__ = ["Roster"]


class Roster:
    """Every route and lane of one router that may have something under way, and the counts of all that ever were."""

    def __init__(self, table: Table, new_lane: Callable[[str, int], Lane]) -> None:
        self._table = table
        self._new_lane = new_lane
        #: Has what nobody takes.
        self.fallback: Route | None = None
        #: Lanes that routes share, by name.
        self.named: dict[str, Lane] = {}
        self.tap_lanes: set[Lane] = set()
        #: Has what goes elsewhere before it goes to its route.
        self.relays: list[Route] = []
        # Routes that were removed while something of theirs was under way.
        self._retired: list[Route] = []
        # What those that were forgotten since had counted.
        self._gone = [0, 0, 0, 0]

    def lanes(self) -> Iterator[Lane]:
        """Every lane that has been made and may have something to do."""
        yield from self.named.values()
        yield from self.tap_lanes
        for route in self.routes():
            if route.lane is not None:
                yield route.lane

    def routes(self) -> Iterator[Route]:
        """Every route that may have something under way."""
        yield from self._table.routes.values()
        yield from self.relays
        yield from self._retired
        if self.fallback is not None:
            yield self.fallback

    def counts(self) -> list[int]:
        """Routed, handled, failed and dropped, over all routes that are and were, and the fallback."""
        self._bury()
        counted = ((each.routed, each.handled, each.failed, each.dropped) for each in self.routes())
        return [sum(column) for column in zip(self._gone, *counted, strict=True)]

    def lane_of(self, route: Route) -> Lane:
        """The lane of ``route``, made if it has none yet."""
        if route.lane is None:
            route.lane = self._new_lane(route.text, route.concurrency)
        return route.lane

    def share(self, route: Route, name: str) -> None:
        """Give ``route`` the lane called ``name``.

        Raises:
            ValueError: when another route of that lane asked for another concurrency.
        """
        lane = self.named.get(name)
        if lane is None:
            lane = self.named[name] = self._new_lane(name, route.concurrency)
        if lane.concurrency != route.concurrency:
            raise ValueError(
                f"lane {name!r} runs {lane.concurrency} at once, and {route.text!r} asks for {route.concurrency}; "
                "give all its routes the same concurrency"
            )
        lane.users += 1
        route.lane = lane

    def fall_back_to(self, handler: Handler, middleware: Sequence[Middleware]) -> None:
        """Make ``handler`` inside ``middleware`` the fallback, in place of the one before."""
        route = Route(Pattern("**"), handler, (), caller())
        if middleware:
            route.add_middleware(middleware)
        route.text, route.is_fallback = "(fallback)", True
        old, self.fallback = self.fallback, route
        if old is not None:
            self.retire(old)

    def retire(self, route: Route) -> None:
        """A route was removed: what it has accepted is still delivered to it."""
        route.is_retired = True
        if route.window is not None:
            route.window.closed = True
            route.window.flush()
        self._retired.append(route)
        self._bury()

    def _bury(self) -> None:
        """Forget the removed routes that have nothing under way, but not their counts."""
        left: list[Route] = []
        for route in self._retired:
            if route.window or (route.lane is not None and not route.lane.is_idle):
                left.append(route)
            else:
                self._leave(route)
                counts = (route.routed, route.handled, route.failed, route.dropped)
                self._gone = [old + new for old, new in zip(self._gone, counts, strict=True)]
        self._retired = left

    def _leave(self, route: Route) -> None:
        """A shared lane goes with the last of its routes."""
        lane = route.lane
        if lane is not None and self.named.get(lane.name) is lane:
            lane.users -= 1
            if not lane.users:
                del self.named[lane.name]

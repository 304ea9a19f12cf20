"""`Overview`: what operators see of a router, and what of it they may hold back for a while.

Everything is read from where the work is done; nothing is kept here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lifecycle._util import name_of
from lifecycle.errors import RouteNotFound
from lifecycle.events import Event

if TYPE_CHECKING:
    from lifecycle.control.lanes import LaneInfo
    from lifecycle.control.pumps import Pump, SourceInfo
    from lifecycle.control.routes import RouteInfo
    from lifecycle.control.running import Running
    from lifecycle.control.table import Table
    from lifecycle.control.taps import TapInfo
    from lifecycle.control.traffic import Traffic
    from lifecycle.control.types import Middleware

__all__ = ["Overview", "RouterState"]


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


class Overview:
    """The part of a router that looks."""

    # What its router is made of.
    name: str
    _table: Table
    _traffic: Traffic
    _running: Running
    _middleware: list[Middleware]

    def __repr__(self) -> str:
        return f"<Router {self.name!r}: {len(self._table)} routes, {'running' if self._running.is_up else 'at rest'}>"

    def routes(self) -> list[RouteInfo]:
        """Every route, sorted by pattern."""
        return [route.info() for _, route in sorted(self._table.routes.items())]

    def sources(self) -> list[SourceInfo]:
        """Every source, in the order in which they were added."""
        return [pump.info() for pump in self._running.pumps]

    def lanes(self) -> list[LaneInfo]:
        """Every lane that has had an event, or that several routes share; those of taps are not among them."""
        lanes = dict.fromkeys(self._traffic.roster.lanes())
        return [lane.info() for lane in lanes if lane not in self._traffic.roster.tap_lanes]

    def taps(self) -> list[TapInfo]:
        """Every tap and subscription, sorted by pattern."""
        return [tap.info() for tap in self._table.taps()]

    def explain(self, topic: str) -> list[RouteInfo]:
        """Who would get an event of ``topic``, in order: the first is the winner."""
        return [route.info() for route in self._table.plan(Event(topic)).routes]

    def state(self) -> RouterState:
        """How many of everything there are, and what became of the events that came through lanes."""
        routed, handled, failed, dropped = self._traffic.roster.counts()
        fallback = self._traffic.roster.fallback
        return RouterState(
            name=self.name,
            routes=len(self._table),
            middlewares=len(self._middleware),
            sources=len(self._running.pumps),
            running=self._running.is_up,
            routed=routed,
            handled=handled,
            failed=failed,
            unrouted=self._traffic.outcomes.unrouted,
            dropped=dropped,
            fallback=None if fallback is None else name_of(fallback.handler),
        )

    # -- pausing --------------------------------------------------------------------------------------------------

    def hold_source(self, name: str) -> None:
        """Take no events from the sources called ``name`` until `release_source`; nothing happens if it is held.

        One with plain methods ``suspend`` and ``resume`` is suspended (a webhook answers 503); any other waits with
        its next event. The end of the router ends the hold.

        Raises:
            RouteNotFound: when no source has that name.
        """
        for pump in self._pumps_called(name):
            pump.hold()

    def release_source(self, name: str) -> None:
        """Take events from them again; nothing happens if none is held.

        Raises:
            RouteNotFound: when no source has that name.
        """
        for pump in self._pumps_called(name):
            pump.release()

    def _pumps_called(self, name: str) -> list[Pump]:
        pumps = [pump for pump in self._running.pumps if pump.name == name]
        if not pumps:
            raise RouteNotFound(f"no source of router {self.name!r} is called {name!r}; router.sources() lists them")
        return pumps

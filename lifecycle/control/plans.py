"""What a topic comes to: which routes have it, in which order, and who looks on.

A plan is made once for a topic (or for all that match one route alone) and kept by the table; an event only goes
through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lifecycle.errors import Dropped, NotHandled

if TYPE_CHECKING:
    from lifecycle.control.routes import Route
    from lifecycle.control.taps import Tap
    from lifecycle.control.types import AsyncHandler

__all__ = ["Plan", "Relayed"]


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

"""What a topic comes to: which routes have it, in which order, and who looks on.

A plan is made once for a topic (or for all that match one route alone) and kept by the table; an event only goes
through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lifecycle.errors import NotHandled

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

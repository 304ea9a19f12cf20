"""Who has an event before its route has it: a relay takes it, and lets it go on or not."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from lifecycle.control.composing import as_async
from lifecycle.control.plans import Relayed
from lifecycle.control.routes import Route, caller

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lifecycle.control.patterns import Pattern
    from lifecycle.control.traffic import Traffic

__all__ = ["Relay", "open_relay"]


class Relay:
    """What `Router.relay` registered; ``remove()`` ends it."""

    def __init__(self, route: Route, detach: Callable[[Relay], None]) -> None:
        self.route = route
        self._detach = detach

    @property
    def pattern(self) -> Pattern:
        """What it takes."""
        return self.route.pattern

    def remove(self) -> None:
        """Take nothing more; twice is as good as once."""
        self._detach(self)


def open_relay(
    traffic: Traffic, pattern: Pattern, handler: Callable[[Any], Awaitable[bool]], concurrency: int
) -> Relay:
    """Let ``handler`` have what matches ``pattern`` before any route."""
    route = Route(pattern, _as_relay(handler), (), caller(), concurrency)
    table, roster = traffic.table, traffic.roster

    def detach(relay: Relay) -> None:
        table.remove_relay(relay)
        if route in roster.relays:
            roster.relays.remove(route)
            roster.retire(route)

    relay = Relay(route, detach)
    roster.relays.append(route)
    table.add_relay(relay)
    return relay


def _as_relay(handler: Callable[[Any], Awaitable[bool]]) -> Callable[[Any], Awaitable[None]]:
    """``handler`` as a route's: that the event goes on is said in the way in which a route passes one on."""
    call = as_async(handler)

    @functools.wraps(handler, updated=())
    async def relay(event: Any) -> None:
        if await call(event):
            raise Relayed

    return relay

"""What became of events: said on hooks, in the log and in the counts of their routes, and by how a delivery ends.

Nothing is decided here: ``traffic`` and the lanes say what happened.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from lifecycle import hooks
from lifecycle._util import name_of
from lifecycle.errors import Dropped

if TYPE_CHECKING:
    from lifecycle.control.deliveries import Delivery
    from lifecycle.control.routes import Route
    from lifecycle.errors import NotHandled

__all__ = ["Outcomes"]

_log = logging.getLogger("lifecycle.control")


class Outcomes:
    """Tells everybody, in the name of ``router``; with no receiver a hook costs no more than the check."""

    def __init__(self, router: object) -> None:
        self._router = router
        #: Events that nobody took.
        self.unrouted: int = 0

    # -- on the way ------------------------------------------------------------------------------------------------

    def accepted(self, delivery: Delivery) -> Delivery:
        """It came in: it has a route, or the fallback, or will have failed."""
        if hooks.delivery_accepted.receivers:
            hooks.delivery_accepted.announce(self._router, delivery=delivery)
        return delivery

    def routed(self, delivery: Delivery, route: Route) -> None:
        """It found its route."""
        if hooks.event_routed.receivers:
            hooks.event_routed.announce(self._router, event=delivery.event, pattern=route.text, delivery=delivery)

    def merged(self, delivery: Delivery, route: Route) -> None:
        """It went into an open window."""
        if hooks.event_merged.receivers:
            hooks.event_merged.announce(self._router, event=delivery.event, pattern=route.text, delivery=delivery)

    def started(self, delivery: Delivery, route: Route) -> float:
        """A handler is about to be called; returns when, by the loop's clock."""
        if not route.is_tap:
            hooks.handler_started.announce(self._router, event=delivery.event, pattern=route.text, delivery=delivery)
        return asyncio.get_running_loop().time()

    def passed(self, delivery: Delivery, route: Route) -> None:
        """Its handler wants the next to have it."""
        if hooks.handler_passed.receivers:
            hooks.handler_passed.announce(self._router, event=delivery.event, pattern=route.text, delivery=delivery)

    def fell_through(self, delivery: Delivery) -> None:
        """No route took it; the fallback has it, or nobody."""
        self.unrouted += 1
        hooks.event_unrouted.announce(self._router, event=delivery.event)

    # -- at the end ------------------------------------------------------------------------------------------------

    def finished(self, delivery: Delivery, route: Route, began: float | None) -> None:
        """A handler returned that had begun then; None: nobody wanted to know, and there is no duration."""
        if began is not None and not route.is_tap:
            duration = asyncio.get_running_loop().time() - began
            hooks.handler_finished.announce(self._router, event=delivery.event, pattern=route.text, duration=duration)
        self._tell_end(delivery)

    def failed(self, delivery: Delivery, route: Route, error: BaseException, level: int = logging.ERROR) -> None:
        """An error of a handler ends its delivery and nothing else."""
        route.failed += 1
        topic = delivery.event.topic
        _log.log(level, "%s failed on %s (route %r)", name_of(route.handler), topic, route.text, exc_info=error)
        delivery.end(error)
        if not route.is_tap:
            hooks.handler_failed.announce(self._router, event=delivery.event, pattern=route.text, error=error)
        self._tell_end(delivery)

    def refused(self, delivery: Delivery, error: NotHandled) -> Delivery:
        """Nobody took it, and nobody will."""
        _log.debug("nobody took an event: %s", error)
        delivery.route = None
        delivery.end(error)
        self.fell_through(delivery)
        self._tell_end(delivery)
        return delivery

    def ended(self, delivery: Delivery, error: BaseException | None) -> None:
        """It ended in a way that no count is kept of."""
        delivery.end(error)
        self._tell_end(delivery)

    def drop(self, delivery: Delivery, reason: str, *, superseded: bool = False) -> None:
        """Give an event up, counted; ``superseded`` says that it was for a newer one."""
        assert delivery.route is not None
        error = Dropped(f"{delivery.event.topic!r} was dropped: {reason}")
        error.superseded = superseded
        self.dropped(delivery, delivery.route, error)

    def dropped(self, delivery: Delivery, route: Route, error: Dropped) -> None:
        """A handler, or the way to it, gave it up."""
        route.dropped += 1
        _log.debug("%s (route %r)", error, route.text)
        delivery.end(error)
        if not route.is_tap:
            hooks.event_dropped.announce(self._router, event=delivery.event, pattern=route.text, reason=str(error))
        self._tell_end(delivery)

    def _tell_end(self, delivery: Delivery) -> None:
        # What a tap sees is announced as the delivery to its route alone.
        if hooks.delivery_ended.receivers and not (delivery.route is not None and delivery.route.is_tap):
            hooks.delivery_ended.announce(self._router, delivery=delivery)

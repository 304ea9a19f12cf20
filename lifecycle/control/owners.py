"""What a lane needs of the router that it belongs to, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

    from lifecycle.control.deliveries import Delivery
    from lifecycle.control.lanes import Lane
    from lifecycle.control.routes import Route

__all__ = ["LaneInfo", "Owner"]


@dataclass(frozen=True, slots=True)
class LaneInfo:
    """What can be seen of a lane; one that has never had an event is not there yet."""

    name: str
    #: Events that wait.
    waiting: int
    #: Handlers at work.
    running: int
    #: How many may wait before their source has to.
    limit: int
    #: How many handlers may be at work at once.
    concurrency: int


class Owner(Protocol):
    """What a lane needs of the router that it belongs to."""

    #: Whether handlers may run; while not, events wait in their lanes.
    working: bool

    def start(self, work: Coroutine[object, object, None], lane: Lane) -> asyncio.Task[None]:
        """Run ``work`` in a task that the owner awaits."""
        ...

    def started(self, delivery: Delivery, route: Route) -> float:
        """Tell that a handler is about to be called; returns when, by the loop's clock."""
        ...

    def finished(self, delivery: Delivery, route: Route, began: float | None) -> None:
        """Tell that a handler returned that had begun then; None: nobody wanted to know."""
        ...

    async def failed(self, delivery: Delivery, error: BaseException) -> None:
        """A handler ended with an error; ends the delivery, or waits for room where it is passed on."""
        ...

    def drop(self, delivery: Delivery, reason: str) -> None:
        """Give an event up, counted."""
        ...

"""Who waits for room in a lane: in turn, and never for itself.

Handlers that emit into a full lane wait there; where all of a lane's handlers would wait for a lane whose handlers
wait for them, nobody would ever move, so the one who would close the circle is refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from lifecycle.control.deliveries import current
from lifecycle.errors import LaneFull

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.control.deliveries import Delivery
    from lifecycle.control.lanes import Lane

__all__ = ["Entrance"]


class Entrance:
    """The way into one lane, for those who found it full."""

    __slots__ = ("_lane", "blocked_on", "waiting")

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        #: Called, each once and in this order, when there is room; one that has no use for it returns False.
        self.waiting: deque[Callable[[], bool]] = deque()
        #: The lanes that handlers of this one wait for, one entry a wait.
        self.blocked_on: list[Lane] = []

    async def wait(self, delivery: Delivery) -> None:
        """Wait until there is room for ``delivery``.

        Raises:
            LaneFull: when the wait would be for itself: the event comes from a handler of this lane, or from one of
                a lane that this one waits for; or when the router does not run.
        """
        lane, home = self._lane, _home()
        if home is not None and (home is lane or _closes_circle(home, lane)):
            raise LaneFull(f"{lane.refusal(delivery)}, and its own handler would wait for itself")
        blocked = [] if home is None else home.entrance.blocked_on
        blocked.append(lane)
        place = len(self.waiting)
        try:
            while lane.is_full:
                if not lane.is_open:
                    raise LaneFull(f"{lane.refusal(delivery)}, and the router is not running")
                await self._turn(place)
                # Somebody may have come in before: then it is first in line again.
                place = 0
        finally:
            blocked.remove(lane)

    async def _turn(self, place: int) -> None:
        """Wait for one event to leave; a turn that a cancelled waiter cannot use goes to the next."""
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> bool:
            if not room.done():
                room.set_result(None)
                return True
            return False

        self.waiting.insert(place, wake)
        try:
            await room
        except asyncio.CancelledError:
            if not room.cancelled():
                self.admit()
            elif wake in self.waiting:
                self.waiting.remove(wake)
            raise

    def when_room(self, call: Callable[[], bool]) -> None:
        """Call ``call`` once, when there is room; where it returns False, the next in line has its turn."""
        self.waiting.append(call)

    def admit(self) -> None:
        """There is room: wake the first of those who wait and still want to."""
        while self.waiting:
            if self.waiting.popleft()():
                return

    def dismiss(self) -> None:
        """Wake all: whoever waited finds room now, or learns that the router has stopped."""
        waiting = list(self.waiting)
        self.waiting.clear()
        for wake in waiting:
            wake()


def _home() -> Lane | None:
    """The lane whose handler emits here and now."""
    emitter = current.get()
    if emitter is None or emitter.done or emitter.route is None:
        return None
    return emitter.route.lane


def _closes_circle(home: Lane, target: Lane) -> bool:
    """Whether, with one more handler of ``home`` that waits for ``target``, nobody in a circle of lanes moves."""
    if len(home.entrance.blocked_on) + 1 < home.concurrency:
        return False
    reached = [target]
    for lane in reached:
        blocked = lane.entrance.blocked_on
        if len(blocked) >= lane.concurrency:
            reached += [each for each in blocked if each not in reached]
    return home in reached

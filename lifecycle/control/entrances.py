"""First-come waiting for room in a full lane, with deadlock detection.

Handlers that emit into a full lane wait there. If that wait would leave a circle of lanes in which every handler waits
for another of them, none would ever make room, so the emit that would close the circle is refused.
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
        #: The deliveries whose handlers in this lane wait, and the lane that each waits for: one entry per wait.
        self.blocked_on: list[tuple[Delivery, Lane]] = []

    async def wait(self, delivery: Delivery) -> None:
        """Wait until there is room for ``delivery``.

        Raises:
            LaneFull: when this lane could never make room, because all of its handlers would wait, directly or by
                other lanes, for themselves; or when the router does not run.
        """
        lane, emitter = self._lane, current.get() or delivery
        home = None if emitter is delivery or emitter.done or emitter.route is None else emitter.route.lane
        blocked = [] if home is None else home.entrance.blocked_on
        blocked.append((emitter, lane))
        place = len(self.waiting)
        try:
            if home is not None and _is_stuck(lane):
                raise LaneFull(f"{lane.refusal(delivery)}, and its own handler would wait for itself")
            while lane.is_full:
                if not lane.is_open:
                    raise LaneFull(f"{lane.refusal(delivery)}, and the router is not running")
                await self._turn(place)
                # Somebody may have come in before: then it is first in line again.
                place = 0
        finally:
            blocked.remove((emitter, lane))

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


def _is_stuck(lane: Lane) -> bool:
    """Whether no handler of ``lane`` can go on: each waits for a lane that is stuck itself."""
    waits: dict[Lane, dict[Delivery, set[Lane]]] = {}
    pending = [lane]
    while pending:
        each = pending.pop()
        if each not in waits:
            waits[each] = {}
            for emitter, wanted in each.entrance.blocked_on:
                waits[each].setdefault(emitter, set()).add(wanted)
                pending.append(wanted)
    stuck = {each for each, waiting in waits.items() if len(waiting) >= each.concurrency}
    while moving := {each for each in stuck if any(stuck.isdisjoint(wanted) for wanted in waits[each].values())}:
        stuck -= moving
    return lane in stuck

"""Where events wait for their handlers: a bounded queue, and as many handlers at once as the lane allows.

A lane has no task while it has nothing to do: one is started for the first event of a burst and ends with the last,
which costs as much as waking one that waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from lifecycle import hooks
from lifecycle._util import clear_context
from lifecycle.control.deliveries import current
from lifecycle.errors import LaneFull

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.control.deliveries import Delivery
    from lifecycle.control.dispatcher import Traffic
    from lifecycle.control.routing import Route

__all__ = ["Busy", "Entrance", "Lane", "LaneInfo"]

#: A lane whose handlers never wait gives the loop a turn after that many events.
_TURN = 500


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


class Busy(StrEnum):
    """What becomes of an event when as many handlers as the lane allows are at work."""

    #: It waits; when the queue is full, the source waits.
    QUEUE = "queue"
    #: It is given up.
    DROP = "drop"
    #: The oldest running handler of its route is cancelled, and it runs next.
    RESTART = "restart"

    @classmethod
    def _missing_(cls, value: object) -> Busy:
        raise ValueError(f"busy={value!r} is unknown; give 'queue', 'drop' or 'restart'")


class Lane:
    """A bounded queue and up to ``concurrency`` handlers at work on it; with 1 the order is strict."""

    __slots__ = (
        "_cancelled",
        "_handling",
        "_tasks",
        "_traffic",
        "concurrency",
        "entrance",
        "limit",
        "name",
        "queue",
        "users",
    )

    def __init__(self, name: str, concurrency: int, buffer: int, traffic: Traffic) -> None:
        self.name: str = name
        self.concurrency: int = concurrency
        self._traffic = traffic
        self.queue: deque[Delivery] = deque()
        # How many may wait: the buffer, and those that a free hand will take at once.
        self.limit: int = buffer + concurrency
        # Each task and what it is handling now, the oldest first.
        self._tasks: dict[asyncio.Task[None], Delivery | None] = {}
        # Hands at work: tasks that have begun to take from the queue.
        self._handling = 0
        # Tasks that were cancelled for a newer event; they end with what they are doing.
        self._cancelled: set[asyncio.Task[None]] = set()
        #: Where those wait for whom there is no room.
        self.entrance: Final = Entrance(self)
        #: Routes that share it; one that no route uses is forgotten.
        self.users: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self.queue and not self._tasks

    @property
    def is_full(self) -> bool:
        """Whether the next event would have to wait outside."""
        return len(self.queue) >= self.limit

    @property
    def is_open(self) -> bool:
        """Whether its handlers may run; while not, events wait."""
        return self._traffic.working

    def info(self) -> LaneInfo:
        """What can be seen of it now."""
        return LaneInfo(self.name, len(self.queue), self._handling, self.limit, self.concurrency)

    def put(self, delivery: Delivery) -> None:
        """Let an event wait here, also beyond the limit: the caller has looked whether there is room."""
        self.queue.append(delivery)
        if len(self._tasks) < self.concurrency:
            self.go_on()

    def go_on(self) -> None:
        """Start a task, if there is anything to do and the router works."""
        if self.queue and len(self._tasks) < self.concurrency and self._traffic.working:
            task = self._traffic.start(self._work(), self)
            # An eager task has begun already, and may have ended.
            if not task.done():
                self._tasks.setdefault(task, None)
                task.add_done_callback(self._ended)

    def offer(self, delivery: Delivery, busy: Busy) -> None:
        """Put the event as ``busy`` says.

        Raises:
            LaneFull: where it should wait and there is no room.
        """
        if busy is Busy.QUEUE:
            if self.is_full:
                raise LaneFull(self.refusal(delivery))
            self.put(delivery)
        elif self._handling + len(self.queue) < self.concurrency:
            self.put(delivery)
        elif busy is Busy.DROP:
            self._traffic.outcomes.drop(delivery, "as many handlers are at work as may be")
        else:
            self._give_up_oldest(delivery.route)
            self.put(delivery)

    def _give_up_oldest(self, route: Route | None) -> None:
        """Make way for a newer event of a ``restart`` route: give up its oldest, which runs or waits.

        What is cancelled already has made way for another, so the newest events are left, as many as may run at once.
        """
        running = {
            each.id: task
            for task, each in self._tasks.items()
            if each is not None and each.route is route and task not in self._cancelled
        }
        if running:
            task = running[min(running)]
            self._cancelled.add(task)
            task.cancel("a newer event restarts the handler")
            return
        waiting = next((each for each in self.queue if each.route is route), None)
        if waiting is not None:
            self.queue.remove(waiting)
            self._traffic.outcomes.drop(waiting, "superseded by a newer event", superseded=True)

    def refusal(self, delivery: Delivery) -> str:
        """Why there is no room for it, for people."""
        held = f"{self._handling} running and {len(self.queue)} waiting"
        return f"no room for {delivery.event.topic!r}: lane {self.name!r} is full with {held}"

    def cancel(self) -> None:
        """Cancel what runs."""
        for task in list(self._tasks):
            task.cancel()

    def clear(self, reason: str) -> None:
        """Give up what waits."""
        while self.queue:
            self._traffic.outcomes.drop(self.queue.popleft(), reason)
        self.entrance.dismiss()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        self._cancelled.discard(task)
        self.go_on()

    async def _work(self) -> None:  # noqa: C901  # hot: one branch a way in which a handler ends
        """Handle events until none waits. The hot loop: what is rare is done elsewhere."""
        task = asyncio.current_task()
        assert task is not None
        queue, tasks, waiting = self.queue, self._tasks, self.entrance.waiting
        # Each is one dictionary for good, and empty while nobody wants to be told.
        started, finished = hooks.handler_started.receivers, hooks.handler_finished.receivers
        ended = hooks.delivery_ended.receivers
        traffic, outcomes, enter, turn = self._traffic, self._traffic.outcomes, current.set, _TURN
        clear_context()
        self._handling += 1
        self.limit -= 1
        try:
            while queue and traffic.working:
                delivery = tasks[task] = queue.popleft()
                if waiting and len(queue) < self.limit:
                    self.entrance.admit()
                route = delivery.route
                assert route is not None
                enter(delivery)
                began = outcomes.started(delivery, route) if started or finished or ended else None
                try:
                    await route.call(delivery.event)
                except asyncio.CancelledError as error:
                    if self._was_asked(delivery, task):
                        raise
                    await traffic.failed(delivery, error)
                except Exception as error:  # noqa: BLE001  # it is logged and counted
                    await traffic.failed(delivery, error)
                except BaseException as error:
                    traffic.escaped(delivery, error)
                    raise
                else:
                    route.handled += 1
                    delivery.end()
                    # Whoever wants to know now: they may have come, or gone, while it ran.
                    if finished or ended:
                        outcomes.finished(delivery, route, began)
                if self._cancelled and task in self._cancelled:
                    break
                turn -= 1
                if not turn:
                    turn = _TURN
                    tasks[task] = None
                    await asyncio.sleep(0)
        finally:
            self._leave(task)

    def _leave(self, task: asyncio.Task[None]) -> None:
        """A hand is free: what it would take at once may come in."""
        self._handling -= 1
        self.limit += 1
        if not self.is_full:
            self.entrance.admit()
        self._ended(task)

    def _was_asked(self, delivery: Delivery, task: asyncio.Task[None]) -> bool:
        """Whether a cancellation was for this task; if so, says what it was. Otherwise it is the handler's error."""
        if task in self._cancelled:
            self._traffic.outcomes.drop(delivery, "cancelled for a newer event", superseded=True)
            return True
        if task.cancelling():
            self._traffic.outcomes.drop(delivery, "the router was stopped")
            return True
        return False


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

"""Lanes: bounded queues of events with their own tasks. Emitters wait in order of arrival for capacity in a full lane.

An idle lane has no task. A task is started for the first event of a burst and ends after the last one. Starting a task
costs no more than waking a waiting task.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lifecycle import hooks
from lifecycle._util import name_of
from lifecycle.control.deliveries import current, current_lane, delegated
from lifecycle.control.routing import Busy
from lifecycle.errors import LaneFull, LifecycleError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from lifecycle.control.deliveries import Delivery
    from lifecycle.control.dispatcher import Dispatcher
    from lifecycle.control.records import LaneInfo
    from lifecycle.control.routing import Route

__all__ = ["Lane"]


class Lane:
    """A bounded queue, and up to ``concurrency`` tasks that call handlers.

    If there is only one task, events are handled in order.
    """

    __slots__ = (
        "_cancelled",
        "_dispatcher",
        "_reserved",
        "_running",
        "_tasks",
        "_waiting",
        "blocked_on",
        "concurrency",
        "limit",
        "name",
        "queue",
    )

    #: The number of events after which a lane task yields to the event loop, even if its handlers never wait.
    _turn = 500

    def __init__(self, name: str, concurrency: int, buffer: int, dispatcher: Dispatcher) -> None:
        self.name: str = name
        self.concurrency: int = concurrency
        self._dispatcher = dispatcher
        self.queue: deque[Delivery] = deque()
        # The capacity of the queue: the buffer, plus one slot for each lane task that could start. Once a task is
        # running, it does not need its slot. Capacity that is reserved for a waiter is not included.
        self.limit: int = buffer + concurrency
        # The number of waiters that were woken because the lane has capacity for them, and have not queued their events
        # yet. Without the reservation, an event that arrives later could take the capacity.
        self._reserved = 0
        # Each lane task with the event that it is handling, oldest first.
        self._tasks: dict[asyncio.Task[None], Delivery | None] = {}
        # The number of lane tasks that have begun to take events from the queue.
        self._running = 0
        # Lane tasks that were cancelled in favour of a newer event. Each one ends after its current event.
        self._cancelled: set[asyncio.Task[None]] = set()
        # Functions to call when the lane has capacity, in order. Each is called once, with True if the capacity is for
        # this waiter, and returns False if it does not use the capacity.
        self._waiting: deque[Callable[[bool], bool]] = deque()
        #: Deliveries whose handlers in this lane are waiting, each paired with the lane that must continue first: the
        #: full lane that they emit into, or the lane of a delivery that they await.
        self.blocked_on: list[tuple[Delivery, Lane]] = []

    @property
    def is_idle(self) -> bool:
        """True if no event is queued and no task is running."""
        return not self.queue and not self._tasks

    @property
    def is_full(self) -> bool:
        """True if the next event would have to wait for capacity."""
        return len(self.queue) >= self.limit

    @property
    def capacity(self) -> int:
        """The number of events that the queue can hold now, including the capacity that is reserved for waiters."""
        return self.limit + self._reserved

    @property
    def slots(self) -> int:
        """The number of lane tasks that could free up capacity."""
        return self.concurrency

    def info(self) -> LaneInfo:
        """Return the state of the lane."""
        from lifecycle.control.records import LaneInfo

        return LaneInfo(self.name, len(self.queue), self._running, self.capacity, self.concurrency)

    # -- accepting events ------------------------------------------------------------------------------------------

    def put(self, delivery: Delivery) -> None:
        """Queue an event, even if the lane is full. The caller checks the capacity if necessary."""
        self.queue.append(delivery)
        if len(self._tasks) < self.concurrency:
            self.start()

    def start(self) -> None:
        """Start a lane task if the queue has events and the router is running."""
        if self.queue and len(self._tasks) < self.concurrency and self._dispatcher.working:
            task = self._dispatcher.start(self._work(), self)
            # An eager task has already begun, and may already have finished.
            if not task.done():
                self._tasks.setdefault(task, None)
                # The callback is for a task that is cancelled before it begins. Calling `_ended` a second time does
                # nothing.
                task.add_done_callback(self._ended)

    def offer(self, delivery: Delivery, busy: Busy) -> None:
        """Queue or drop an event, or restart its handler, according to ``busy``.

        Raises:
            LaneFull: if the event must be queued and the lane is full.
        """
        if busy is Busy.QUEUE:
            if self.is_full:
                raise LaneFull(self.refusal(delivery))
            self.put(delivery)
        elif self._running + self._reserved + len(self.queue) < self.concurrency:
            self.put(delivery)
        elif busy is Busy.DROP:
            self._dispatcher.report.drop(delivery, "the lane is already running its maximum number of handlers")
        else:
            self._supersede_oldest(delivery.route)
            self.put(delivery)

    def _supersede_oldest(self, route: Route | None) -> None:
        """Cancel or drop the oldest event of a ``restart`` route in favour of a newer event.

        Tasks that are already cancelled are skipped, because each has already made way for another event. As a result,
        only the newest events remain, up to the lane's concurrency.
        """
        running = {
            each.id: task
            for task, each in self._tasks.items()
            if each is not None and each.route is route and task not in self._cancelled
        }
        if running:
            task = running[min(running)]
            self._cancel_task(task)
            return
        waiting = next((each for each in self.queue if each.route is route), None)
        if waiting is not None:
            self.queue.remove(waiting)
            self._dispatcher.report.drop(waiting, "superseded by a newer event", superseded=True)

    def _cancel_task(self, task: asyncio.Task[None]) -> None:
        self._cancelled.add(task)
        task.cancel("a newer event restarts the handler")

    def refusal(self, delivery: Delivery) -> str:
        """Return the error message for a full lane."""
        held = f"{self._running} running and {len(self.queue)} waiting"
        return f"no space for {delivery.event.topic!r}: lane {self.name!r} is full ({held})"

    # -- waiting for capacity --------------------------------------------------------------------------------------

    async def wait(self, delivery: Delivery) -> None:
        """Wait until the lane has capacity for ``delivery``, in order of arrival.

        Handlers that emit into a full lane, or pass their event on to one, wait here. The wait is refused if it would
        cause a deadlock: a cycle of lanes in which every handler waits for another lane in the cycle.

        Raises:
            LaneFull: if all handlers of this lane would end up waiting for themselves, directly or through other lanes,
                or if the router is not running.
        """
        emitter, home = current.get(), current_lane.get()
        if emitter is None or emitter.done or not isinstance(home, Lane):
            await self._wait_until_free(delivery, is_handler=False)
            return
        home.blocked_on.append((emitter, self))
        try:
            await self._wait_until_free(delivery, is_handler=True)
        finally:
            home.blocked_on.remove((emitter, self))

    async def _wait_until_free(self, delivery: Delivery, *, is_handler: bool) -> None:
        place = len(self._waiting)
        while self.is_full:
            if is_handler and _is_stuck(self):
                raise LaneFull(f"{self.refusal(delivery)}, and the emitting handler would wait for itself")
            if not self._dispatcher.working:
                raise LaneFull(f"{self.refusal(delivery)}, and the router is not running")
            if await self._wait_turn(place):
                return
            # This waiter was woken only to check again, so it goes to the front of the line.
            place = 0

    async def _wait_turn(self, place: int) -> bool:
        """Wait to be woken, and return whether the lane has capacity for this waiter.

        The caller must queue its event before it awaits again. If the waiter is cancelled, the next in line gets its
        turn.
        """
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def wake(has_capacity: bool) -> bool:  # called by position, like the functions of `when_free`
            if turn.done():
                return False
            if has_capacity:
                self._reserved += 1
                self.limit -= 1
            turn.set_result(has_capacity)
            return True

        self._waiting.insert(place, wake)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                if wake in self._waiting:
                    self._waiting.remove(wake)
            elif turn.result():
                self._end_reservation()
                self._notify()
            raise
        if turn.result():
            self._end_reservation()
        return turn.result()

    def _end_reservation(self) -> None:
        self._reserved -= 1
        self.limit += 1

    def when_free(self, call: Callable[[], bool]) -> None:
        """Call ``call`` once when the lane has capacity. If it returns False, the next in line gets its turn."""
        self._waiting.append(lambda _: call())

    def _notify(self) -> None:
        """Give the free capacity to the first waiter that still needs it."""
        while self._waiting:
            if self._waiting.popleft()(True):  # see `_waiting`
                return

    def wake_stuck(self) -> None:
        """If no handler can free up capacity any more, wake every waiter. Waiting handlers then get `LaneFull`."""
        if self._waiting and self.is_full and _is_stuck(self):
            # We wake the last waiter first, because each one that still has to wait goes to the front of the line
            # again.
            self._wake_all(reverse=True)

    def _wake_all(self, *, reverse: bool = False) -> None:
        waiting = list(self._waiting)
        self._waiting.clear()
        for wake in reversed(waiting) if reverse else waiting:
            wake(False)  # see `_waiting`

    @contextmanager
    def awaiting(self, delivery: Delivery) -> Generator[None]:
        """Mark the handler in the current task as waiting for ``delivery`` during the block.

        Raises:
            LifecycleError: if the wait would never end, because ``delivery`` can only be handled after this handler,
                directly or through other lanes.
        """
        task = here = asyncio.current_task()
        runner = delegated.get()
        if runner is not None and runner[0] is here:
            task = runner[1]
        # A task that a handler has started is not in the list, because the handler may return without it.
        waiting = None if task is None or here is None or here.cancelling() else self._tasks.get(task)
        wanted = None if delivery.route is None else self._dispatcher.lanes.get(delivery.route)
        if task is None or waiting is None or waiting.route is None or wanted is None:
            yield
            return
        self.blocked_on.append((waiting, wanted))
        try:
            if self._is_held_up(delivery, task) or _is_stuck(wanted):
                name, topic = name_of(waiting.route.handler), delivery.event.topic
                raise LifecycleError(
                    f"{name} awaits the delivery of {topic!r}, but lane {wanted.name!r} can handle it only after "
                    f"{name} has returned; do not await it, use another lane, or raise the concurrency of the lane"
                )
            yield
        finally:
            self.blocked_on.remove((waiting, wanted))

    def _is_held_up(self, _delivery: Delivery, _task: asyncio.Task[None]) -> bool:
        """Return whether the lane holds back ``_delivery`` until ``_task`` has finished its event."""
        return False

    # -- calling handlers ------------------------------------------------------------------------------------------

    async def _work(self) -> None:  # noqa: C901  # the hot loop has one branch for each way a handler can end
        """Handle events until the queue is empty. This is the hot loop, so rare cases are handled elsewhere."""
        task = asyncio.current_task()
        assert task is not None
        queue, tasks, waiting = self.queue, self._tasks, self._waiting
        # A hook keeps the same dictionary of receivers for as long as it exists, so we can keep a reference to it. The
        # dictionary is empty if the hook has no receivers.
        started, finished = hooks.handler_started.receivers, hooks.handler_finished.receivers
        ended = hooks.delivery_ended.receivers
        dispatcher, report, enter, turn = self._dispatcher, self._dispatcher.report, current.set, self._turn
        current_lane.set(self)
        self._running += 1
        self.limit -= 1
        try:
            while queue and dispatcher.working:
                delivery = tasks[task] = queue.popleft()
                if waiting and len(queue) < self.limit:
                    self._notify()
                route = delivery.route
                assert route is not None
                enter(delivery)
                began = report.announce_started(delivery, route) if started or finished or ended else None
                try:
                    value = await route.call(delivery.event)
                except asyncio.CancelledError as error:
                    if self._was_requested(delivery, task):
                        raise
                    await dispatcher.failed(delivery, error)
                except Exception as error:  # noqa: BLE001  # it is logged and counted
                    await dispatcher.failed(delivery, error)
                except BaseException as error:
                    dispatcher.escaped(delivery, error)
                    raise
                else:
                    route.handled += 1
                    delivery.end(None, value)
                    # Check again, because receivers may have connected or disconnected while the handler was running.
                    if finished or ended:
                        report.announce_finished(delivery, route, began)
                if self._cancelled and task in self._cancelled:
                    break
                turn -= 1
                if not turn:
                    turn = self._turn
                    self._rest(task)
                    await asyncio.sleep(0)
        finally:
            self._running -= 1
            self.limit += 1
            if not self.is_full:
                self._notify()
            self._ended(task)

    def _rest(self, task: asyncio.Task[None]) -> None:
        """Record that ``task`` is not handling an event."""
        self._tasks[task] = None

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        self._cancelled.discard(task)
        self.start()

    def _was_requested(self, delivery: Delivery, task: asyncio.Task[None]) -> bool:
        """If this lane task was cancelled, report the cancellation and return True.

        Otherwise, the handler itself raised the CancelledError, so return False.
        """
        if task in self._cancelled:
            self._dispatcher.report.drop(delivery, "cancelled in favour of a newer event", superseded=True)
            return True
        if task.cancelling():
            self._dispatcher.report.drop(delivery, "the router was stopped")
            return True
        return False

    # -- stopping --------------------------------------------------------------------------------------------------

    def handling(self) -> list[Delivery]:
        """Return the deliveries whose handlers are running."""
        return [each for each in self._tasks.values() if each is not None and not each.done]

    def cancel(self) -> None:
        """Cancel the lane tasks."""
        for task in list(self._tasks):
            task.cancel()

    def clear(self) -> list[Delivery]:
        """Empty the queue and wake every waiter. Each one then gets capacity or notices that the router has stopped.

        Return the deliveries that were queued.
        """
        queued = list(self.queue)
        self.queue.clear()
        self._wake_all()
        return queued


def _is_stuck(lane: Lane) -> bool:
    """Return whether every handler of ``lane`` is waiting for a lane that is itself stuck."""
    waits: dict[Lane, dict[Delivery, set[Lane]]] = {}
    pending = [lane]
    while pending:
        each = pending.pop()
        if each not in waits:
            waits[each] = {}
            for emitter, wanted in each.blocked_on:
                waits[each].setdefault(emitter, set()).add(wanted)
                pending.append(wanted)
    stuck = {each for each, waiting in waits.items() if len(waiting) >= each.slots}
    while moving := {each for each in stuck if any(stuck.isdisjoint(wanted) for wanted in waits[each].values())}:
        stuck -= moving
    return lane in stuck

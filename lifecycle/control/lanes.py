"""Lanes: bounded queues of events with their own tasks. Emitters wait in order of arrival for room in a full lane.

An idle lane has no task. A task is started for the first event of a burst and ends after the last one. Starting a task
costs no more than waking a waiting task. A keyed lane is a dictionary of lanes, one for each key that has events.

A lane knows neither the router nor its hooks: it calls ``delivery.route.call`` and gives the outcome to the delivery.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from contextlib import contextmanager
from contextvars import Context, copy_context
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from lifecycle import hooks
from lifecycle._async import start_task
from lifecycle._util import name_of
from lifecycle.control.deliveries import current, current_lane, delegated, emits_stored
from lifecycle.errors import Dropped, LaneFull, LifecycleError, NotHandled

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Hashable, Iterator

    from lifecycle.control.deliveries import Delivery
    from lifecycle.control.records import LaneInfo
    from lifecycle.control.types import LaneKey
    from lifecycle.events import Topical

__all__ = ["Busy", "KeyedLane", "Lane", "Lanes", "Room"]

#: The number of events after which a lane task makes way for other tasks, even if its handlers never wait.
_TURN = 500

# A hook keeps the same dictionary of receivers for as long as it exists, so we can keep a reference to it. The
# dictionary is empty if the hook has no receivers.
_STARTED, _FINISHED = hooks.handler_started.receivers, hooks.handler_finished.receivers
_ENDED = hooks.delivery_ended.receivers


class Busy(StrEnum):
    """The action for an event if its lane is already running as many handlers as its concurrency allows."""

    #: The event waits in the queue. If the queue is full, ``emit`` waits.
    QUEUE = "queue"
    #: The event is dropped.
    DROP = "drop"
    #: The route's oldest running handler is cancelled, and the event is handled next.
    RESTART = "restart"

    @classmethod
    def _missing_(cls, value: object) -> Busy:
        raise ValueError(f"busy={value!r} is unknown; use 'queue', 'drop' or 'restart'")


_QUEUE = Busy.QUEUE  # an attribute of an enum is slow to read


class Lanes:
    """The lanes of one router, and the tasks that work in them."""

    def __init__(self, buffer: int) -> None:
        self._buffer = buffer
        # The lanes in the order in which they were opened, and those that several routes can share.
        self._open: dict[Lane | KeyedLane, None] = {}
        self._shared: dict[str | LaneKey, Lane | KeyedLane] = {}
        #: If false, no handlers run, and events wait in their lanes.
        self.working: bool = False
        #: True while the router is stopping. An event that a cancelled source was emitting is then accepted even if its
        #: lane is full.
        self.draining: bool = False
        #: The context in which the lanes call handlers: a copy of the context of the task that runs the router.
        self.context: Context = copy_context()
        #: The event loop that runs the router, or None while the router is not running.
        self.loop: asyncio.AbstractEventLoop | None = None
        #: The thread of that loop. Comparing threads is five times as fast as comparing loops.
        self.thread: int | None = None
        #: The tasks of all lanes. The router awaits them when it closes.
        self.tasks: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[Lane | KeyedLane]:
        """Iterate over the lanes that have routes or events."""
        for lane in list(self._open):
            if not self.forget(lane):
                yield lane

    def open(self, route: str, concurrency: int, shared: str | LaneKey | None) -> Lane | KeyedLane:
        """Return the lane of one more route: a new one, or the one that it shares.

        Raises:
            TypeError: if ``shared`` is neither a string nor a function of one argument.
            ValueError: if the shared lane has a different concurrency.
        """
        lane = None if shared is None else self._shared.get(shared)
        if lane is None or self.forget(lane):
            limit = self._buffer + concurrency
            if shared is None or isinstance(shared, str):
                lane = Lane(shared or route, concurrency, limit, self)
            else:
                lane = KeyedLane(route, concurrency, limit, self, shared)
            self._open[lane] = None
            if shared is not None:
                self._shared[shared] = lane
        elif lane.concurrency != concurrency:
            raise ValueError(
                f"lane {lane.name!r} has a concurrency of {lane.concurrency}, but {route!r} uses {concurrency}; "
                "use the same concurrency for all its routes"
            )
        lane.users += 1
        return lane

    def leave(self, lane: Lane | KeyedLane) -> None:
        """Note that a route was removed. The lane is forgotten once it has neither routes nor events."""
        lane.users -= 1
        self.forget(lane)

    def forget(self, lane: Lane | KeyedLane) -> bool:
        """Forget the lane if it has neither routes nor events, and return whether it has not."""
        if lane.users or not lane.is_idle:
            return False
        self._open.pop(lane, None)
        for shared in [shared for shared, each in self._shared.items() if each is lane]:
            del self._shared[shared]
        return True

    def start_task(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        """Start a task for a lane in the context of the router. The router awaits the task when it closes.

        In the emitter's context, a handler would see the context variables of an unrelated caller, and a worker that it
        starts would not belong to the router's program.
        """
        task = start_task(work, name=f"lane {name}", context=self.context.copy())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def start(self) -> None:
        """Begin to handle events, including those that were emitted earlier."""
        self.working = True
        for lane in self:
            lane.start()

    def handling(self) -> list[Delivery]:
        """Return the deliveries whose handlers are running."""
        return [each for lane in self for each in lane.handling() if not each.done]

    def stop(self) -> None:
        """Call no more handlers, and cancel those that are running."""
        self.working = False
        for lane in self:
            lane.cancel()

    def clear(self) -> list[Delivery]:
        """Empty the queues, and return the deliveries that were in them."""
        return [each for lane in list(self) for each in lane.clear()]


class Room:
    """The number of events that a lane can hold, the emitters that wait for room, and what its handlers wait for."""

    __slots__ = ("_lanes", "blocked_on", "concurrency", "limit", "name", "used", "users", "waiting")

    def __init__(self, name: str, concurrency: int, limit: int, lanes: Lanes) -> None:
        self.name: str = name
        #: The maximum number of handlers that run at the same time.
        self.concurrency: int = concurrency
        self._lanes = lanes
        #: The number of events that the lane can hold: the buffer, plus one for each handler that can run.
        self.limit: int = limit
        #: The number of events in the queue, of those being handled, and of places reserved for emitters that were
        #: woken and have not queued their events yet. Without the reservation, a later event could take the place.
        self.used: int = 0
        #: The number of routes that use the lane.
        self.users: int = 0
        #: Functions to call when there is room, in order. Each is called once, and may leave the room unused.
        self.waiting: deque[Callable[[], object]] = deque()
        #: Deliveries whose handlers in this lane are waiting, each paired with the lane that must continue first: the
        #: full lane that they emit into, or the lane of a delivery that they await.
        self.blocked_on: list[tuple[Delivery, Room]] = []

    @property
    def is_idle(self) -> bool:
        """True if the lane has no event, and no emitter waits for it."""
        return not self.used and not self.waiting

    @property
    def is_full(self) -> bool:
        """True if the next event would have to wait for room."""
        return self.used >= self.limit

    @property
    def hands(self) -> int:
        """The number of handlers that could make room."""
        return self.concurrency

    def begins(self, event: Topical) -> bool:  # noqa: ARG002  # `KeyedLane` looks up its key
        """Return whether an idle key would begin with ``event`` at once, which `hands` does not count yet."""
        return False

    def holds(self, delivery: Delivery) -> bool:
        """Return whether a handler of this lane is passing ``delivery`` on, so that it already has a place here."""
        lane = current_lane.get()
        return current.get() is delivery and isinstance(lane, Lane) and lane.room is self

    def counts(self) -> tuple[int, int]:
        """Return the number of events that are waiting, and of those that are being handled."""
        raise NotImplementedError

    def refusal(self, delivery: Delivery) -> str:
        """Return the error message for a full lane."""
        waiting, running = self.counts()
        held = f"{running} running and {waiting} waiting"
        return f"no space for {delivery.event.topic!r}: lane {self.name!r} is full ({held})"

    def free(self) -> None:
        """Note that one event has left the lane, and give its place to the first emitter that waits."""
        self.used -= 1
        if self.waiting:
            self.notify()

    def notify(self) -> None:
        """Give the free places to the first waiters that still need them."""
        while self.waiting and self.used < self.limit:
            self.waiting.popleft()()

    def when_free(self, call: Callable[[], object]) -> None:
        """Call ``call`` once when there is room. If it does not use the room, the next in line gets its turn."""
        self.waiting.append(call)

    async def wait(self, delivery: Delivery) -> None:
        """Wait until there is room for ``delivery``, in order of arrival. Queue it before the next ``await``.

        Handlers that emit into a full lane, or pass their event on to one, wait here. The wait is refused if it would
        cause a deadlock: a cycle of lanes in which every handler waits for another lane in the cycle.

        Raises:
            LaneFull: if all handlers of this lane would end up waiting for themselves, directly or through other lanes,
                or if the router is not running.
        """
        emitter, lane = current.get(), current_lane.get()
        home = lane.room if isinstance(lane, Lane) and emitter is not None and not emitter.done else None
        if home is not None and emitter is not None:
            home.blocked_on.append((emitter, self))
        waiter = _Waiter(self)
        self.waiting.append(waiter)
        try:
            while self.is_full:
                if home is not None and _is_stuck(self):
                    raise LaneFull(f"{self.refusal(delivery)}, and the emitting handler would wait for itself")
                if not self._lanes.working:
                    raise LaneFull(f"{self.refusal(delivery)}, and the router is not running")
                await waiter.turn()
                if waiter.has_room:
                    self.used -= 1
                    return
        except asyncio.CancelledError:
            if waiter.has_room:
                self.free()
            raise
        finally:
            if waiter in self.waiting:
                self.waiting.remove(waiter)
            if home is not None and emitter is not None:
                home.blocked_on.remove((emitter, self))

    def check_waiters(self) -> None:
        """Let every waiter look again whether there is room, or whether it must be refused."""
        for waiter in list(self.waiting):
            if isinstance(waiter, _Waiter):
                waiter.check()
            else:
                self.waiting.remove(waiter)
                waiter()

    def wake_stuck(self) -> None:
        """If no handler can make room any more, let every waiter look again. Waiting handlers then get `LaneFull`."""
        if self.waiting and self.is_full and _is_stuck(self):
            self.check_waiters()


class _Waiter:
    """An emitter that waits for room. It keeps its place in the line until it gets room or leaves."""

    __slots__ = ("_room", "_turn", "has_room")

    def __init__(self, room: Room) -> None:
        self._room = room
        # True if a place is reserved for the emitter.
        self.has_room: bool = False
        self._turn: asyncio.Future[None] | None = None

    async def turn(self) -> None:
        """Wait until there is room, or the emitter must look again."""
        self._turn = asyncio.get_running_loop().create_future()
        await self._turn

    def check(self) -> None:
        """Let the emitter look again."""
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    def __call__(self) -> None:
        """Reserve a place for the emitter, unless it was cancelled and does not need it."""
        if self._turn is not None and not self._turn.cancelled():
            self.has_room = True
            self._room.used += 1
            self.check()


class Lane(Room):
    """A bounded queue, and up to ``concurrency`` tasks that call handlers.

    If there is only one task, events are handled in order.
    """

    __slots__ = ("_cancelled", "_passing", "_turn", "queue", "room", "tasks")

    used: int

    def __init__(self, name: str, concurrency: int, limit: int, lanes: Lanes, turn: int = _TURN) -> None:
        super().__init__(name, concurrency, limit, lanes)
        self.queue: deque[Delivery] = deque()
        #: Each lane task with the event that it is handling, oldest first.
        self.tasks: dict[asyncio.Task[None], Delivery | None] = {}
        # Lane tasks that were cancelled in favour of a newer event. Each one ends after its current event.
        self._cancelled: set[asyncio.Task[None]] = set()
        # The route of each lane task whose handler is passing its event on. The delivery has the next route by then.
        self._passing: dict[asyncio.Task[None], object] = {}
        #: Where the events of this lane are counted: here, or in the keyed lane that it belongs to.
        self.room: Room = self
        self._turn = turn

    def counts(self) -> tuple[int, int]:
        """Return the number of events that are waiting, and of those that are being handled."""
        return len(self.queue), sum(each is not None for each in self.tasks.values())

    def info(self) -> LaneInfo:
        """Return the state of the lane."""
        from lifecycle.control.records import LaneInfo

        waiting, running = self.counts()
        return LaneInfo(self.name, waiting, running, self.limit - running, self.concurrency)

    # -- accepting events ------------------------------------------------------------------------------------------

    def take(self, delivery: Delivery, busy: Busy) -> Coroutine[Any, Any, None] | None:
        """Queue or drop an event, or restart its handler, according to ``busy``. If there is no room, return a wait."""
        if busy is not _QUEUE:
            self.offer(delivery, busy)
            return None
        if self.used >= self.limit and not self.holds(delivery):
            return _take_later(self, delivery)
        self.used += 1
        self.queue.append(delivery)
        if len(self.tasks) < self.concurrency:
            self.start_one()
        return None

    def put(self, delivery: Delivery) -> None:
        """Queue an event, even if the lane is full. The caller checks for room if necessary."""
        self.used += 1
        self.queue.append(delivery)
        if len(self.tasks) < self.concurrency:
            self.start_one()

    def offer(self, delivery: Delivery, busy: Busy) -> None:
        """Queue or drop an event, or restart its handler, without waiting.

        Raises:
            LaneFull: if the event must be queued and the lane is full.
        """
        if busy is Busy.QUEUE:
            if self.is_full:
                raise LaneFull(self.refusal(delivery))
        elif self.used >= self.concurrency:
            if busy is Busy.DROP:
                delivery.drop("the lane is already running its maximum number of handlers")
                return
            self.supersede(delivery)
        self.put(delivery)

    def supersede(self, newer: Delivery) -> bool:
        """Cancel or drop the oldest event of a ``restart`` route in favour of a newer event. Return False if none is.

        Tasks that are already cancelled are skipped, because each has already made way for another event. As a result,
        only the newest events remain, up to the lane's concurrency.
        """
        running = {
            each.id: task
            for task, each in self.tasks.items()
            if each is not None and self._passing.get(task, each.route) is newer.route and task not in self._cancelled
        }
        if running:
            task = running[min(running)]
            self._cancelled.add(task)
            task.cancel("a newer event restarts the handler")
            return True
        waiting = next((each for each in self.queue if each.route is newer.route), None)
        if waiting is not None:
            self.queue.remove(waiting)
            self.room.used -= 1
            waiting.drop("superseded by a newer event", superseded=True)
        return waiting is not None

    # -- calling handlers ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start as many lane tasks as there are events and handlers may run."""
        for _ in range(min(self.concurrency, len(self.queue))):
            self.start_one()

    def start_one(self) -> None:
        """Start a lane task if the queue has events and the router is running."""
        if self.queue and len(self.tasks) < self.concurrency and self._lanes.working:
            task = self._lanes.start_task(self._work(), self.name)
            # An eager task has already begun, and may already have finished.
            if not task.done():
                self.tasks.setdefault(task, None)
                # The callback is for a task that is cancelled before it begins. Calling `ended` a second time does
                # nothing.
                task.add_done_callback(self.ended)

    async def _work(self) -> None:
        """Handle events until the queue is empty or the turn is over. This is the hot loop."""
        task = asyncio.current_task()
        assert task is not None
        queue, tasks, room, lanes, enter = self.queue, self.tasks, self.room, self._lanes, current.set
        cancelled, started, finished, ended = self._cancelled, _STARTED, _FINISHED, _ENDED
        current_lane.set(self)
        try:
            for _ in range(self._turn):
                if not queue or not lanes.working:
                    break
                delivery = tasks[task] = queue.popleft()
                enter(delivery)
                began = delivery.start() if started or finished or ended else None
                try:
                    value = await delivery.route.call(delivery.event)  # type: ignore[union-attr]  # it has a route
                except BaseException as error:  # a program's exit is raised again
                    if not await self._ended_with(error, delivery, task):
                        raise
                else:
                    delivery.finish(value, None, began)
                finally:
                    room.used -= 1
                    if room.waiting:
                        tasks[task] = None  # a waiting burst must not find its lane busy with this event
                        room.notify()
                if cancelled and task in cancelled:
                    break
        finally:
            self.ended(task)

    async def _ended_with(self, error: BaseException, delivery: Delivery, task: asyncio.Task[None]) -> bool:
        """End a delivery whose handler raised ``error``, or pass the event on. Return False to raise it in the task."""
        if isinstance(error, asyncio.CancelledError) and task in self._cancelled:
            delivery.drop("cancelled in favour of a newer event", superseded=True)
            return False
        if isinstance(error, asyncio.CancelledError) and task.cancelling():
            delivery.drop("the router was stopped")
            return False
        if isinstance(error, GeneratorExit):  # the loop was closed
            return False
        if isinstance(error, NotHandled) and not isinstance(error, Dropped):
            self._passing[task] = delivery.route
            try:
                await delivery.pass_on(error)
            finally:
                del self._passing[task]
        else:
            delivery.finish(error=error)
        return isinstance(error, Exception | asyncio.CancelledError)

    def ended(self, task: asyncio.Task[None]) -> None:
        """Note that a lane task has ended, and start another one if there are more events."""
        self.tasks.pop(task, None)
        self._cancelled.discard(task)
        self.start_one()

    @contextmanager
    def awaiting(self, delivery: Delivery) -> Generator[None]:
        """Mark the handler in the current task as waiting for ``delivery`` during the block.

        Raises:
            LifecycleError: if the wait would never end, because ``delivery`` can only be handled after this handler,
                directly or through other lanes.
        """
        waiting = self._waiting()
        wanted = None if delivery.route is None else delivery.route.lane
        if waiting is None or not isinstance(wanted, Room):
            yield
            return
        with self._blocked(waiting, wanted, is_behind=self.concurrency == 1 and delivery in self.queue) as is_stuck:
            if is_stuck:
                raise self._refusal(waiting, "awaits the delivery of", delivery.event, wanted)
            yield

    def check_call(self, event: Topical, route: _HasLane) -> None:
        """Raise LifecycleError if the handler in the current task would wait for itself by calling ``route``."""
        waiting, wanted = self._waiting(), route.lane
        if waiting is None or not isinstance(wanted, Room) or wanted.begins(event):
            return
        with self._blocked(waiting, wanted, is_behind=wanted is self.room and self.serves(event)) as is_stuck:
            if is_stuck:
                raise self._refusal(waiting, "calls the handler of", event, wanted)

    def serves(self, event: Topical) -> bool:  # noqa: ARG002  # `_KeyLane` compares its key
        """Return whether ``event`` would enter this lane and wait for all other events in it."""
        return self.concurrency == 1

    def _waiting(self) -> Delivery | None:
        """Return the delivery whose handler runs in the current task.

        A task that a handler has started does not count, because the handler may return without it.
        """
        task = here = asyncio.current_task()
        runner = delegated.get()
        if runner is not None and runner[0] is here:
            task = runner[1]
        return None if task is None or here is None or here.cancelling() else self.tasks.get(task)

    @contextmanager
    def _blocked(self, waiting: Delivery, wanted: Room, *, is_behind: bool) -> Generator[bool]:
        """Note that a handler waits for ``wanted`` during the block. Yield whether the wait would never end."""
        self.room.blocked_on.append((waiting, wanted))
        try:
            yield is_behind or _is_stuck(wanted)
        finally:
            self.room.blocked_on.remove((waiting, wanted))

    def _refusal(self, waiting: Delivery, does: str, event: Topical, wanted: Room) -> LifecycleError:
        name = "a handler" if waiting.route is None else name_of(waiting.route.handler)
        return LifecycleError(
            f"{name} {does} {event.topic!r}, but lane {wanted.name!r} can handle it only after {name} has returned; do "
            "not await it, use another lane, or raise the concurrency of the lane"
        )

    # -- stopping --------------------------------------------------------------------------------------------------

    def handling(self) -> list[Delivery]:
        """Return the deliveries whose handlers are running."""
        return [each for each in self.tasks.values() if each is not None]

    def cancel(self) -> None:
        """Cancel the lane tasks."""
        for task in list(self.tasks):
            task.cancel()

    def clear(self) -> list[Delivery]:
        """Empty the queue and wake every waiter. Each one then gets room or notices that the router has stopped.

        Return the deliveries that were queued.
        """
        queued = list(self.queue)
        self.queue.clear()
        self.room.used -= len(queued)
        self.check_waiters()
        return queued


class _HasLane(Protocol):
    @property
    def lane(self) -> object: ...


class _KeyLane(Lane):
    """The events of one key. Its task handles one event, and then it is the turn of the next key."""

    __slots__ = ("_key", "_keyed")

    room: Room

    def __init__(self, keyed: KeyedLane, key: Hashable, lanes: Lanes) -> None:
        super().__init__(keyed.name, 1, keyed.limit, lanes, turn=1)
        # The events of all keys are counted together.
        self.room = self._keyed = keyed
        self._key = key

    def start_one(self) -> None:
        """Take a turn among the keys."""
        self._keyed.take_turn(self)

    def serves(self, event: Topical) -> bool:
        """Return whether ``event`` has the key of this lane."""
        return self._keyed.key_of(event) == self._key

    def begin(self) -> None:
        """Start the task, because it is this key's turn."""
        super().start_one()

    def ended(self, task: asyncio.Task[None]) -> None:
        """Note that the task has ended."""
        if self.tasks.pop(task, self) is not self:
            self._cancelled.discard(task)
            self._keyed.end_turn(self, self._key)


class KeyedLane(Room):
    """A dictionary of lanes, one for each key that has events. The events of a key are handled in order, one at a time.

    The lanes share one room, and up to ``concurrency`` of them work at the same time. Keys take turns: once a key's
    handler has finished, the key moves behind all other keys that can start. A key takes up memory only while it has
    events, so limiting the room also limits the number of keys.

    Raises:
        TypeError: if ``key`` is not a plain callable of one argument.
    """

    __slots__ = ("_function", "_keys", "_turns", "_working")

    used: int

    def __init__(self, name: str, concurrency: int, limit: int, lanes: Lanes, key: LaneKey) -> None:
        super().__init__(name, concurrency, limit, lanes)
        self._function = _checked_key(key)
        self._keys: dict[Hashable, _KeyLane] = {}
        # The lanes that wait for their turn, in order, and the number of those that work.
        self._turns: dict[_KeyLane, None] = {}
        self._working = 0

    @property
    def hands(self) -> int:
        """The number of handlers that could make room. It is less than the concurrency if few keys have events."""
        return max(1, self._working)

    def counts(self) -> tuple[int, int]:
        """Return the number of events that are waiting, and of those that are being handled."""
        each = [lane.counts() for lane in self._keys.values()]
        return sum(waiting for waiting, _ in each), sum(running for _, running in each)

    def info(self) -> LaneInfo:
        """Return the state of the lane."""
        from lifecycle.control.records import LaneInfo

        waiting, running = self.counts()
        return LaneInfo(self.name, waiting, running, self.limit - running, self.concurrency, len(self._keys))

    # -- accepting events ------------------------------------------------------------------------------------------

    def take(self, delivery: Delivery, busy: Busy) -> Coroutine[Any, Any, None] | None:
        """Queue or drop an event, or restart its handler, according to ``busy``. If there is no room, return a wait."""
        if busy is Busy.QUEUE:
            if self.is_full and not self.holds(delivery):
                return _take_later(self, delivery)
            self.put(delivery)
            return None
        try:
            self.offer(delivery, busy)
        except LaneFull as error:
            delivery.drop(str(error))
        return None

    def put(self, delivery: Delivery) -> None:
        """Queue an event, even if the lane is full. If the key function raises an error, the delivery fails."""
        key = self._key_of(delivery)
        if key is not None:
            self._put(delivery, key[0])

    def offer(self, delivery: Delivery, busy: Busy) -> None:
        """Queue or drop an event, or restart its handler, separately for each key, without waiting.

        Raises:
            LaneFull: if the event must be queued and the lane is full.
        """
        if busy is Busy.QUEUE and self.is_full:
            raise LaneFull(self.refusal(delivery))
        keys = self._key_of(delivery)
        if keys is None:
            return
        (key,) = keys
        lane = self._keys.get(key)
        if busy is Busy.DROP and lane is not None and (lane.queue or lane.handling()):
            delivery.drop(f"the lane already has an event with the key {key!r:.80}")
            return
        replaces = busy is Busy.RESTART and lane is not None and lane.supersede(delivery)
        if self.is_full and not replaces:
            raise LaneFull(self.refusal(delivery))
        self._put(delivery, key)

    def begins(self, event: Topical) -> bool:
        """Return whether an idle key would begin with ``event`` at once, or the event would fail for its key."""
        if self.is_full or self._working >= self.concurrency:
            return False
        try:
            return self.key_of(event) not in self._keys
        except Exception:  # noqa: BLE001  # the delivery of the event reports it
            return True

    def key_of(self, event: Topical) -> Hashable:
        """Return the key of an event. An error raised by the key function propagates."""
        key = self._function(event)
        hash(key)
        return key

    def _key_of(self, delivery: Delivery) -> tuple[Hashable] | None:
        """Return the key of an event in a tuple, or None if it has none, so that the delivery has failed."""
        try:
            key = self.key_of(delivery.event)
        except Exception as error:  # noqa: BLE001  # reported like a handler's error
            delivery.finish(error=error)
            return None
        return (key,)

    def _put(self, delivery: Delivery, key: Hashable) -> None:
        lane = self._keys.get(key)
        if lane is None:
            lane = self._keys[key] = _KeyLane(self, key, self._lanes)
        self.used += 1
        lane.queue.append(delivery)
        self.take_turn(lane)

    # -- turns -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Let as many keys as possible begin."""
        while self._turns and self._working < self.concurrency and self._lanes.working:
            lane = next(iter(self._turns))
            del self._turns[lane]
            self._working += 1
            lane.begin()

    def take_turn(self, lane: _KeyLane) -> None:
        """Let ``lane`` handle its next event as soon as it is its turn."""
        if lane.queue and not lane.tasks:
            self._turns[lane] = None
            self.start()

    def end_turn(self, lane: _KeyLane, key: Hashable) -> None:
        """Let the next lane work, because ``lane`` has handled an event."""
        self._working -= 1
        if lane.queue:
            self._turns[lane] = None
        elif self._keys.get(key) is lane:
            del self._keys[key]
        self.start()
        # The remaining handlers of this lane may now all be waiting for each other.
        for wanted in {wanted for _, wanted in self.blocked_on}:
            wanted.wake_stuck()

    # -- stopping --------------------------------------------------------------------------------------------------

    def handling(self) -> list[Delivery]:
        """Return the deliveries whose handlers are running."""
        return [each for lane in self._keys.values() for each in lane.handling()]

    def cancel(self) -> None:
        """Cancel the lane tasks."""
        for lane in list(self._keys.values()):
            lane.cancel()

    def clear(self) -> list[Delivery]:
        """Empty the queues and wake every waiter. Return the deliveries that were queued."""
        queued = [each for lane in self._keys.values() for each in lane.clear()]
        self._turns.clear()
        self._keys = {key: lane for key, lane in self._keys.items() if lane.tasks}
        self.check_waiters()
        return queued


async def _take_later(lane: Lane | KeyedLane, delivery: Delivery) -> None:
    """Wait for room in ``lane``, and queue ``delivery``."""
    try:
        await lane.wait(delivery)
    except asyncio.CancelledError:
        if current.get() is delivery:
            pass  # it is being passed on
        elif lane._lanes.draining:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # of this module
            delivery.keep(stored=emits_stored.get())
            lane.put(delivery)
        else:
            delivery.drop("its emitter was cancelled while the lane was full")
        raise
    lane.put(delivery)


def _checked_key(function: LaneKey) -> LaneKey:
    """Return a function that returns an event's key.

    Raises:
        TypeError: if it is not a plain callable of one argument.
    """
    if not callable(function):
        raise TypeError(
            f"expected the name of a lane, or a function that returns an event's key, got lane={function!r}; "
            "use lane='builds' or lane=lambda event: event.topic"
        )
    name = name_of(function)
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"lane={name} is an async or generator function; pass a plain function that returns the key")
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise TypeError(f"lane={name} must be callable with one argument, the event") from None
    except ValueError:  # some callables written in C have no signature
        pass
    return function


def _is_stuck(lane: Room) -> bool:
    """Return whether every handler of ``lane`` is waiting for a lane that is itself stuck."""
    waits: dict[Room, dict[Delivery, set[Room]]] = {}
    pending = [lane]
    while pending:
        each = pending.pop()
        if each not in waits:
            waits[each] = {}
            for emitter, wanted in each.blocked_on:
                waits[each].setdefault(emitter, set()).add(wanted)
                pending.append(wanted)
    stuck = {each for each, waiting in waits.items() if len(waiting) >= each.hands}
    while moving := {each for each in stuck if any(stuck.isdisjoint(wanted) for wanted in waits[each].values())}:
        stuck -= moving
    return lane in stuck

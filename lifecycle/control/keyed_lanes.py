"""Keyed lanes: bounded queues that handle the events of each key in order, one at a time.

A key takes up memory only while it has events, so limiting the size of the queue also limits the number of keys.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Any

from lifecycle._util import name_of
from lifecycle.control.lanes import Lane
from lifecycle.control.routing import Busy
from lifecycle.errors import LaneFull

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from lifecycle.control.deliveries import Delivery
    from lifecycle.control.dispatcher import Dispatcher
    from lifecycle.control.records import LaneInfo
    from lifecycle.control.routing import Route
    from lifecycle.control.types import LaneKey

__all__ = ["KeyedLane", "check_key"]


def check_key(function: LaneKey) -> None:
    """Check a function that returns an event's key.

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
        return


class _KeyQueue:
    """A queue of events by key.

    Its length is the total number of events. It is truthy if at least one key has an event that can start.

    Keys take turns: once a key's handler has finished, the key moves behind all other keys that can start.
    """

    __slots__ = ("_held", "_size", "ready", "running", "waiting")

    def __init__(self) -> None:
        self._size = 0
        self.waiting: dict[Hashable, deque[Delivery]] = {}
        #: The keys that have events but no running handler, in the order in which they take their turns.
        self.ready: deque[Hashable] = deque()
        #: The keys whose events are being handled, each with its lane task.
        self.running: dict[Hashable, asyncio.Task[Any]] = {}
        self._held: dict[asyncio.Task[Any], Hashable] = {}

    def __len__(self) -> int:
        return self._size

    def __bool__(self) -> bool:
        return bool(self.ready)

    def __iter__(self) -> Iterator[Delivery]:
        return chain.from_iterable(self.waiting.values())

    def append(self, delivery: Delivery, key: Hashable) -> None:
        """Append an event with the key ``key``."""
        self._size += 1
        if key in self.waiting:
            self.waiting[key].append(delivery)
            return
        self.waiting[key] = deque((delivery,))
        if key not in self.running:
            self.ready.append(key)

    def popleft(self) -> Delivery:
        """Take the next event for the current task.

        The task keeps the event's key reserved until `release` is called.
        """
        task = asyncio.current_task()
        assert task is not None
        key = self._held[task] = self.ready.popleft()
        self.running[key] = task
        delivery = self.waiting[key].popleft()
        self._removed(key)
        return delivery

    def release(self, task: asyncio.Task[Any]) -> None:
        """Release the key that ``task`` has reserved, if any."""
        if task in self._held:
            key = self._held.pop(task)
            del self.running[key]
            if key in self.waiting:
                self.ready.append(key)

    def is_behind(self, delivery: Delivery, task: asyncio.Task[Any]) -> bool:
        """Return whether ``delivery`` waits for the key that ``task`` has reserved."""
        return task in self._held and delivery in self.waiting.get(self._held[task], ())

    def remove(self, delivery: Delivery, key: Hashable) -> None:
        """Remove a waiting event with the key ``key``."""
        self.waiting[key].remove(delivery)
        self._removed(key)
        if key not in self.waiting and key in self.ready:
            self.ready.remove(key)

    def _removed(self, key: Hashable) -> None:
        self._size -= 1
        if not self.waiting[key]:
            del self.waiting[key]

    def clear(self) -> None:
        """Remove all waiting events."""
        self.waiting.clear()
        self.ready.clear()
        self._size = 0


class KeyedLane(Lane):
    """A lane that handles the events of each key in order, one at a time, and up to ``concurrency`` keys at once."""

    __slots__ = ("_function",)

    queue: _KeyQueue  # type: ignore[assignment]  # has the methods that Lane calls

    # Release the key after each event, so that keys take turns.
    _turn = 1

    def __init__(self, name: str, concurrency: int, buffer: int, dispatcher: Dispatcher, function: LaneKey) -> None:
        super().__init__(name, concurrency, buffer, dispatcher)
        self.queue = _KeyQueue()  # pyright: ignore[reportIncompatibleVariableOverride]  # see above
        self._function = function

    @property
    def slots(self) -> int:
        """The number of lane tasks that could free up capacity.

        It is less than the concurrency if too few keys have events.
        """
        return max(1, len(self._tasks))

    def info(self) -> LaneInfo:
        """Return the state of the lane."""
        from lifecycle.control.records import LaneInfo

        queue = self.queue
        keys = len(queue.waiting.keys() | queue.running.keys())
        return LaneInfo(self.name, len(queue), self._running, self.capacity, self.concurrency, keys)

    # -- accepting events ------------------------------------------------------------------------------------------

    def put(self, delivery: Delivery) -> None:
        """Queue an event, even if the lane is full. If the key function raises an error, the delivery fails."""
        try:
            key = self._key_of(delivery)
        except Exception as error:  # noqa: BLE001  # reported like a handler's error
            self._fail(delivery, error)
        else:
            self._append(delivery, key)

    def offer(self, delivery: Delivery, busy: Busy) -> None:
        """Queue or drop an event, or restart its handler, according to ``busy``, separately for each key.

        Raises:
            LaneFull: if the event must be queued and the lane is full.
        """
        if busy is Busy.QUEUE:
            super().offer(delivery, busy)
            return
        try:
            key = self._key_of(delivery)
        except Exception as error:  # noqa: BLE001  # see `put`
            self._fail(delivery, error)
            return
        if busy is Busy.DROP and (key in self.queue.running or key in self.queue.waiting):
            self._dispatcher.report.drop(delivery, f"the lane already has an event with the key {key!r:.80}")
        elif self._supersede(delivery.route, key) or not self.is_full:
            self._append(delivery, key)
        else:
            raise LaneFull(self.refusal(delivery))

    def _key_of(self, delivery: Delivery) -> Hashable:
        key = self._function(delivery.event)
        hash(key)
        return key

    def _fail(self, delivery: Delivery, error: Exception) -> None:
        assert delivery.route is not None
        self._dispatcher.report.end_failed(delivery, delivery.route, error)

    def _append(self, delivery: Delivery, key: Hashable) -> None:
        self.queue.append(delivery, key)
        self.start()

    def start(self) -> None:
        """If the router is running, start a lane task for each key that can start, up to the lane's concurrency."""
        tasks = self._tasks
        while self._dispatcher.working and len(tasks) < self.concurrency:
            # A task without an event is about to take one.
            if len(self.queue.ready) <= sum(event is None for event in tasks.values()):
                return
            super().start()

    def _supersede(self, route: Route | None, key: Hashable) -> bool:
        """Cancel or drop an older event of ``route`` with the key ``key``. Return False if there is none."""
        task = self.queue.running.get(key)
        running = None if task is None else self._tasks.get(task)
        if task is not None and running is not None and running.route is route and task not in self._cancelled:
            self._cancel_task(task)
            return True
        waiting = next((each for each in self.queue.waiting.get(key, ()) if each.route is route), None)
        if waiting is not None:
            self.queue.remove(waiting, key)
            self._dispatcher.report.drop(waiting, "superseded by a newer event", superseded=True)
        return waiting is not None

    def _is_held_up(self, delivery: Delivery, task: asyncio.Task[None]) -> bool:
        return self.queue.is_behind(delivery, task)

    # -- finished events -------------------------------------------------------------------------------------------

    def _rest(self, task: asyncio.Task[None]) -> None:
        super()._rest(task)
        self.queue.release(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.queue.release(task)
        super()._ended(task)
        # The remaining handlers of this lane may now all be waiting for each other.
        for lane in {wanted for _, wanted in self.blocked_on}:
            lane.wake_stuck()

"""A supervisor's watches, each with a bounded queue. Changes are also published to parent supervisors."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

if TYPE_CHECKING:
    from typing import Self

    from lifecycle.events import StatusEvent

__all__ = ["Watch", "Watches"]

_SIZE: Final = 1000


class Watch:
    """An async iterator over changes, from its creation until the supervisor has ended.

    If the reader is slow, only the latest 1,000 events are kept. `dropped` is the number of discarded events.
    """

    def __init__(self) -> None:
        self.dropped: int = 0
        self._events: deque[StatusEvent] = deque(maxlen=_SIZE)
        self._closed = False
        self._changed = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StatusEvent:
        while not self._events:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._events.popleft()

    async def aclose(self) -> None:
        """Stop the iteration, and discard any events that have not been read."""
        self._events.clear()
        self.finish()

    def finish(self) -> None:
        """Stop the iteration after the queued events."""
        self._closed = True
        self._changed.set()

    def put(self, event: StatusEvent) -> None:
        """Add ``event``. If the queue is full, the oldest event is dropped."""
        if self._closed:
            return
        self.dropped += len(self._events) == _SIZE
        self._events.append(event)
        self._changed.set()


class Watches:
    """A supervisor's watches, linked to those of its parent supervisor."""

    def __init__(self) -> None:
        #: True if this supervisor or any of its ancestors has ever had a watch. If not, this check is the only
        #: cost of a change.
        self.used: bool = False
        # We use weak references, because an abandoned iterator must not keep its watch alive.
        self._watches: WeakSet[Watch] | None = None
        self._closed = False
        self._parent: Watches | None = None
        self._name_in_parent = ""

    @property
    def active(self) -> bool:
        """True if this supervisor or any of its ancestors has a watch."""
        return bool(self._watches) or (self._parent is not None and self._parent.active)

    def attach(self, parent: Watches, name: str) -> None:
        """Also publish every change through ``parent``, where this supervisor is the child ``name``."""
        self._parent, self._name_in_parent = parent, name
        self.used |= parent.used

    def add(self) -> Watch:
        """Create a watch. If the supervisor has ended, the watch ends immediately."""
        watch = Watch()
        if self._closed:
            watch.finish()
            return watch
        if self._watches is None:
            self._watches = WeakSet()
        self._watches.add(watch)
        return watch

    def publish(self, event: StatusEvent, *, up: bool = True) -> None:
        """Publish ``event`` to all of this supervisor's watches and, if ``up`` is true, to those of its ancestors."""
        for watch in list(self._watches or ()):
            watch.put(event)
        if up and self._parent is not None and self._parent.active:
            self._parent.publish(replace(event, path=f"{self._name_in_parent}/{event.path}"))

    def close(self) -> None:
        """Stop all of this supervisor's watches after their queued events."""
        self._closed = True
        for watch in list(self._watches or ()):
            watch.finish()

"""Who watches a supervisor: each has a bounded queue of its own; a supervisor above hears everything, too."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

if TYPE_CHECKING:
    from typing import Self

    from lifecycle.events import StatusEvent

__all__ = ["Board", "Watch"]

_SIZE: Final = 1000


class Watch:
    """An async iterator of what changes from the moment it was made, until the supervisor has ended.

    It keeps the last 1,000 events for a slow reader; `dropped` counts the others.
    """

    def __init__(self) -> None:
        self.dropped: int = 0
        self._events: deque[StatusEvent] = deque(maxlen=_SIZE)
        self._closed = False
        self._moved = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StatusEvent:
        while not self._events:
            if self._closed:
                raise StopAsyncIteration
            self._moved.clear()
            await self._moved.wait()
        return self._events.popleft()

    async def aclose(self) -> None:
        """End the iteration; what was not read is gone."""
        self._events.clear()
        self.finish()

    def finish(self) -> None:
        """End the iteration after what is there."""
        self._closed = True
        self._moved.set()

    def put(self, event: StatusEvent) -> None:
        """Give it ``event``; of a full queue the oldest goes."""
        if self._closed:
            return
        self.dropped += len(self._events) == _SIZE
        self._events.append(event)
        self._moved.set()


class Board:
    """Where a supervisor's changes are published; it costs nothing while nobody watches."""

    def __init__(self) -> None:
        # Weak: whoever stops iterating without a word is forgotten with the iterator. None before the first.
        self._watches: WeakSet[Watch] | None = None
        self._closed = False
        #: The board of the supervisor above, and the name of this one there.
        self.above: Board | None = None
        self.name_above: str = ""

    @property
    def watched(self) -> bool:
        """Whether anybody would hear of it."""
        # This runs at each change of each child, and most supervisors are never watched.
        if self._watches is None and self.above is None:
            return False
        return bool(self._watches) or (self.above is not None and self.above.watched)

    def watch(self) -> Watch:
        """A new watch; it ends at once where nothing will change any more."""
        watch = Watch()
        if self._closed:
            watch.finish()
            return watch
        if self._watches is None:
            self._watches = WeakSet()
        self._watches.add(watch)
        return watch

    def publish(self, event: StatusEvent, *, up: bool = True) -> None:
        """Tell all who watch, and with ``up`` those who watch a supervisor above."""
        for watch in list(self._watches or ()):
            watch.put(event)
        if up and self.above is not None and self.above.watched:
            self.above.publish(replace(event, path=f"{self.name_above}/{event.path}"))

    def close(self) -> None:
        """Nothing follows."""
        self._closed = True
        for watch in list(self._watches or ()):
            watch.finish()

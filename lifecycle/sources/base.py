"""A source that is pushed into from elsewhere: a callback, another task, another thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from lifecycle._async import cancel_later
from lifecycle.errors import SourceClosed

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.control.types import Emit
    from lifecycle.events import Topical

    #: Who waits for room: a task of the loop, or another thread.
    _Waiter: TypeAlias = asyncio.Future[None] | concurrent.futures.Future[None]

__all__ = ["BaseSource"]


class BaseSource:
    """Holds up to ``buffer`` events until the router takes them; use it as it is, or inherit from it.

    Events come out in the order they went in. ``close()`` ends the source: what is buffered is still delivered, and
    those who wait in ``emit`` get `SourceClosed`. All methods but `emit_threadsafe` belong to the thread of the loop.

    Raises:
        ValueError: for a buffer without room.
    """

    def __init__(self, name: str, *, buffer: int = 10) -> None:
        if buffer < 1:
            raise ValueError(f"buffer={buffer!r} has no room for an event; give 1 or more")
        self.name = name
        self._buffer = buffer
        self._closed = False
        # Never longer than the buffer: an event that does not fit stays with its caller. The waiter is the one that
        # the event had to wait with, if it had to.
        self._events: deque[tuple[Topical, _Waiter | None]] = deque()
        # Those who wait for room, in order; nobody waits while there is room.
        self._waiting: deque[tuple[Topical, _Waiter]] = deque()
        self._stirred = asyncio.Event()
        # Known from the first moment that the source is used in a loop, so that threads may come early.
        self._loop = _running_loop()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def emit(self, event: Topical) -> None:
        """Hand over ``event``, waiting while the buffer is full.

        A cancellation during the wait takes ``event`` back. If it has been delivered by then, this returns, and the
        cancellation takes effect at the next await.

        Raises:
            SourceClosed: when the source is closed, or closes while this waits; ``event`` was not taken.
        """
        if not self.try_emit(event):
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((event, room))
            try:
                await room
            except asyncio.CancelledError as error:
                if self._take_back(room) or not _was_let_in(room):
                    raise
                cancel_later(error)

    def try_emit(self, event: Topical) -> bool:
        """Hand over ``event`` if there is room now, and say whether it was taken.

        Raises:
            SourceClosed: when the source is closed.
        """
        if self._closed:
            raise self._refusal(event)
        if len(self._events) >= self._buffer:
            return False
        self._events.append((event, None))
        self._stirred.set()
        return True

    def emit_threadsafe(self, event: Topical) -> None:
        """Hand over ``event`` from another thread, which waits while the buffer is full.

        Raises:
            SourceClosed: when the source is closed or stops running before it took ``event``.
            RuntimeError: in the loop's own thread, which would wait for itself; and when no loop runs the source yet.
        """
        loop, room = self._loop, concurrent.futures.Future[None]()
        if loop is None:
            raise RuntimeError(f"{self!r} is in no loop yet, so no thread can reach it; run the router first")
        if loop is _running_loop():
            raise RuntimeError("emit_threadsafe() was called in the thread of the loop; use emit() or try_emit() there")
        try:
            loop.call_soon_threadsafe(self._accept, event, room)
        except RuntimeError:
            raise self._refusal(event) from None
        while not concurrent.futures.wait([room], timeout=1).done:
            # A loop that closed in between never ran `_accept`.
            if loop.is_closed():
                raise self._refusal(event)
        room.result()

    def close(self) -> None:
        """End the source once what is buffered is delivered; closing again does nothing."""
        self._closed = True
        self._refuse(lambda _: True)
        self._stirred.set()

    async def run(self, emit: Emit) -> None:
        """Deliver until closed; the router calls this."""
        self._loop = asyncio.get_running_loop()
        try:
            while self._events or not self._closed:
                if self._events:
                    await emit(self._take())
                else:
                    self._stirred.clear()
                    await self._stirred.wait()
        finally:
            # A task that waits is cancelled by whoever owns it; a thread would wait for ever.
            self._refuse(lambda waiter: isinstance(waiter, concurrent.futures.Future))

    def _take(self) -> Topical:
        """The oldest event; whoever waits longest gets its place."""
        event, _ = self._events.popleft()
        self._let_in()
        return event

    def _let_in(self) -> None:
        """Take the events that wait, the oldest first, as far as there is room."""
        while self._waiting and len(self._events) < self._buffer:
            waiting, room = self._waiting.popleft()
            if not room.done():
                self._events.append((waiting, room))
                room.set_result(None)

    def _take_back(self, room: asyncio.Future[None]) -> bool:
        """Remove the event that waits for ``room`` or was let in with it; False if it has been delivered or refused."""
        for events in (self._waiting, self._events):
            for place, (_, waiter) in enumerate(events):
                if waiter is room:
                    del events[place]
                    self._let_in()
                    return True
        return False

    def _accept(self, event: Topical, room: concurrent.futures.Future[None]) -> None:
        """In the loop, for another thread."""
        try:
            if self.try_emit(event):
                room.set_result(None)
            else:
                self._waiting.append((event, room))
        except SourceClosed as error:
            room.set_exception(error)

    def _refuse(self, whom: Callable[[_Waiter], bool]) -> None:
        waiting, self._waiting = self._waiting, deque()
        for event, room in waiting:
            if not whom(room):
                self._waiting.append((event, room))
            elif not room.done():
                room.set_exception(self._refusal(event))

    def _refusal(self, event: Topical) -> SourceClosed:
        how = "is closed" if self._closed else "no longer runs"
        return SourceClosed(f"{self!r} {how} and takes no more events; {event.topic!r} was not taken")


def _was_let_in(room: asyncio.Future[None]) -> bool:
    return room.done() and not room.cancelled() and room.exception() is None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None

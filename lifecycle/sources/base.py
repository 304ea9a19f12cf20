"""`BaseSource`: a bounded buffer for events from callbacks, other tasks and other threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from lifecycle._async import cancel_later
from lifecycle.errors import SourceClosed

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.control import Emit
    from lifecycle.events import Topical

    #: A task of the loop, or another thread, that waits for space.
    _Waiter: TypeAlias = asyncio.Future[None] | concurrent.futures.Future[None]

__all__ = ["BaseSource"]


class BaseSource:
    """A source with a buffer, to emit events from callbacks and other threads; use it directly or as a base class.

    Events are delivered in the order in which they were emitted. ``close()`` ends the source: buffered events are still
    delivered, and callers that wait in ``emit`` get `SourceClosed`. Call all methods except `emit_threadsafe` in the
    thread of the loop.

    Args:
        name: Name in messages and states.
        buffer: Maximum number of events that wait for the router.

    Raises:
        ValueError: if ``buffer`` is below 1.
    """

    def __init__(self, name: str, *, buffer: int = 10) -> None:
        if buffer < 1:
            raise ValueError(f"buffer={buffer!r} has no room for an event; give 1 or more")
        self.name = name
        self._buffer = buffer
        self._closed = False
        # Never longer than the buffer: an event that does not fit stays with its caller. An event that had to wait
        # keeps its waiter.
        self._events: deque[tuple[Topical, _Waiter | None]] = deque()
        # Those that wait for space, in order; none waits while there is space.
        self._waiting: deque[tuple[Topical, _Waiter]] = deque()
        self._wake = asyncio.Event()
        # Set as soon as the source is used in a loop, so that threads may emit before it runs.
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
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((event, waiter))
            try:
                await waiter
            except asyncio.CancelledError as error:
                if self._take_back(waiter) or not _was_buffered(waiter):
                    raise
                cancel_later(error)

    def try_emit(self, event: Topical) -> bool:
        """Hand over ``event`` if there is space now; return whether it was taken.

        Raises:
            SourceClosed: when the source is closed.
        """
        if self._closed:
            raise self._refusal(event)
        if len(self._events) >= self._buffer:
            return False
        self._events.append((event, None))
        self._wake.set()
        return True

    def emit_threadsafe(self, event: Topical) -> None:
        """Hand over ``event`` from another thread; block that thread while the buffer is full.

        Raises:
            SourceClosed: when the source is closed or stops running before it took ``event``.
            RuntimeError: in the loop's own thread, which would wait for itself; and when no loop runs the source yet.
        """
        loop, waiter = self._loop, concurrent.futures.Future[None]()
        if loop is None:
            raise RuntimeError(f"{self!r} is in no loop yet, so no thread can reach it; run the router first")
        if loop is _running_loop():
            raise RuntimeError("emit_threadsafe() was called in the thread of the loop; use emit() or try_emit() there")
        try:
            loop.call_soon_threadsafe(self._accept, event, waiter)
        except RuntimeError:
            raise self._refusal(event) from None
        while not concurrent.futures.wait([waiter], timeout=1).done:
            # A loop that closed in between never ran `_accept`.
            if loop.is_closed():
                raise self._refusal(event)
        waiter.result()

    def close(self) -> None:
        """End the source once buffered events are delivered; closing again does nothing."""
        self._closed = True
        self._refuse(lambda _: True)
        self._wake.set()

    async def run(self, emit: Emit) -> None:
        """Deliver until closed; the router calls this."""
        self._loop = asyncio.get_running_loop()
        try:
            while self._events or not self._closed:
                if self._events:
                    await emit(self._take())
                else:
                    self._wake.clear()
                    await self._wake.wait()
        finally:
            # A task that waits is cancelled by its owner; a thread would wait indefinitely.
            self._refuse(lambda waiter: isinstance(waiter, concurrent.futures.Future))

    def _take(self) -> Topical:
        """Return the oldest event; the longest waiter gets its place."""
        event, _ = self._events.popleft()
        self._fill()
        return event

    def _fill(self) -> None:
        """Take waiting events, the oldest first, as far as there is space."""
        while self._waiting and len(self._events) < self._buffer:
            event, waiter = self._waiting.popleft()
            if not waiter.done():
                self._events.append((event, waiter))
                waiter.set_result(None)

    def _take_back(self, waiter: asyncio.Future[None]) -> bool:
        """Remove the event of ``waiter``, waiting or buffered; return False if it has been delivered or refused."""
        for events in (self._waiting, self._events):
            for place, (_, each) in enumerate(events):
                if each is waiter:
                    del events[place]
                    self._fill()
                    return True
        return False

    def _accept(self, event: Topical, waiter: concurrent.futures.Future[None]) -> None:
        """Emit, in the loop, for another thread."""
        try:
            if self.try_emit(event):
                waiter.set_result(None)
            else:
                self._waiting.append((event, waiter))
        except SourceClosed as error:
            waiter.set_exception(error)

    def _refuse(self, condition: Callable[[_Waiter], bool]) -> None:
        waiting, self._waiting = self._waiting, deque()
        for event, waiter in waiting:
            if not condition(waiter):
                self._waiting.append((event, waiter))
            elif not waiter.done():
                waiter.set_exception(self._refusal(event))

    def _refusal(self, event: Topical) -> SourceClosed:
        how = "is closed" if self._closed else "no longer runs"
        return SourceClosed(f"{self!r} {how} and takes no more events; {event.topic!r} was not taken")


def _was_buffered(waiter: asyncio.Future[None]) -> bool:
    return waiter.done() and not waiter.cancelled() and waiter.exception() is None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None

"""`BaseSource`: a bounded buffer for events from callbacks, other tasks and other threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import deque
from typing import TYPE_CHECKING, Literal, TypeAlias

from lifecycle._async import cancel_later
from lifecycle.errors import SourceClosed
from lifecycle.events.sources import Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.control import Emit
    from lifecycle.events import Topical

    #: A task in the loop, or another thread, that is waiting for space.
    _Waiter: TypeAlias = asyncio.Future[None] | concurrent.futures.Future[None]

__all__ = ["BaseSource"]


class BaseSource(Source):
    """A source with a buffer, for events from callbacks and other threads. Use it directly or as a base class.

    Events are delivered in the order in which they were emitted. ``close()`` ends the source's run: buffered events are
    still delivered, and callers waiting in ``emit`` get `SourceClosed`. The router calls ``close()`` when it stops. If
    the router runs again, so does the source. Call all methods except `emit_threadsafe` from the event loop's thread.

    Args:
        name: The source's name in messages and states.
        buffer: The maximum number of events waiting for the router.

    Raises:
        ValueError: if ``buffer`` is less than 1.
    """

    def __init__(self, name: str, *, buffer: int = 10) -> None:
        if buffer < 1:
            raise ValueError(f"buffer={buffer!r} cannot hold any events; use 1 or more")
        self.name: str = name
        self._buffer = buffer
        # "open" accepts events, "closing" delivers the buffered events, and "closed" waits for the next run.
        self._state: Literal["open", "closing", "closed"] = "open"
        # The buffered events. An event that had to wait is stored with its waiter. The buffer never overflows, because
        # an event that does not fit stays with its caller.
        self._events: deque[tuple[Topical, _Waiter | None]] = deque()
        # Events waiting for space, in order. Empty while the buffer has space.
        self._waiting: deque[tuple[Topical, _Waiter]] = deque()
        self._wake = asyncio.Event()
        # Set when the source is first used in a loop, so that threads can emit events before the source runs.
        self._loop = _running_loop()

    async def emit(self, event: Topical) -> None:
        """Put ``event`` into the buffer. Wait while the buffer is full.

        If the call is cancelled while waiting, ``event`` is withdrawn. If it has already been delivered, this method
        returns, and the cancellation takes effect at the next await.

        Raises:
            SourceClosed: if the source is closed or closes while this method is waiting. ``event`` was not accepted.
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
        """Put ``event`` into the buffer if there is space, and return whether there was.

        Raises:
            SourceClosed: if the source is closed.
        """
        if self._state != "open":
            raise self._refusal(event)
        if len(self._events) >= self._buffer:
            return False
        self._events.append((event, None))
        self._wake.set()
        return True

    def emit_threadsafe(self, event: Topical) -> None:
        """Put ``event`` into the buffer from another thread. This blocks the thread while the buffer is full.

        Raises:
            SourceClosed: if the source is closed or stops before it has accepted ``event``.
            RuntimeError: if called from the event loop's thread, which would deadlock, or before the source has been
                used in a loop.
        """
        loop, waiter = self._loop, concurrent.futures.Future[None]()
        if loop is None:
            raise RuntimeError(
                f"{self!r} is not running in a loop yet, so threads cannot emit events; run the router first"
            )
        if loop is _running_loop():
            raise RuntimeError(
                "emit_threadsafe() was called from the event loop's thread; use emit() or try_emit() there"
            )
        try:
            loop.call_soon_threadsafe(self._accept, event, waiter)
        except RuntimeError:
            raise self._refusal(event) from None
        while not concurrent.futures.wait([waiter], timeout=1).done:
            # If the loop has been closed in the meantime, it never ran `_accept`.
            if loop.is_closed():
                raise self._refusal(event)
        waiter.result()

    def close(self) -> None:
        """End the run once the buffered events have been delivered. Further calls do nothing."""
        if self._state == "open":
            self._state = "closing"
        self._refuse(lambda _: True)
        self._wake.set()

    async def settle(self) -> None:
        """Prepare for the next run, even if this one had ended before `close` was called."""
        if self._state == "closing":
            self._state = "closed"

    async def run(self, emit: Emit) -> None:
        """Deliver events until closed. The router calls this."""
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()  # the previous one may belong to another loop
        if self._state == "closed":
            self._state = "open"
        try:
            while self._events or self._state == "open":
                if self._events:
                    await emit(self._take())
                else:
                    self._wake.clear()
                    await self._wake.wait()
            self._state = "closed"
        except asyncio.CancelledError:
            # The drain has taken too long. A source that fails, in contrast, is restarted to deliver the other events.
            self._state = "closed" if self._state == "closing" else self._state
            raise
        finally:
            # A waiting task is cancelled by its owner, but a waiting thread would never wake up.
            self._refuse(lambda waiter: isinstance(waiter, concurrent.futures.Future))

    def _take(self) -> Topical:
        """Remove and return the oldest event. The event that has been waiting longest takes its place in the buffer."""
        event, _ = self._events.popleft()
        self._fill()
        return event

    def _fill(self) -> None:
        """Move waiting events into the buffer, oldest first, while it has space."""
        while self._waiting and len(self._events) < self._buffer:
            event, waiter = self._waiting.popleft()
            if not waiter.done():
                self._events.append((event, waiter))
                waiter.set_result(None)

    def _take_back(self, waiter: asyncio.Future[None]) -> bool:
        """Remove the waiting or buffered event of ``waiter``. Return False if it has been delivered or refused."""
        for events in (self._waiting, self._events):
            for place, (_, each) in enumerate(events):
                if each is waiter:
                    del events[place]
                    self._fill()
                    return True
        return False

    def _accept(self, event: Topical, waiter: concurrent.futures.Future[None]) -> None:
        """Emit an event in the loop on behalf of another thread."""
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
        how = "no longer runs" if self._state == "open" else "is closed"
        return SourceClosed(f"{self!r} {how} and accepts no more events; {event.topic!r} was not accepted")


def _was_buffered(waiter: asyncio.Future[None]) -> bool:
    return waiter.done() and not waiter.cancelled() and waiter.exception() is None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None

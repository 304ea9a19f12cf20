"""Events that the program puts into an `asyncio.Queue`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lifecycle.events.sources import Source

if TYPE_CHECKING:
    from lifecycle.control import Emit
    from lifecycle.events import Topical

__all__ = ["QueueSource"]

# Since Python 3.13, a queue can be shut down. In older versions, this error is never raised.
_SHUT_DOWN: type[Exception] | tuple[()] = getattr(asyncio, "QueueShutDown", ())


class QueueSource(Source):
    """Sends the items of an `asyncio.Queue` in order, until it gets ``None`` or the queue is shut down (Python 3.13).

    Each event is marked as done (``task_done``) once its lane has accepted it. Items after ``None`` stay in the queue.

    Args:
        queue: The queue of events.

    Raises:
        TypeError: if ``queue`` is not an `asyncio.Queue`.
    """

    def __init__(self, queue: asyncio.Queue[Topical | None] | asyncio.Queue[Any]) -> None:
        if not isinstance(queue, asyncio.Queue):
            raise TypeError(
                f"{queue!r} is not an asyncio.Queue; to emit from other threads, use BaseSource.emit_threadsafe()"
            )
        self._queue: asyncio.Queue[Topical | None] = queue

    def __repr__(self) -> str:
        return f"QueueSource({self._queue!r})"

    async def run(self, emit: Emit) -> None:
        """Deliver events until the queue returns ``None`` or is shut down. The router calls this."""
        while True:
            try:
                event = await self._queue.get()
            except _SHUT_DOWN:
                return
            try:
                if event is None:
                    return
                await emit(event)
            finally:
                self._queue.task_done()

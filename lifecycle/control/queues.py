"""Out of the router into a queue of the program's own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lifecycle.errors import Dropped

if TYPE_CHECKING:
    from lifecycle.control.types import Handler

__all__ = ["notify"]


def notify(queue: asyncio.Queue[Any]) -> Handler:
    """A handler that puts each event into ``queue`` without waiting.

    Raises:
        Dropped: from the handler, when the queue is full; the event is counted as dropped.
    """

    def put(event: Any) -> None:
        try:
            queue.put_nowait(event)
        except asyncio.QueueFull:
            raise Dropped(f"{event.topic!r} was dropped: the queue is full with {queue.qsize()} events") from None

    return put

"""The mailbox of an owner: messages in the order of their coming, some of which somebody waits for."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Message: TypeAlias = Callable[[], Awaitable[None]]
    #: It is told who waits for it, and may look whether he still does.
    Operation: TypeAlias = Callable[[asyncio.Future[Any]], Awaitable[Any]]

__all__ = ["Mailbox"]


class Mailbox:
    """Messages are functions; who owns the mailbox calls one after the other."""

    def __init__(self) -> None:
        # Bounded by what there is: a message or two for each worker, and one for each who waits for an answer.
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._calls: set[asyncio.Future[Any]] = set()
        # What callers are told once nothing is dealt with any more.
        self._closed: Exception | None = None

    async def take(self) -> Message:
        """The next message."""
        return await self._messages.get()

    def post(self, message: Message) -> None:
        """Have ``message`` dealt with in its turn."""
        self._messages.put_nowait(message)

    def after(self, delay: float, message: Message) -> asyncio.TimerHandle | None:
        """Post ``message`` after ``delay`` seconds, or now; what cancels it, where that is still possible."""
        if delay <= 0:
            self.post(message)
            return None
        return asyncio.get_running_loop().call_later(delay, self.post, message)

    async def call(self, operation: Operation) -> Any:
        """Carry out ``operation`` in its turn, unless nobody waits for it by then: what it returns or raises."""
        if self._closed is not None:
            raise self._closed
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.add(future)
        self.post(partial(_answer, future, operation))
        try:
            return await future
        finally:
            self._calls.discard(future)

    def dismiss(self, error: Exception) -> None:
        """Nothing is dealt with any more: who waits gets ``error``."""
        self._closed = error
        for future in self._calls:
            if not future.done():
                future.set_exception(error)


async def _answer(future: asyncio.Future[Any], operation: Operation) -> None:
    if future.done():
        return
    try:
        result = await operation(future)
    except Exception as error:  # noqa: BLE001  # it belongs to who called
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(result)

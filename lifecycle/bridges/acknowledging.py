"""Publications and their acknowledgements: one inbox for all answers, and one timer.

nats-py's own ``publish`` has a timer and two futures for each event, and its ``publish_async`` has no end: both cost
more than the rest of what a bridge does for an event.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from lifecycle.bridges.links import Link

__all__ = ["PATIENCE", "Acks", "Answer"]

#: Seconds for one acknowledgement, and between two looks at what has none.
PATIENCE, _LOOK = 3.0, 0.5


class Answer(NamedTuple):
    """What the server says of a publication."""

    #: Where it is; empty where it was not taken.
    stream: str
    duplicate: bool
    #: Why it was not taken, empty where no stream answers; and whether it is for good.
    refusal: str = ""
    final: bool = False


class Acks:
    """What was sent through one link and is not yet acknowledged."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._inbox = ""
        self._sent = 0
        # By number, so that the oldest is the first: who waits, and until when.
        self._pending: dict[int, tuple[asyncio.Future[Answer], float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Listen for answers."""
        client = self.link.client
        self._inbox = client.new_inbox()
        await client.subscribe(f"{self._inbox}.*", cb=self._hear)  # pyright: ignore[reportUnknownMemberType]  # of nats-py

    async def publish(self, subject: str, body: bytes, headers: dict[str, str]) -> Answer:
        """Send, and wait for the answer.

        Raises:
            TimeoutError: when there is none within three seconds, or the link ends first.
            nats.errors.Error: when it cannot be sent.
        """
        self._sent += 1
        number, loop = self._sent, asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._pending[number] = future, loop.time() + PATIENCE
        if self._timer is None:
            self._timer = loop.call_later(_LOOK, self._look)
        try:
            await self.link.client.publish(subject, body, f"{self._inbox}.{number}", headers)
            return await future
        finally:
            self._pending.pop(number, None)

    def close(self) -> None:
        """Nothing more will come."""
        self.lose()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def lose(self) -> None:
        """What was sent until now is not answered any more."""
        self._miss(math.inf)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._miss(loop.time())
        self._timer = loop.call_later(_LOOK, self._look) if self._pending else None

    def _miss(self, now: float) -> None:
        """Let those go whose time is over."""
        for future, until in list(self._pending.values()):
            if until > now:
                break
            if not future.done():
                future.set_exception(TimeoutError("no acknowledgement"))

    async def _hear(self, message: Msg) -> None:
        future, _ = self._pending.get(int(message.subject.rpartition(".")[2]), (None, 0.0))
        if future is not None and not future.done():
            future.set_result(_read(message))


def _read(message: Msg) -> Answer:
    if not message.data:
        return Answer("", duplicate=False)
    said: dict[str, Any] = json.loads(message.data)
    error: dict[str, Any] = said.get("error", {})
    if error:
        # 400: another try would meet it again.
        return Answer("", duplicate=False, refusal=str(error.get("description")), final=error.get("code") == 400)  # noqa: PLR2004  # as HTTP has it
    return Answer(said["stream"], bool(said.get("duplicate")))

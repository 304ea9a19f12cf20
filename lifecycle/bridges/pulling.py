"""Messages of a consumer, as many at a time as there is room for.

One inbox, and requests that are renewed before the last is used up. A server that says nothing for a while, a consumer
that is gone, a leader that changed: all of it is `PullBroken`, and whoever pulls sees to the consumer and opens again.
nats-py's own ``fetch`` loses what has come when it is cancelled, and asks twice for what is not there.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from lifecycle._async import wait_within

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from lifecycle.bridges.links import Link

__all__ = ["Pull", "PullBroken"]

#: Seconds that a request stays with the server.
_EXPIRES = 30.0

#: Seconds after which a server that has nothing says so, and seconds of silence that are too many.
_HEARTBEAT, _SILENCE = 2.0, 7.0

#: Seconds for the server to send what it had sent already.
_DRAINING = 1.0

#: What a request ends with in the course of things: nothing there, time over, all delivered.
_USUAL = {"404", "408"}


class PullBroken(Exception):
    """The server gives nothing any more; the message says what it said last."""


class Pull:
    """Asks for what there is ``room`` for, and holds what has come until it is taken."""

    def __init__(self, link: Link, stream: str, group: str, room: Callable[[], int]) -> None:
        self._link = link
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{group}"
        self._room = room
        #: Came, and not yet taken.
        self.waiting: deque[Msg] = deque()
        # Asked for, and not yet come.
        self._wanted = 0
        self._stirred = asyncio.Event()
        self._heard_at = 0.0
        self._trouble = ""
        self._ending = False
        self._inbox = ""
        self._subscription: Subscription | None = None

    async def open(self) -> None:
        """Begin, or begin anew after `PullBroken`."""
        if self._subscription is None:
            self._inbox = self._link.client.new_inbox()
            client = self._link.client
            self._subscription = await client.subscribe(self._inbox, cb=self._hear)  # pyright: ignore[reportUnknownMemberType]  # of nats-py
        self._wanted, self._trouble = 0, ""
        self._heard_at = asyncio.get_running_loop().time()

    async def next(self) -> Msg | None:
        """The next message; None once it is to end.

        Raises:
            PullBroken: when nothing will come unless it is opened anew.
        """
        while not self._ending:
            if self.waiting:
                return self.waiting.popleft()
            if self._trouble:
                raise PullBroken(self._trouble)
            self._stirred.clear()
            await self._ask()
            await self._listen()
        return None

    def stir(self) -> None:
        """There is more room."""
        self._stirred.set()

    def renew(self) -> None:
        """The connection is another: the server knows nothing of what it was asked for."""
        if self._subscription is not None:
            self._trouble = "the connection was lost, and is back"
            self._stirred.set()

    def stop(self) -> None:
        """Let `next` end."""
        self._ending = True
        self._stirred.set()

    async def close(self) -> None:
        """Have nothing more sent; what came until now is in ``waiting``."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with suppress(Exception):
                async with asyncio.timeout(_DRAINING):
                    await subscription.drain()  # type: ignore[no-untyped-call]  # of nats-py

    async def _ask(self) -> None:
        """Ask for as much as there is room for, unless half of that is on its way."""
        room = self._room() - len(self.waiting) - self._wanted
        if room <= 0 or room < self._wanted or not self._link.is_up:
            return
        if not self._wanted:
            self._heard_at = asyncio.get_running_loop().time()
        self._wanted += room
        request = {"batch": room, "expires": int(_EXPIRES * 1e9), "idle_heartbeat": int(_HEARTBEAT * 1e9)}
        await self._link.client.publish(self._subject, json.dumps(request).encode(), self._inbox)

    async def _listen(self) -> None:
        """Wait until something comes or there is more room; notice silence."""
        clock = asyncio.get_running_loop().time
        until = clock() + _HEARTBEAT
        if await wait_within(_HEARTBEAT, self._stirred):
            return
        # Whoever slept himself has not heard what was said meanwhile.
        slept = clock() > until + 1.0
        if self._wanted and not slept and clock() - self._heard_at > _SILENCE:
            self._trouble = f"no word from the server for {_SILENCE:g} s"
            self._link.missed(self._trouble, seconds=_SILENCE)

    async def _hear(self, message: Msg) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        if message.reply.startswith("$JS.ACK."):
            self._wanted = max(0, self._wanted - 1)
            self.waiting.append(message)
        else:
            self._note(message.headers or {})
        self._stirred.set()

    def _note(self, said: dict[str, str]) -> None:
        """A request has ended, or lives."""
        status, text = said.get("Status", ""), said.get("Description", "")
        if status in ("100", ""):
            return
        undelivered = said.get("Nats-Pending-Messages", "")
        self._wanted = max(0, self._wanted - int(undelivered)) if undelivered.isdigit() else 0
        if status not in _USUAL and "Batch Completed" not in text:
            self._trouble = f"{status} {text}".strip()

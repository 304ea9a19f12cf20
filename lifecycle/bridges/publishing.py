"""Events to the bus: each is sent until the server says that it has it, always with the same id."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from lifecycle.backoff import Backoff
from lifecycle.errors import NotPublished, Unpublishable

if TYPE_CHECKING:
    from lifecycle.bridges.links import Link

__all__ = ["PATIENCE", "Publisher"]

_log = logging.getLogger("lifecycle.bridges")

#: Seconds until an event is given up: a cluster that lost its leader takes up to seven, a server that starts less.
PATIENCE = 30.0

#: Seconds for one acknowledgement.
_ANSWER = 3.0

_BACKOFF = Backoff(initial=0.1, maximum=2.0, jitter=0.5)


class Publisher:
    """Publishes through whichever link there is, waiting while there is none."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._link: Link | None = None
        self._waiting: list[asyncio.Future[None]] = []
        #: Acknowledged ones, and those among them that the server had already.
        self.published = self.duplicates = 0

    def use(self, link: Link | None) -> None:
        """Publish through ``link`` from now on."""
        self._link = link
        self.stir()

    def stir(self) -> None:
        """The link may have come up."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    async def publish(self, subject: str, headers: dict[str, str], body: bytes, key: str) -> None:
        """Return when the server has it; ``key`` is what it knows it by.

        Raises:
            NotPublished: when it did not say so within 30 seconds, or refuses it.
            Unpublishable: for more than a message may hold.
        """
        headers["Nats-Msg-Id"], headers["Nats-Expected-Stream"] = key, self._stream
        patience = asyncio.timeout(PATIENCE)
        try:
            async with patience:
                await self._insist(subject, headers, body)
        except TimeoutError:
            if not patience.expired():
                raise
            raise NotPublished(
                f"the bus did not take an event on {subject!r} within {PATIENCE:g} s; it is where it was, send it again"
            ) from None

    async def _insist(self, subject: str, headers: dict[str, str], body: bytes) -> None:
        tries = 0
        while True:
            link = await self._line()
            _check_size(link, subject, headers, body)
            if await self._tried(link, subject, headers, body):
                return
            await asyncio.sleep(_BACKOFF.delay(tries))
            tries += 1

    async def _tried(self, link: Link, subject: str, headers: dict[str, str], body: bytes) -> bool:
        """Whether the server has it now."""
        from nats.errors import BadSubjectError, MaxPayloadError
        from nats.errors import Error as NatsError
        from nats.js.errors import BadRequestError

        try:
            answer = await link.js.publish(subject, body, timeout=_ANSWER, headers=headers)
        except (BadSubjectError, MaxPayloadError, ValueError) as error:
            raise Unpublishable(f"an event on {subject!r} cannot be sent: {error}") from error
        except BadRequestError as error:
            raise NotPublished(f"the bus refuses an event on {subject!r}: {error.description}") from error
        except (NatsError, OSError) as error:
            _log.debug("an event on %s was not acknowledged: %r", subject, error)
            return False
        self.published += 1
        if answer.duplicate:
            self.duplicates += 1
            _log.debug("the bus had the event %s on %s already", headers["Nats-Msg-Id"], subject)
        return True

    async def _line(self) -> Link:
        """A link that is up."""
        while self._link is None or not self._link.is_up:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        return self._link


def _check_size(link: Link, subject: str, headers: dict[str, Any], body: bytes) -> None:
    """The server counts headers too, and ends the connection of who sends more; nats-py looks at the body alone."""
    most: int = link.client.max_payload
    size = len(body) + sum(len(name) + len(value) + 4 for name, value in headers.items()) + 12
    if size > most:
        raise Unpublishable(
            f"an event on {subject!r} has {size:,} bytes with its headers, and {most:,} is the most that the server "
            "takes; put what is big elsewhere and send where it is"
        )

"""Events to the bus: each is sent until the server says that it has it, always with the same id."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from lifecycle._bells import Bell
from lifecycle.backoff import Backoff
from lifecycle.bridges.acknowledging import Acks
from lifecycle.errors import NotPublished, Unpublishable

if TYPE_CHECKING:
    from lifecycle.bridges.links import Link

__all__ = ["PATIENCE", "Publisher", "check_size"]

_log = logging.getLogger("lifecycle.bridges")

#: Seconds until an event is given up: a cluster that lost its leader takes up to seven, a server that starts less.
PATIENCE = 30.0

#: More bytes than the headers of an event have: topics and ids are bounded.
_HEADERS = 16_384

_BACKOFF = Backoff(initial=0.1, maximum=2.0, jitter=0.5)


class Publisher:
    """Publishes through whichever link there is, waiting while there is none."""

    published: int
    duplicates: int

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._acks: Acks | None = None
        # Rung when there may be a link that is up.
        self._bell = Bell()
        #: Acknowledged ones, and those among them that the server had already.
        self.published = self.duplicates = 0

    async def use(self, link: Link) -> None:
        """Publish through ``link`` from now on."""
        acks = Acks(link)
        await acks.open()
        self._acks = acks
        self._bell.ring()

    def leave(self) -> None:
        """There is no link any more."""
        acks, self._acks = self._acks, None
        if acks is not None:
            acks.close()

    def changed(self, *, up: bool) -> None:
        """The link came up, or went down: then answers that were on their way are lost."""
        if not up and self._acks is not None:
            self._acks.lose()
        if up:
            self._bell.ring()

    async def publish(self, subject: str, headers: dict[str, str], body: bytes, key: str) -> None:
        """Return when the server has it; ``key`` is what it knows it by.

        Raises:
            NotPublished: when it did not say so within 30 seconds, or refuses it.
            Unpublishable: for more than a message may hold.
        """
        headers["Nats-Msg-Id"] = key
        acks = self._acks
        # The usual case costs no timer.
        if acks is not None and acks.link.is_up and await self._tried(acks, subject, headers, body):
            return
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
            await asyncio.sleep(_BACKOFF.delay(tries))
            tries += 1
            if await self._tried(await self._line(), subject, headers, body):
                return

    async def _tried(self, acks: Acks, subject: str, headers: dict[str, str], body: bytes) -> bool:
        """Whether the server has it now."""
        check_size(acks.link, subject, headers, body)
        try:
            answer = await acks.publish(subject, body, headers)
        except Exception as error:  # noqa: BLE001  # told apart where nats-py is known
            _judge(error, subject)
            return False
        if answer.final or (answer.stream and answer.stream != self._stream):
            what = answer.refusal or f"it went into the stream {answer.stream!r}"
            kind = Unpublishable if answer.final else NotPublished
            raise kind(f"an event on {subject!r} is not in the stream {self._stream!r}: {what}")
        if not answer.stream:
            _log.debug("an event on %s was not taken: %s", subject, answer.refusal)
            return False
        self.published += 1
        if answer.duplicate:
            self.duplicates += 1
            _log.debug("the bus had the event %s already", headers["Nats-Msg-Id"])
        return True

    async def _line(self) -> Acks:
        """A link that is up."""
        while self._acks is None or not self._acks.link.is_up:
            await self._bell.heard()
        return self._acks


def _judge(error: Exception, subject: str) -> None:
    """Raise what another try would meet again."""
    from nats.errors import BadHeaderError, BadSubjectError, MaxPayloadError
    from nats.errors import Error as NatsError

    if isinstance(error, (BadHeaderError, BadSubjectError, MaxPayloadError)):
        raise Unpublishable(f"an event on {subject!r} cannot be sent: {error}") from error
    if not isinstance(error, (NatsError, OSError)):
        raise error
    _log.debug("an event on %s was not acknowledged: %r", subject, error)


def check_size(link: Link, subject: str, headers: dict[str, str], body: bytes) -> None:
    """Refuse what is too big: the server counts headers too, and ends the connection; nats-py looks at the body alone.

    Raises:
        Unpublishable: for more than a message may hold.
    """
    most: int = link.client.max_payload
    if len(body) + _HEADERS < most:
        return
    size = len(body) + sum(len(name) + len(value) + 4 for name, value in headers.items()) + 12
    if size > most:
        raise Unpublishable(
            f"an event on {subject!r} has {size:,} bytes with its headers, and {most:,} is the most that the server "
            "takes; put what is big elsewhere and send where it is"
        )

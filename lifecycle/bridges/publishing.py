"""Events to the bus: each is sent until the server says that it has it, always with the same id."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from lifecycle._async import Condition
from lifecycle._util import reason_of
from lifecycle.backoff import Backoff
from lifecycle.bridges.acknowledging import PATIENCE as _PATIENCE_FOR_ACK
from lifecycle.bridges.acknowledging import Acks
from lifecycle.bridges.streams import ensure_stream
from lifecycle.errors import BridgeError, NotPublished, Unpublishable

if TYPE_CHECKING:
    from lifecycle.bridges.links import Link

__all__ = ["PATIENCE", "Publisher", "check_size"]

_log = logging.getLogger("lifecycle.bridges")

#: Seconds until an event is given up: a cluster that lost its leader takes up to seven, a server that starts less.
PATIENCE = 30.0

#: More bytes than the headers of an event have: topics and ids are bounded.
_HEADERS = 16_384

_BACKOFF = Backoff(initial=0.1, maximum=2.0, jitter=0.5)

#: Seconds between two inquiries after a missing stream.
_INQUIRY = 1.0

_NO_ACK = f"no acknowledgement within {_PATIENCE_FOR_ACK:g} s"
_NO_STREAM = "no stream answers"


class Publisher:
    """Publishes through the current link, as many events at a time as the bridge may have on their way."""

    published: int
    duplicates: int

    def __init__(self, stream: str, prefix: str, most: int) -> None:
        self._stream, self._prefix, self._most = stream, prefix, most
        self._acks: Acks | None = None
        # Rung when there may be a link that is up.
        self._changed = Condition()
        self._slots = asyncio.Semaphore(most)
        # Finds out why no stream answers, and what it found.
        self._inquiry: asyncio.Task[None] | None = None
        self._finding = ""
        #: Acknowledged ones, and those among them that the server had already.
        self.published = self.duplicates = 0

    async def use(self, link: Link) -> None:
        """Publish through ``link`` from now on."""
        acks = Acks(link)
        await acks.open()
        self._acks = acks
        self._finding = ""
        # A semaphore belongs to one event loop, and a bridge may run in another one the next time.
        self._slots = asyncio.Semaphore(self._most)
        self._changed.notify_all()

    async def leave(self) -> None:
        """There is no link any more."""
        acks, self._acks = self._acks, None
        if acks is not None:
            acks.close()
        inquiry, self._inquiry = self._inquiry, None
        if inquiry is not None:
            inquiry.cancel()
            await asyncio.wait([inquiry])

    def changed(self, *, up: bool) -> None:
        """The link came up, or went down: then answers that were on their way are lost."""
        if not up and self._acks is not None:
            self._acks.lose()
        if up:
            self._changed.notify_all()

    async def publish(self, subject: str, headers: dict[str, str], body: bytes, key: str) -> None:
        """Return when the server has it; ``key`` is what it knows it by.

        Raises:
            NotPublished: when it did not say so within 30 seconds of the call, or refuses it; with the reason.
            Unpublishable: for more than a message may hold.
        """
        headers["Nats-Msg-Id"] = key
        until = asyncio.get_running_loop().time() + PATIENCE
        slots = self._slots
        is_full = slots.locked()
        if is_full:
            try:
                async with asyncio.timeout_at(until):
                    await slots.acquire()
            except TimeoutError:
                raise self._late(subject, "the events before it are not acknowledged") from None
        else:
            await slots.acquire()
        try:
            # The usual case costs no timer.
            why = "" if is_full else await self._tried(subject, headers, body)
            if is_full or why:
                await self._insist(subject, headers, body, why, until)
        finally:
            slots.release()

    async def _insist(self, subject: str, headers: dict[str, str], body: bytes, why: str, until: float) -> None:
        """Try until the server has it; ``why`` is the reason of the last try, empty before the first."""
        tries = 0
        patience = asyncio.timeout_at(until)
        try:
            async with patience:
                while True:
                    if why:
                        await asyncio.sleep(_BACKOFF.delay(tries))
                        tries += 1
                    while self._acks is None or not self._acks.link.is_up:
                        why = self._no_link()
                        await self._changed.wait()
                    why = await self._tried(subject, headers, body)
                    if not why:
                        return
        except TimeoutError:
            if not patience.expired():
                raise
            raise self._late(subject, why or _NO_ACK) from None

    async def _tried(self, subject: str, headers: dict[str, str], body: bytes) -> str:
        """Send it, and return why the server does not have it now; empty when it has it."""
        acks = self._acks
        if acks is None or not acks.link.is_up:
            return self._no_link()
        link = acks.link
        check_size(link, subject, headers, body)
        try:
            answer = await acks.publish(subject, body, headers)
        except TimeoutError:
            if link.is_up:
                link.missed(_NO_ACK, seconds=_PATIENCE_FOR_ACK)
            return _NO_ACK
        except Exception as error:  # noqa: BLE001  # told apart where nats-py is known
            return _judge(error, subject)
        if answer.final or (answer.stream and answer.stream != self._stream):
            what = answer.refusal or f"it went into the stream {answer.stream!r}"
            kind = Unpublishable if answer.final else NotPublished
            raise kind(f"an event on {subject!r} is not in the stream {self._stream!r}: {what}")
        if answer.stream:
            link.answered()
            self.published += 1
            if answer.duplicate:
                self.duplicates += 1
                _log.debug("the bus had the event %s already", headers["Nats-Msg-Id"])
            return ""
        _log.debug("an event on %s was not taken: %s", subject, answer.refusal)
        if answer.refusal:
            link.answered()
            return f"the server refuses it: {answer.refusal}"
        link.missed(_NO_STREAM)
        self._inquire(link)
        return self._finding or _NO_STREAM

    def _inquire(self, link: Link) -> None:
        """Find out why no stream answers; one that is missing is made again."""
        if self._inquiry is None or self._inquiry.done():
            self._inquiry = asyncio.get_running_loop().create_task(self._find(link), name="bridge: missing stream")

    async def _find(self, link: Link) -> None:
        from nats.errors import Error as NatsError

        try:
            is_new = await ensure_stream(link, self._stream, self._prefix)
        except BridgeError as error:
            self._finding = str(error)
        except (NatsError, TimeoutError, OSError) as error:
            self._finding = f"{_NO_STREAM}: {error}"
        else:
            self._finding = ""
            if is_new:
                _log.warning("the stream %r was gone, with its events; it is made again", self._stream)
        await asyncio.sleep(_INQUIRY)

    def _no_link(self) -> str:
        trouble = "" if self._acks is None else self._acks.link.trouble
        return f"there is no connection{trouble and ': '}{trouble}"

    def _late(self, subject: str, why: str) -> NotPublished:
        return NotPublished(
            f"the bus did not take an event on {subject!r} within {PATIENCE:g} s: {why}; send it again, with the same "
            "id it is stored once"
        )


def _judge(error: Exception, subject: str) -> str:
    """Raise what another try would meet again, and return any other error as text."""
    from nats.errors import BadHeaderError, BadSubjectError, MaxPayloadError
    from nats.errors import Error as NatsError

    if isinstance(error, (BadHeaderError, BadSubjectError, MaxPayloadError)):
        raise Unpublishable(f"an event on {subject!r} cannot be sent: {error}") from None
    if not isinstance(error, (NatsError, OSError)):
        raise error
    _log.debug("an event on %s was not acknowledged: %r", subject, error)
    return reason_of(error)


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

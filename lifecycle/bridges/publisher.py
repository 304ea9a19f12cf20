"""Publishes to the bus. Each event is sent with the same id until the server acknowledges it.

`Publisher` retries events. `Acks` receives a connection's acknowledgements through a single inbox with a single
timer. We don't use nats-py's publishing methods. For each event, ``publish`` creates a timer and two futures, which
would cost more than everything else the bridge does. ``publish_async`` has no timeout.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import quote

from lifecycle._async import Condition, start_task
from lifecycle._util import reason_of
from lifecycle.backoff import Backoff
from lifecycle.bridges.streams import ensure_stream
from lifecycle.bridges.subjects import LONGEST, as_token
from lifecycle.errors import BridgeError, NotPublished, Unpublishable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nats.aio.msg import Msg

    from lifecycle.bridges.connection import Connection
    from lifecycle.bridges.streams import Settings

__all__ = [
    "LONGEST_REASON",
    "PUBLISH_TIMEOUT",
    "Acks",
    "Answer",
    "DeadLetter",
    "Publisher",
    "check_size",
    "dead_letter",
    "message_key",
]


_log = logging.getLogger("lifecycle.bridges")

#: Seconds before publishing fails. A cluster takes up to seven seconds to replace a lost leader. A single server takes
#: less time to start up.
PUBLISH_TIMEOUT = 30.0

#: Seconds to wait for an acknowledgement, and seconds between checks for missing ones.
_ACK_TIMEOUT, _LOOK = 3.0, 0.5

#: The maximum number of bytes in an event's headers. The lengths of topics and ids are limited separately.
_HEADERS = 16_384

_BACKOFF = Backoff(initial=0.1, maximum=2.0, jitter=0.5)

#: Seconds between checks that the stream exists.
_INQUIRY = 1.0

_NO_ACK = f"no acknowledgement within {_ACK_TIMEOUT:g} s"

_NO_STREAM = "no stream responds"


class Publisher:
    """Publishes through the current connection, with at most ``most`` events in flight."""

    published: int
    duplicates: int

    def __init__(self, stream: str, prefix: str, most: int) -> None:
        self._stream, self._prefix, self._most = stream, prefix, most
        self._acks: Acks | None = None
        # Notified when the connection may have come up.
        self._changed = Condition()
        self._slots = asyncio.Semaphore(most)
        # A task that finds out why no stream responds.
        self._inquiry: asyncio.Task[None] | None = None
        # The result of that task.
        self._finding = ""
        #: How many events were acknowledged, and how many of those were duplicates.
        self.published = self.duplicates = 0

    async def use(self, connection: Connection) -> None:
        """Publish through ``connection`` from now on."""
        acks = Acks(connection)
        await acks.open()
        self._acks = acks
        self._finding = ""
        # A semaphore belongs to an event loop, and the bridge may run in a different loop the next time.
        self._slots = asyncio.Semaphore(self._most)
        self._changed.notify_all()

    async def leave(self) -> None:
        """Stop publishing, because the connection is closed."""
        acks, self._acks = self._acks, None
        if acks is not None:
            acks.close()
        inquiry, self._inquiry = self._inquiry, None
        if inquiry is not None:
            inquiry.cancel()
            await asyncio.wait([inquiry])

    def changed(self, *, up: bool) -> None:
        """Record that the connection has come up, or that it has gone down and lost its pending acknowledgements."""
        if not up and self._acks is not None:
            self._acks.lose()
        if up:
            self._changed.notify_all()

    async def publish(self, subject: str, headers: dict[str, str], body: bytes, key: str) -> None:
        """Publish an event, and return once the server has stored it. ``key`` identifies the event on the server.

        Raises:
            NotPublished: if the server rejected the event or did not acknowledge it within 30 seconds.
            Unpublishable: if the event exceeds the message size limit.
        """
        headers["Nats-Msg-Id"] = key
        until = asyncio.get_running_loop().time() + PUBLISH_TIMEOUT
        slots = self._slots
        is_full = slots.locked()
        if is_full:
            try:
                async with asyncio.timeout_at(until):
                    await slots.acquire()
            except TimeoutError:
                raise self._late(subject, "earlier events have not been acknowledged") from None
        else:
            await slots.acquire()
        try:
            # This usually succeeds, without needing a timer.
            why = "" if is_full else await self._tried(subject, headers, body)
            if is_full or why:
                await self._insist(subject, headers, body, why, until)
        finally:
            slots.release()

    async def _insist(self, subject: str, headers: dict[str, str], body: bytes, why: str, until: float) -> None:
        """Retry until the server has stored the message. ``why`` is the reason for the last failure, or empty."""
        tries = 0
        patience = asyncio.timeout_at(until)
        try:
            async with patience:
                while True:
                    if why:
                        await asyncio.sleep(_BACKOFF.delay(tries))
                        tries += 1
                    while self._acks is None or not self._acks.connection.is_up:
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
        """Send the message once. Return an empty string on success, or the reason for the failure."""
        acks = self._acks
        if acks is None or not acks.connection.is_up:
            return self._no_link()
        connection = acks.connection
        check_size(connection, subject, headers, body)
        try:
            answer = await acks.publish(subject, body, headers)
        except TimeoutError:
            if connection.is_up:
                connection.missed(_NO_ACK, seconds=_ACK_TIMEOUT)
            return _NO_ACK
        except Exception as error:  # noqa: BLE001  # `_judge` distinguishes the errors, where nats-py is imported
            return _judge(error, subject)
        if answer.final or (answer.stream and answer.stream != self._stream):
            what = answer.refusal or f"it was stored in the stream {answer.stream!r}"
            kind = Unpublishable if answer.final else NotPublished
            raise kind(f"an event on {subject!r} is not in the stream {self._stream!r}: {what}")
        if answer.stream:
            connection.answered()
            self.published += 1
            if answer.duplicate:
                self.duplicates += 1
                _log.debug("the bus already had the event %s", headers["Nats-Msg-Id"])
            return ""
        _log.debug("an event on %s was not accepted: %s", subject, answer.refusal)
        if answer.refusal:
            connection.answered()
            return f"the server rejected it: {answer.refusal}"
        connection.missed(_NO_STREAM)
        self._inquire(connection)
        return self._finding or _NO_STREAM

    def _inquire(self, connection: Connection) -> None:
        """Find out why no stream responds, and recreate the stream if it is missing."""
        if self._inquiry is None or self._inquiry.done():
            self._inquiry = start_task(self._find(connection), name="bridge: missing stream")

    async def _find(self, connection: Connection) -> None:
        from nats.errors import Error as NatsError

        try:
            is_new = await ensure_stream(connection, self._stream, self._prefix)
        except BridgeError as error:
            self._finding = str(error)
        except (NatsError, TimeoutError, OSError) as error:
            self._finding = f"{_NO_STREAM}: {error}"
        else:
            self._finding = ""
            if is_new:
                _log.warning("the stream %r was missing, so its events are lost; creating it again", self._stream)
        await asyncio.sleep(_INQUIRY)

    def _no_link(self) -> str:
        trouble = "" if self._acks is None else self._acks.connection.trouble
        return f"there is no connection{trouble and ': '}{trouble}"

    def _late(self, subject: str, why: str) -> NotPublished:
        return NotPublished(
            f"the bus did not accept an event on {subject!r} within {PUBLISH_TIMEOUT:g} s: {why}; you can "
            "send it again safely with the same id"
        )


def _judge(error: Exception, subject: str) -> str:
    """Raise the error if retrying would not help. Otherwise, return it as text."""
    from nats.errors import BadHeaderError, BadSubjectError, MaxPayloadError
    from nats.errors import Error as NatsError

    if isinstance(error, (BadHeaderError, BadSubjectError, MaxPayloadError)):
        raise Unpublishable(f"an event on {subject!r} cannot be sent: {error}") from None
    if not isinstance(error, (NatsError, OSError)):
        raise error
    _log.debug("an event on %s was not acknowledged: %r", subject, error)
    return reason_of(error)


def check_size(connection: Connection, subject: str, headers: dict[str, str], body: bytes) -> None:
    """Check that a message does not exceed the server's size limit.

    The server also counts the headers, and disconnects senders that exceed the limit. nats-py only checks the body.

    Raises:
        Unpublishable: if the message is too large.
    """
    most: int = connection.client.max_payload
    if len(body) + _HEADERS < most:
        return
    size = len(body) + sum(len(name) + len(value) + 4 for name, value in headers.items()) + 12
    if size > most:
        raise Unpublishable(
            f"an event on {subject!r} is {size:,} bytes including its headers, but the server's limit is {most:,}; "
            "store large data elsewhere and send a reference to it"
        )


class Answer(NamedTuple):
    """The server's response to a publication."""

    #: The stream that stored the event. Empty if the event was rejected.
    stream: str
    #: Whether the stream already had the event.
    duplicate: bool
    #: Why the event was rejected. Empty if no stream responded.
    refusal: str = ""
    #: Whether retrying is pointless.
    final: bool = False


class Acks:
    """A connection's publications that have not been acknowledged yet."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._inbox = ""
        self._sent = 0
        # Futures and their deadlines, by number. The oldest comes first.
        self._pending: dict[int, tuple[asyncio.Future[Answer], float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Subscribe to the inbox for acknowledgements."""
        client = self.connection.client
        self._inbox = client.new_inbox()
        await client.subscribe(f"{self._inbox}.*", cb=self._hear)  # pyright: ignore[reportUnknownMemberType]  # of nats-py

    async def publish(self, subject: str, body: bytes, headers: dict[str, str]) -> Answer:
        """Send a message, and wait for the response.

        Raises:
            TimeoutError: if no response arrives within three seconds, or if the connection is lost first.
            nats.errors.Error: if the message cannot be sent.
        """
        self._sent += 1
        number, loop = self._sent, asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._pending[number] = future, loop.time() + _ACK_TIMEOUT
        if self._timer is None:
            self._timer = loop.call_later(_LOOK, self._look)
        try:
            await self.connection.client.publish(subject, body, f"{self._inbox}.{number}", headers)
            return await future
        finally:
            self._pending.pop(number, None)

    def close(self) -> None:
        """Fail all pending publications, then stop."""
        self.lose()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def lose(self) -> None:
        """Fail all pending publications, because their acknowledgements are lost."""
        self._miss(math.inf)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._miss(loop.time())
        self._timer = loop.call_later(_LOOK, self._look) if self._pending else None

    def _miss(self, now: float) -> None:
        """Fail publications whose deadline has passed."""
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
        # If the error code is 400, a retry would only be rejected again.
        return Answer("", duplicate=False, refusal=str(error.get("description")), final=error.get("code") == 400)  # noqa: PLR2004  # as HTTP has it
    return Answer(said["stream"], bool(said.get("duplicate")))


#: A dead letter's subject, headers, body and key.
DeadLetter: TypeAlias = tuple[str, dict[str, str], bytes, str]

#: The maximum number of characters in a reason. The rest is cut off.
LONGEST_REASON = 500


def message_key(subject: str, id: str) -> str:  # noqa: A002  # the attribute's name
    """Return the key that identifies an event on the server.

    The id is not enough, because several topics may share it.
    """
    return f"{id} {subject}"


def dead_letter(
    message: Msg, topic: str, settings: Settings, *, reason: str, attempts: int, readable: bool
) -> Iterator[DeadLetter]:
    """Yield the dead letter for ``message``, then a smaller variant. Yield nothing if the subject would be too long.

    The dead letter is the same event plus the reason for its failure. If the message is not ``readable``, the data is
    the raw body.
    """
    subject = f"{settings.prefix}.dead.{'.'.join(as_token(segment) for segment in topic.split('/'))}"
    if len(subject) > LONGEST + len("dead."):
        return
    number = message.metadata.sequence.stream
    headers = {name: value for name, value in (message.headers or {}).items() if not name.lower().startswith("nats-")}
    if not readable:
        headers = {name: value for name, value in headers.items() if name.lower() != "content-type"}
        headers["ce-datacontenttype"] = "application/octet-stream"
    if "ce-subject" in headers:
        headers["ce-subject"] = f"dead/{headers['ce-subject']}"
    told = {"dead-group": settings.group, "dead-attempts": str(attempts)}
    for body, others, id, what in (  # noqa: A001  # its name
        (message.data, headers, headers.get("ce-id") or number, ""),
        (
            b"",
            {},
            number,
            f"; it is too big for a dead letter, but is still in event {number} of {settings.stream}",
        ),
    ):
        name = f"{id}.dead.{settings.group}"
        marks = told | {"ce-id": name, "dead-reason": _quoted(reason[:LONGEST_REASON] + what)}
        yield subject, others | marks, body, message_key(subject, name)


def _quoted(text: str) -> str:
    return quote(text, safe=" !#$&'()*+,-./:;<=>?@[]^_`{|}~", errors="replace")

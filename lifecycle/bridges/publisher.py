"""Events to the bus: each is sent until the server says that it has it, always with the same id."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import quote

from lifecycle._async import Condition
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
    "Letter",
    "Publisher",
    "check_size",
    "dead_letter",
    "message_key",
]


_log = logging.getLogger("lifecycle.bridges")

#: Seconds until an event is given up: a cluster that lost its leader takes up to seven, a server that starts less.
PUBLISH_TIMEOUT = 30.0

#: Seconds for one acknowledgement, and between two looks at what has none.
_ACK_TIMEOUT, _LOOK = 3.0, 0.5

#: More bytes than the headers of an event have: topics and ids are bounded.
_HEADERS = 16_384

_BACKOFF = Backoff(initial=0.1, maximum=2.0, jitter=0.5)

#: Seconds between two inquiries after a missing stream.
_INQUIRY = 1.0

_NO_ACK = f"no acknowledgement within {_ACK_TIMEOUT:g} s"

_NO_STREAM = "no stream answers"


class Publisher:
    """Publishes through the current connection, as many events at a time as the bridge may have on their way."""

    published: int
    duplicates: int

    def __init__(self, stream: str, prefix: str, most: int) -> None:
        self._stream, self._prefix, self._most = stream, prefix, most
        self._acks: Acks | None = None
        # Notified when there may be a connection that is up.
        self._changed = Condition()
        self._slots = asyncio.Semaphore(most)
        # Finds out why no stream answers, and what it found.
        self._inquiry: asyncio.Task[None] | None = None
        self._finding = ""
        #: Acknowledged ones, and those among them that the server had already.
        self.published = self.duplicates = 0

    async def use(self, connection: Connection) -> None:
        """Publish through ``connection`` from now on."""
        acks = Acks(connection)
        await acks.open()
        self._acks = acks
        self._finding = ""
        # A semaphore belongs to one event loop, and a bridge may run in another one the next time.
        self._slots = asyncio.Semaphore(self._most)
        self._changed.notify_all()

    async def leave(self) -> None:
        """There is no connection any more."""
        acks, self._acks = self._acks, None
        if acks is not None:
            acks.close()
        inquiry, self._inquiry = self._inquiry, None
        if inquiry is not None:
            inquiry.cancel()
            await asyncio.wait([inquiry])

    def changed(self, *, up: bool) -> None:
        """The connection came up, or went down: then answers that were on their way are lost."""
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
        until = asyncio.get_running_loop().time() + PUBLISH_TIMEOUT
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
        """Send it, and return why the server does not have it now; empty when it has it."""
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
        except Exception as error:  # noqa: BLE001  # told apart where nats-py is known
            return _judge(error, subject)
        if answer.final or (answer.stream and answer.stream != self._stream):
            what = answer.refusal or f"it went into the stream {answer.stream!r}"
            kind = Unpublishable if answer.final else NotPublished
            raise kind(f"an event on {subject!r} is not in the stream {self._stream!r}: {what}")
        if answer.stream:
            connection.answered()
            self.published += 1
            if answer.duplicate:
                self.duplicates += 1
                _log.debug("the bus had the event %s already", headers["Nats-Msg-Id"])
            return ""
        _log.debug("an event on %s was not taken: %s", subject, answer.refusal)
        if answer.refusal:
            connection.answered()
            return f"the server refuses it: {answer.refusal}"
        connection.missed(_NO_STREAM)
        self._inquire(connection)
        return self._finding or _NO_STREAM

    def _inquire(self, connection: Connection) -> None:
        """Find out why no stream answers; one that is missing is made again."""
        if self._inquiry is None or self._inquiry.done():
            self._inquiry = asyncio.get_running_loop().create_task(
                self._find(connection), name="bridge: missing stream"
            )

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
                _log.warning("the stream %r was gone, with its events; it is made again", self._stream)
        await asyncio.sleep(_INQUIRY)

    def _no_link(self) -> str:
        trouble = "" if self._acks is None else self._acks.connection.trouble
        return f"there is no connection{trouble and ': '}{trouble}"

    def _late(self, subject: str, why: str) -> NotPublished:
        return NotPublished(
            f"the bus did not take an event on {subject!r} within {PUBLISH_TIMEOUT:g} s: {why}; send it "
            "again: with the same id it is stored once"
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


def check_size(connection: Connection, subject: str, headers: dict[str, str], body: bytes) -> None:
    """Refuse what is too big: the server counts headers too, and ends the connection; nats-py looks at the body alone.

    Raises:
        Unpublishable: for more than a message may hold.
    """
    most: int = connection.client.max_payload
    if len(body) + _HEADERS < most:
        return
    size = len(body) + sum(len(name) + len(value) + 4 for name, value in headers.items()) + 12
    if size > most:
        raise Unpublishable(
            f"an event on {subject!r} has {size:,} bytes with its headers, and {most:,} is the most that the server "
            "takes; put what is big elsewhere and send where it is"
        )


class Answer(NamedTuple):
    """What the server says of a publication."""

    #: Where it is; empty where it was not taken.
    stream: str
    duplicate: bool
    #: Why it was not taken, empty where no stream answers; and whether it is for good.
    refusal: str = ""
    final: bool = False


class Acks:
    """What was sent through one connection and is not yet acknowledged."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._inbox = ""
        self._sent = 0
        # By number, so that the oldest is the first: who waits, and until when.
        self._pending: dict[int, tuple[asyncio.Future[Answer], float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Listen for answers."""
        client = self.connection.client
        self._inbox = client.new_inbox()
        await client.subscribe(f"{self._inbox}.*", cb=self._hear)  # pyright: ignore[reportUnknownMemberType]  # of nats-py

    async def publish(self, subject: str, body: bytes, headers: dict[str, str]) -> Answer:
        """Send, and wait for the answer.

        Raises:
            TimeoutError: when there is none within three seconds, or the connection ends first.
            nats.errors.Error: when it cannot be sent.
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


#: Subject, headers, body and key.
Letter: TypeAlias = tuple[str, dict[str, str], bytes, str]

#: Characters of a reason that are kept.
LONGEST_REASON = 500


def message_key(subject: str, id: str) -> str:  # noqa: A002  # the attribute's name
    """What the server knows an event by: one id may stand on several topics."""
    return f"{id} {subject}"


def dead_letter(
    message: Msg, topic: str, settings: Settings, *, reason: str, attempts: int, readable: bool
) -> Iterator[Letter]:
    """The dead letter of ``message``, and one that takes less room; none where its subject takes too much.

    It is the same event, and what became of it. One that is not ``readable`` has the bytes of the body for its data.
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
        (b"", {}, number, f"; it is too big for a letter, and stays in event {number} of {settings.stream}"),
    ):
        name = f"{id}.dead.{settings.group}"
        marks = told | {"ce-id": name, "dead-reason": _quoted(reason[:LONGEST_REASON] + what)}
        yield subject, others | marks, body, message_key(subject, name)


def _quoted(text: str) -> str:
    return quote(text, safe=" !#$&'()*+,-./:;<=>?@[]^_`{|}~", errors="replace")

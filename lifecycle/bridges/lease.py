"""A lease: one key of a bucket on the server, which one process has at a time, as long as it goes on renewing it.

The key ends by itself when it was not renewed in time. Of several who want it one gets it, and who was frozen meanwhile
is told that it is over, as every write names the revision that it follows (``lease_keys``).
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
import uuid
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lifecycle.bridges.publisher import check_size
from lifecycle.bridges.streams import replicated
from lifecycle.bridges.subjects import as_subject, as_token
from lifecycle.errors import BridgeError, NotLeader, UnfitServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nats.js.api import StreamConfig

    from lifecycle.bridges.connection import Connection

__all__ = [
    "BUCKET",
    "OPERATION",
    "STREAM",
    "Entry",
    "Holder",
    "Lease",
    "LeaseKey",
    "Refused",
    "ensure_bucket",
    "read_holder",
    "unanswered",
]


#: The part of a lease that its holder gives up, so that it has let go when the server gives it to another.
_MARGIN = 0.1

#: Seconds for the last word.
_RELEASE = 1.0


class Lease:
    """A lease of ``seconds``, as one who wants it or has it sees it.

    Every write waits for the one before it: each has to name the revision that the one before has made.
    """

    def __init__(self, connection: Connection, name: str, seconds: float) -> None:
        self.seconds = seconds
        self.me: Final = Holder(uuid.uuid4().hex, f"{socket.gethostname()}:{os.getpid()}", seconds)
        self.key: Final = LeaseKey(connection, name, self.me)
        #: The revision with which it was gained: the fencing token.
        self.token: int = 0
        # The last revision that we know to be ours, 0 for none; and until when it is ours by our own clock.
        self._revision = 0
        self._until = -math.inf
        self._turn = asyncio.Lock()

    @property
    def is_ours(self) -> bool:
        """Whether nobody else can have it now, as far as clocks can tell."""
        return self.left > 0

    @property
    def left(self) -> float:
        """Seconds that it is ours by our own clock."""
        return self._until - asyncio.get_running_loop().time() if self._revision else 0.0

    async def take(self) -> Holder:
        """Get it if nobody has it; who has it then.

        Raises:
            Exception: one of `unanswered`; it may be ours all the same, and is found so the next time.
        """
        async with self._turn:
            entry = await self.key.read()
            if entry.holder is not None and not self.key.is_mine(entry):
                return entry.holder
            sent = asyncio.get_running_loop().time()
            try:
                self._revision = await self.key.write(entry.revision)
            except Refused:
                return (await self.key.read()).holder or read_holder(None)
            self.token, self._until = self._revision, self._end(sent)
            return self.me

    async def renew(self) -> None:
        """Have it for its whole time from now on.

        Raises:
            NotLeader: when somebody else has it, or nobody.
            Exception: one of `unanswered`.
        """
        async with self._turn:
            sent = asyncio.get_running_loop().time()
            self._revision = await self._insist(lambda: self.key.write(self._revision))
            self._until = self._end(sent)

    async def put(self, key: str, value: bytes, token: int) -> int:
        """Write ``value`` if the lease is that of ``token`` in that very moment, by the server's account.

        Raises:
            NotLeader: when it is not.
            Unpublishable: for too long a key, and more than a message may hold.
            Exception: one of `unanswered`.
        """
        async with self._turn:
            # It may have been lost and gained again since, and another have led in between.
            if not self.is_ours or self.token != token:
                raise NotLeader(f"{key!r} was not written: this process does not lead, or no longer")
            return await self._insist(lambda: self.key.put(key, value, self._revision))

    def forget(self) -> None:
        """It is not ours any more, or not sure to be."""
        self._revision, self._until = 0, -math.inf

    async def release(self) -> None:
        """Give it back, so that another has it at once; where that cannot be said, it ends by itself."""
        try:
            with suppress(*unanswered(), Refused):
                async with asyncio.timeout(_RELEASE), self._turn:
                    await self.key.nak()
        finally:
            self.forget()

    async def _insist(self, write: Callable[[], Awaitable[int]]) -> int:
        """What ``write`` returns; one that is refused may be so because the answer to another of ours was lost.

        Raises:
            NotLeader: when the lease is not ours.
            TimeoutError: when another write is still under way.
        """
        with suppress(Refused):
            return await write()
        await self._find_ours()
        with suppress(Refused):
            return await write()
        raise TimeoutError("another write came first")

    async def _find_ours(self) -> None:
        """Learn the revision of a write of ours whose answer was lost."""
        entry = await self.key.read()
        if not self.key.is_mine(entry) or entry.revision < self._revision:
            self.forget()
            raise NotLeader(f"{entry.holder.place if entry.holder else 'nobody'} has the lease")
        if entry.revision == self._revision:
            raise TimeoutError("another write is still under way")
        self._revision = entry.revision

    def _end(self, sent: float) -> float:
        """When what was sent at ``sent`` is over for us: the server counts from a later moment."""
        return sent + self.seconds * (1 - _MARGIN)


def unanswered() -> tuple[type[Exception], ...]:
    """What says nothing about the lease: the server cannot be talked to, or is not ready."""
    from nats.errors import Error as NatsError

    return (NatsError, TimeoutError, OSError)


#: Where leases are kept, and what their holders write.
BUCKET = "LEADERS"

STREAM = f"KV_{BUCKET}"

#: Seconds for an answer, at most.
_ANSWER = 2.0

#: Another revision is the last; another write is under way, which may or may not be ours.
_WRONG_SEQUENCE = (10071, 10164)

_EXPECTED = "Nats-Expected-Last-Subject-Sequence"

_OF_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"

#: What is in the headers of who gave it back.
OPERATION = "KV-Operation"


class Holder(NamedTuple):
    """Who has a lease, by what stands in its key."""

    id: str
    #: Its machine and process, for people.
    place: str
    #: Seconds.
    lease: float


class Entry(NamedTuple):
    """What is in the key: the last revision, and who wrote it; None if it was given back."""

    revision: int
    holder: Holder | None


class Refused(Exception):
    """The server compared revisions and did not take the write."""


class LeaseKey:
    """The key of the lease ``name``, for ``me``, who may get it."""

    def __init__(self, connection: Connection, name: str, me: Holder) -> None:
        self.subject: str = f"$KV.{BUCKET}.{as_token(name)}"
        self._connection, self._me = connection, me

    def is_mine(self, entry: Entry) -> bool:
        """Whether it was we who wrote it."""
        return entry.holder is not None and entry.holder.id == self._me.id

    async def read(self) -> Entry:
        """Who has it."""
        from nats.js.errors import NotFoundError

        try:
            message = await self._last(self.subject)
        except NotFoundError:
            return Entry(0, None)
        return Entry(message.seq, None if OPERATION in (message.headers or {}) else read_holder(message.data))

    async def write(self, expected: int) -> int:
        """Have it for as long as a lease lasts, if ``expected`` is its last revision; the new one.

        Raises:
            Refused: where it is not.
        """
        me = self._me
        holder = json.dumps({"id": me.id, "place": me.place, "lease": me.lease})
        # A server counts whole seconds.
        return await self._publish(self.subject, holder.encode(), {_EXPECTED: str(expected)}, ttl=math.ceil(me.lease))

    async def nak(self) -> None:
        """Have it no more, if we had it."""
        entry = await self.read()
        if self.is_mine(entry):
            await self._publish(self.subject, b"", {_EXPECTED: str(entry.revision), OPERATION: "DEL"}, ttl=1)

    async def get(self, name: str) -> bytes | None:
        """What was last put under ``name``, by whoever had the key then."""
        from nats.js.errors import NotFoundError

        try:
            message = await self._last(as_subject(name, self.subject))
        except NotFoundError:
            return None
        return message.data or b""

    async def put(self, name: str, value: bytes, revision: int) -> int:
        """Write ``value`` under ``name``, if ``revision`` is the last of the key.

        Raises:
            Refused: where it is not.
            Unpublishable: for too long a name, and more than a message may hold.
        """
        subject = as_subject(name, self.subject)
        headers = {_EXPECTED: str(revision), _OF_SUBJECT: self.subject}
        check_size(self._connection, subject, headers, value)
        return await self._publish(subject, value, headers)

    async def _publish(self, subject: str, body: bytes, headers: dict[str, str], ttl: int | None = None) -> int:
        from nats.js.errors import APIError

        try:
            answer = await self._connection.js.publish(
                subject, body, timeout=self._patience, headers=headers, msg_ttl=ttl
            )
        except APIError as error:
            if error.err_code in _WRONG_SEQUENCE:
                raise Refused from error
            if error.code == 400:  # noqa: PLR2004  # as HTTP has it: another try would meet it again
                raise BridgeError(f"the server does not take {subject!r}: {error.description}") from error
            raise
        return answer.seq

    async def _last(self, subject: str) -> Any:
        """The last message; from the stream's leader, since any other copy may be behind."""
        async with asyncio.timeout(self._patience):
            return await self._connection.js.get_last_msg(STREAM, subject)

    @property
    def _patience(self) -> float:
        return min(_ANSWER, self._me.lease / 4)


def read_holder(value: bytes | None) -> Holder:
    """Who stands in a key; somebody, where another program wrote it in its own way."""
    try:
        said: Any = json.loads(value or b"")
        return Holder(str(said["id"]), str(said["place"]), float(said["lease"]))
    except (ValueError, KeyError, TypeError):
        return Holder("", "somebody", 0.0)


async def ensure_bucket(connection: Connection) -> None:
    """See that there is a bucket for leases.

    Raises:
        UnfitServer: when there is one that is of no use, or none can be made.
    """
    if not (connection.said("jetstream") or connection.said("cluster")):
        raise UnfitServer(f"{connection.server!r} keeps no buckets; start nats-server with --jetstream")
    _compare(await replicated(connection, partial(_bucket, connection), f"the bucket {BUCKET!r}"))


async def _bucket(connection: Connection, copies: int) -> StreamConfig:
    """The settings of the stream behind the bucket, which is made if there is none."""
    from nats.js.errors import NotFoundError

    try:
        return (await connection.js.stream_info(STREAM)).config
    except NotFoundError:
        await connection.js.create_key_value(bucket=BUCKET, replicas=copies)  # pyright: ignore[reportUnknownMemberType]  # of nats-py
        return (await connection.js.stream_info(STREAM)).config


def _compare(config: StreamConfig) -> None:
    wrong = [
        (not config.allow_msg_ttl, "its keys do not end by themselves"),
        (bool(config.max_age), "it forgets what it is to keep"),
        (bool(config.sealed), "it is sealed"),
    ]
    for is_so, what in wrong:
        if is_so:
            raise UnfitServer(f"the bucket {BUCKET!r} is of no use for leases: {what}; delete it, and one is made")

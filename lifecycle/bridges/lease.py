"""A lease: a key in a bucket on the server. One process at a time holds the lease, as long as it keeps renewing it.

The key expires unless it is renewed in time. Each write contains the previous revision, and the server rejects the
write if there is a newer one. This ensures that only one of several candidates gets the lease, and that a process that
was suspended finds out that it has lost its lease. Values stored below the key are fenced in the same way.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
import time
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


#: The fraction of a lease that its holder leaves unused. The holder therefore stops before the server gives the lease
#: to another process.
_MARGIN = 0.1

#: How many seconds to allow for giving the lease back.
_RELEASE = 1.0


class Lease:
    """A lease that lasts ``seconds``, from the point of view of a process that wants or holds it.

    Each write waits for the previous write, because it has to contain the revision that the previous write created.
    """

    def __init__(self, connection: Connection, name: str, seconds: float) -> None:
        self.seconds = seconds
        self.me: Final = Holder(uuid.uuid4().hex, f"{socket.gethostname()}:{os.getpid()}", seconds)
        self.key: Final = LeaseKey(connection, name, self.me)
        #: The fencing token, which is the revision that this process wrote when it gained the lease.
        self.token: int = 0
        # The last revision that this process wrote, or 0 if it does not have the lease.
        self._revision = 0
        # When the lease expires, according to this process's clock.
        self._until = -math.inf
        self._turn = asyncio.Lock()

    @property
    def is_ours(self) -> bool:
        """Whether this process currently holds the lease, according to its own clock."""
        return self.left > 0

    @property
    def left(self) -> float:
        """Seconds until this process's lease expires, according to its own clock. 0 if it does not hold the lease."""
        return self._until - asyncio.get_running_loop().time() if self._revision else 0.0

    async def take(self) -> Holder:
        """Take the lease if it is free, and return its holder.

        Raises:
            Exception: one of `unanswered`. This process may have taken the lease anyway, in which case the next call
                renews it.
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
        """Renew the lease for its full duration.

        Raises:
            NotLeader: if this process does not hold the lease.
            Exception: one of `unanswered`.
        """
        async with self._turn:
            sent = asyncio.get_running_loop().time()
            self._revision = await self._insist(lambda: self.key.write(self._revision))
            self._until = self._end(sent)

    async def put(self, key: str, value: bytes, token: int) -> int:
        """Write ``value``, unless the server finds that this process no longer holds the lease with ``token``.

        Raises:
            NotLeader: if this process does not hold that lease.
            Unpublishable: if the key is too long, or if the value exceeds the message size limit.
            Exception: one of `unanswered`.
        """
        async with self._turn:
            # The lease may have been lost and regained, with another leader in between.
            if not self.is_ours or self.token != token:
                raise NotLeader(f"{key!r} was not written: this process is not the leader")
            return await self._insist(lambda: self.key.put(key, value, self._revision))

    def forget(self) -> None:
        """Treat the lease as lost."""
        self._revision, self._until = 0, -math.inf

    async def release(self) -> None:
        """Give the lease back, so that another process can take it immediately.

        If the server does not respond, the lease expires later.
        """
        try:
            with suppress(*unanswered(), Refused):
                async with asyncio.timeout(_RELEASE), self._turn:
                    await self.key.nak()
        finally:
            self.forget()

    async def _insist(self, write: Callable[[], Awaitable[int]]) -> int:
        """Return the result of ``write``. If the write is rejected because an earlier response was lost, try again.

        Raises:
            NotLeader: if this process does not hold the lease.
            TimeoutError: if another write is still in progress.
        """
        with suppress(Refused):
            return await write()
        await self._find_ours()
        with suppress(Refused):
            return await write()
        raise TimeoutError("another write came first")

    async def _find_ours(self) -> None:
        """Find the revision of this process's last write, in case the response to it was lost."""
        entry = await self.key.read()
        if not self.key.is_mine(entry) or entry.revision < self._revision:
            self.forget()
            raise NotLeader(f"{entry.holder.place if entry.holder else 'no process'} has the lease")
        if entry.revision == self._revision:
            raise TimeoutError("another write is still in progress")
        self._revision = entry.revision

    def _end(self, sent: float) -> float:
        """Return when to treat a lease requested at ``sent`` as expired. On the server, the lease expires later."""
        return sent + self.seconds * (1 - _MARGIN)


def unanswered() -> tuple[type[Exception], ...]:
    """Return the exceptions that leave the lease's state unknown because the server is unreachable or not ready."""
    from nats.errors import Error as NatsError

    return (NatsError, TimeoutError, OSError)


#: The bucket that stores leases, and the values that their holders write.
BUCKET = "LEADERS"

STREAM = f"KV_{BUCKET}"

#: How many seconds to wait for a response.
_ANSWER = 2.0

#: Two error codes. The first code means that there is a newer revision. The second code means that another write,
#: perhaps from this process, is in progress.
_WRONG_SEQUENCE = (10071, 10164)

#: Error code: there is a stream with that name and other settings.
_NAME_IN_USE = 10058

_EXPECTED = "Nats-Expected-Last-Subject-Sequence"

_OF_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"

#: A header in the write that gives a lease back.
OPERATION = "KV-Operation"


class Holder(NamedTuple):
    """The holder of a lease, as stored in its key."""

    id: str
    #: The holder's machine and process, for display.
    place: str
    #: How many seconds the lease lasts.
    lease: float


class Entry(NamedTuple):
    """The key's value: the latest revision and its author, or None if the lease was given back."""

    revision: int
    holder: Holder | None


class Refused(Exception):
    """The server compared the revisions and rejected the write."""


class LeaseKey:
    """The key of the lease ``name``. ``me`` is the candidate that reads and writes it."""

    def __init__(self, connection: Connection, name: str, me: Holder) -> None:
        self.subject: str = f"$KV.{BUCKET}.{as_token(name)}"
        self._connection, self._me = connection, me

    def is_mine(self, entry: Entry) -> bool:
        """Return whether this process wrote ``entry``."""
        return entry.holder is not None and entry.holder.id == self._me.id

    async def read(self) -> Entry:
        """Return the key's current value."""
        from nats.js.errors import NotFoundError

        try:
            message = await self._last(self.subject)
        except NotFoundError:
            return Entry(0, None)
        return Entry(message.seq, None if OPERATION in (message.headers or {}) else read_holder(message.data))

    async def write(self, expected: int) -> int:
        """Take or renew the lease if ``expected`` is the latest revision, and return the new one.

        Raises:
            Refused: if ``expected`` is not the latest revision.
        """
        me = self._me
        holder = json.dumps({"id": me.id, "place": me.place, "lease": me.lease})
        # The server only supports whole seconds.
        return await self._publish(self.subject, holder.encode(), {_EXPECTED: str(expected)}, ttl=math.ceil(me.lease))

    async def nak(self) -> None:
        """Give the lease back, if this process holds it."""
        entry = await self.read()
        if self.is_mine(entry):
            await self._publish(self.subject, b"", {_EXPECTED: str(entry.revision), OPERATION: "DEL"}, ttl=1)

    async def get(self, name: str) -> bytes | None:
        """Return the last value stored under ``name``, or None. Any earlier leader may have written it."""
        from nats.js.errors import NotFoundError

        try:
            message = await self._last(as_subject(name, self.subject))
        except NotFoundError:
            return None
        return message.data or b""

    async def put(self, name: str, value: bytes, revision: int) -> int:
        """Write ``value`` under ``name``, if ``revision`` is the key's latest revision.

        Raises:
            Refused: if ``revision`` is not the latest revision.
            Unpublishable: if the name is too long, or if the value exceeds the message size limit.
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
            if error.code == 400:  # noqa: PLR2004  # HTTP's status for a bad request, which would be refused again
                raise BridgeError(f"the server does not accept {subject!r}: {error.description}") from error
            raise
        return answer.seq

    async def _last(self, subject: str) -> Any:
        """Return the last message. It is read from the stream's leader, because other copies may be out of date."""
        async with asyncio.timeout(self._patience):
            return await self._connection.js.get_last_msg(STREAM, subject)

    @property
    def _patience(self) -> float:
        return min(_ANSWER, self._me.lease / 4)


def read_holder(value: bytes | None) -> Holder:
    """Return the holder stored in a key, or an unknown holder if the value comes from another program."""
    try:
        said: Any = json.loads(value or b"")
        return Holder(str(said["id"]), str(said["place"]), float(said["lease"]))
    except (ValueError, KeyError, TypeError):
        return Holder("", "another program", 0.0)


async def ensure_bucket(connection: Connection) -> bool:
    """Create the bucket for leases if it is missing, and check it. Return whether it was created.

    Raises:
        UnfitServer: if the existing bucket cannot be used, or if it cannot be created.
    """
    if not (connection.said("jetstream") or connection.said("cluster")):
        raise UnfitServer(f"{connection.server!r} does not support buckets; start nats-server with --jetstream")
    config, is_new = await replicated(connection, partial(_bucket, connection), f"the bucket {BUCKET!r}")
    _compare(config)
    return is_new


async def _bucket(connection: Connection, copies: int) -> tuple[StreamConfig, bool]:
    """Return the settings of the bucket's stream, and whether this call created it."""
    from nats.js.api import DiscardPolicy, StorageType, StreamConfig
    from nats.js.errors import APIError, NotFoundError

    try:
        return (await connection.js.stream_info(STREAM)).config, False
    except NotFoundError:
        # The settings of a bucket that nats-py creates, except for the first revision. If the bucket is deleted and
        # created again, fencing tokens must be higher than all earlier ones, so revisions begin at the time.
        wanted = StreamConfig(
            name=STREAM,
            subjects=[f"$KV.{BUCKET}.>"],
            allow_rollup_hdrs=True,
            allow_msg_ttl=True,
            deny_delete=True,
            discard=DiscardPolicy.NEW,
            duplicate_window=120.0,
            max_msgs_per_subject=1,
            num_replicas=copies,
            storage=StorageType.FILE,
            first_seq=int(time.time() * 1000),
        )
    try:
        return (await connection.js.add_stream(wanted)).config, True  # pyright: ignore[reportUnknownMemberType]  # of nats-py
    except APIError as error:
        if error.err_code != _NAME_IN_USE:
            raise
        # Another process has created it in the meantime.
        return (await connection.js.stream_info(STREAM)).config, False


def _compare(config: StreamConfig) -> None:
    wrong = [
        (not config.allow_msg_ttl, "its keys do not expire"),
        (bool(config.max_age), "it deletes old values"),
        (bool(config.sealed), "it is sealed"),
    ]
    for is_so, what in wrong:
        if is_so:
            raise UnfitServer(f"the bucket {BUCKET!r} cannot be used for leases: {what}; delete it and restart")

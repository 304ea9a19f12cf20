"""`LeaseKey`: the key of a bucket on the server that a lease is, as one who wants it reads and writes it.

Whoever writes says which revision they know, and the server takes the write if that is still the last. What is put
below the key is fenced in the same way: the server compares the revision of the key itself in the same step.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from lifecycle.bridges.publishing import check_size
from lifecycle.bridges.subjects import as_subject, as_token
from lifecycle.errors import BridgeError

if TYPE_CHECKING:
    from lifecycle.bridges.links import Link

__all__ = ["BUCKET", "OPERATION", "STREAM", "Entry", "Holder", "LeaseKey", "Refused", "read_holder"]

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

    def __init__(self, link: Link, name: str, me: Holder) -> None:
        self.subject: str = f"$KV.{BUCKET}.{as_token(name)}"
        self._link, self._me = link, me

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

    async def give_back(self) -> None:
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
        check_size(self._link, subject, headers, value)
        return await self._publish(subject, value, headers)

    async def _publish(self, subject: str, body: bytes, headers: dict[str, str], ttl: int | None = None) -> int:
        from nats.js.errors import APIError

        try:
            answer = await self._link.js.publish(subject, body, timeout=self._patience, headers=headers, msg_ttl=ttl)
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
            return await self._link.js.get_last_msg(STREAM, subject)

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

"""The outcomes of earlier deliveries: which events were handled here, and how often the group failed to handle others.

The server counts deliveries, and an event that was only prefetched and given back is delivered too. So the bridge
counts failures itself. They are kept on the server, in a bucket: the next delivery may go to another process.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from lifecycle._util import reason_of
from lifecycle.bridges.streams import replicated
from lifecycle.errors import UnfitServer

if TYPE_CHECKING:
    from lifecycle.bridges.connection import Connection
    from lifecycle.bridges.streams import Settings

__all__ = ["BUCKET", "DedupeCache", "Failures", "Key", "PastAttempts"]

_log = logging.getLogger("lifecycle.bridges")

_Value = TypeVar("_Value")

#: A message: its number in the stream, and when it was stored, since a stream that was made again counts from 1.
Key: TypeAlias = tuple[int, str]

#: Events that are remembered, of each kind.
_MOST = 10_000

#: The bucket, its age limit in seconds, and the most events in it; the oldest go first.
BUCKET = "FAILURES"
_STREAM = f"KV_{BUCKET}"
_KEPT, _MOST_KEPT = 7 * 24 * 3600.0, 1_000_000

#: Seconds for an answer of the server, and for the bucket to be made.
_ANSWER, _MAKING = 2.0, 5.0

#: Seconds without questions after one that was not answered: each would hold up the events behind it.
_QUIET = 30.0


class PastAttempts(NamedTuple):
    """How often an event has failed, and the reason of the last failure."""

    failures: int = 0
    reason: str = ""
    #: Deliveries until a member without a subscription returned it: they do not indicate a crash.
    refused: int = 0


class DedupeCache:
    """Which of the last events were handled by this process, and the failures of others; it outlives a connection."""

    def __init__(self) -> None:
        # Both in the order in which they were noted; the oldest is forgotten first.
        self._handled: dict[Key, None] = {}
        self._failures: dict[Key, PastAttempts] = {}

    def past(self, key: Key) -> PastAttempts:
        """Return the failures that this process has noted."""
        return self._failures.get(key, PastAttempts())

    def failed(self, key: Key, past: PastAttempts) -> None:
        """Note the failures of an event."""
        _note(self._failures, key, past)

    def handled(self, key: Key) -> None:
        """Note that an event has come to its end."""
        self._failures.pop(key, None)
        _note(self._handled, key, None)

    def was_handled(self, key: Key) -> bool:
        """Return whether the event was handled before: its acknowledgement was lost."""
        return key in self._handled


class Failures:
    """The failures of a group's events, in the bucket ``FAILURES`` and in ``dedupe``.

    The bucket is made with the first failure. Where the account does not allow one, each process counts alone. So it
    does for half a minute after a question that the server did not answer.
    """

    def __init__(self, connection: Connection, settings: Settings, dedupe: DedupeCache) -> None:
        self._connection = connection
        self._prefix = f"$KV.{BUCKET}.{settings.stream}.{settings.group}"
        self._dedupe = dedupe
        #: Whether other processes see what is noted.
        self.is_shared: bool = True
        # Until when the server is not asked, and whether a warning about it was logged.
        self._quiet_until = 0.0
        self._is_told = False

    async def past(self, key: Key) -> PastAttempts:
        """Return the failures of an event, as far as the server answers."""
        known = self._dedupe.past(key)
        if not self._is_asked():
            return known
        from nats.errors import Error as NatsError
        from nats.js.errors import NotFoundError

        try:
            async with asyncio.timeout(_ANSWER):
                message = await self._connection.js.get_last_msg(_STREAM, self._subject(key))
        except NotFoundError:
            return known
        except (NatsError, TimeoutError, OSError) as error:
            self._note_trouble(error)
            return known
        return max(known, _read(message.data))

    async def note(self, key: Key, past: PastAttempts) -> None:
        """Store the failures of an event; if the server does not answer, this process stores them later."""
        self._dedupe.failed(key, past)
        if not self._is_asked():
            return
        from nats.errors import Error as NatsError
        from nats.js.errors import NoStreamResponseError

        try:
            try:
                await self._write(key, past)
            except NoStreamResponseError:
                async with asyncio.timeout(_MAKING):
                    await replicated(self._connection, self._make, f"the bucket {BUCKET!r}")
                await self._write(key, past)
        except UnfitServer as error:
            self._count_alone(error)
        except (NatsError, TimeoutError, OSError) as error:
            self._note_trouble(error)
        else:
            self._is_told = False

    def _is_asked(self) -> bool:
        return self.is_shared and asyncio.get_running_loop().time() >= self._quiet_until

    def _count_alone(self, reason: object) -> None:
        self.is_shared = False
        _log.warning("%s; this process counts the failures of its events alone", reason)

    def _note_trouble(self, error: Exception) -> None:
        """Count alone for a while, or for good if the server denies access, which it does not report in an answer."""
        trouble = self._connection.trouble
        if isinstance(error, TimeoutError) and "permissions violation" in trouble.lower() and BUCKET in trouble.upper():
            if self.is_shared:
                self._count_alone(trouble)
            return
        if isinstance(error, TimeoutError):
            self._quiet_until = asyncio.get_running_loop().time() + _QUIET
        level = logging.DEBUG if self._is_told else logging.WARNING
        self._is_told = True
        _log.log(
            level,
            "the bucket %r cannot be used (%s); until it can, this process counts the failures of its events alone",
            BUCKET,
            reason_of(error),
        )

    async def _write(self, key: Key, past: PastAttempts) -> None:
        body = json.dumps(past._asdict()).encode()
        await self._connection.js.publish(self._subject(key), body, timeout=_ANSWER)

    async def _make(self, copies: int) -> None:
        from nats.js.api import StorageType, StreamConfig
        from nats.js.errors import NotFoundError

        # An operator may have changed it.
        with suppress(NotFoundError):
            await self._connection.js.stream_info(_STREAM)
            return
        config = StreamConfig(
            name=_STREAM,
            subjects=[f"$KV.{BUCKET}.>"],
            storage=StorageType.FILE,
            max_age=_KEPT,
            max_msgs=_MOST_KEPT,
            max_msgs_per_subject=1,
            num_replicas=copies,
            allow_direct=True,
            allow_rollup_hdrs=True,
        )
        await self._connection.js.add_stream(config)  # pyright: ignore[reportUnknownMemberType]  # of nats-py

    def _subject(self, key: Key) -> str:
        number, stored = key
        return f"{self._prefix}.{number}-{stored}"


def _read(data: bytes | None) -> PastAttempts:
    """Return the record that `Failures.note` wrote; an empty one if another program wrote the value."""
    try:
        said: Any = json.loads(data or b"")
        return PastAttempts(int(said["failures"]), str(said["reason"]), int(said.get("refused", 0)))
    except (ValueError, KeyError, TypeError):
        return PastAttempts()


def _note(notes: dict[Key, _Value], key: Key, value: _Value) -> None:
    if len(notes) >= _MOST:
        del notes[next(iter(notes))]
    notes[key] = value

"""The outcomes of earlier deliveries: events that this process has handled, and failures counted for the group.

The server's delivery count includes events that were only prefetched and returned, so the bridge counts failures
itself. The counts are kept in a bucket on the server, because the next delivery may go to a different process.
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

#: Identifies a message by its number in the stream and the time when it was stored. The number alone is ambiguous,
#: because a stream that is created again counts from 1.
Key: TypeAlias = tuple[int, str]

#: Maximum number of handled events, and of failed events, that this process remembers.
_MOST = 10_000

#: The bucket that stores the failures.
BUCKET = "FAILURES"
_STREAM = f"KV_{BUCKET}"

#: Maximum age of a record in seconds, and maximum number of events in the bucket. The oldest are removed first.
_KEPT, _MOST_KEPT = 7 * 24 * 3600.0, 1_000_000

#: Seconds for the server to respond, and for the bucket to be created.
_ANSWER, _MAKING = 2.0, 5.0

#: Seconds without further requests after one that timed out. Each request would delay the following events.
_QUIET = 30.0


class PastAttempts(NamedTuple):
    """The number of times that an event failed, and the reason for the last failure."""

    failures: int = 0
    reason: str = ""
    #: Number of deliveries that a member without a subscription returned; they do not indicate a crash.
    refused: int = 0


class DedupeCache:
    """The last events that this process handled, and the failures of other events; kept across connections."""

    def __init__(self) -> None:
        # Both dictionaries are in the order of recording, so that the oldest entry is removed first.
        self._handled: dict[Key, None] = {}
        self._failures: dict[Key, PastAttempts] = {}

    def past(self, key: Key) -> PastAttempts:
        """Return the failures that this process has recorded for an event."""
        return self._failures.get(key, PastAttempts())

    def failed(self, key: Key, past: PastAttempts) -> None:
        """Record the failures of an event in this process."""
        _note(self._failures, key, past)

    def handled(self, key: Key) -> None:
        """Record that an event has ended."""
        self._failures.pop(key, None)
        _note(self._handled, key, None)

    def was_handled(self, key: Key) -> bool:
        """Return whether the event was already handled and only its acknowledgement was lost."""
        return key in self._handled


class Failures:
    """The failures of a group's events, in the bucket ``FAILURES`` and in ``dedupe``.

    The bucket is created with the first failure. If the account does not allow a bucket, each process counts alone. A
    process also counts alone for half a minute after a request to which the server did not respond.
    """

    def __init__(self, connection: Connection, settings: Settings, dedupe: DedupeCache) -> None:
        self._connection = connection
        self._prefix = f"$KV.{BUCKET}.{settings.stream}.{settings.group}"
        self._dedupe = dedupe
        #: Whether other processes can read the records.
        self.is_shared: bool = True
        # The time until which this process sends no requests to the server.
        self._quiet_until = 0.0
        # Whether a warning about missing responses was logged.
        self._is_told = False

    async def past(self, key: Key) -> PastAttempts:
        """Return the failures of an event, or only those known to this process if the server does not respond."""
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
        """Store the failures of an event. If the server does not respond, this process stores them later."""
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
        _log.warning("%s; only failures in this process are counted", reason)

    def _note_trouble(self, error: Exception) -> None:
        """Count alone for a while, or permanently if the server denies access. A denied request gets no response."""
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
            "the bucket %r cannot be used (%s); until it can, only failures in this process are counted",
            BUCKET,
            reason_of(error),
        )

    async def _write(self, key: Key, past: PastAttempts) -> None:
        body = json.dumps(past._asdict()).encode()
        await self._connection.js.publish(self._subject(key), body, timeout=_ANSWER)

    async def _make(self, copies: int) -> None:
        from nats.js.api import StorageType, StreamConfig
        from nats.js.errors import NotFoundError

        # An operator may have changed the bucket's settings.
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
    """Return the record that `Failures.note` wrote, or an empty record if another program wrote the value."""
    try:
        said: Any = json.loads(data or b"")
        return PastAttempts(int(said["failures"]), str(said["reason"]), int(said.get("refused", 0)))
    except (ValueError, KeyError, TypeError):
        return PastAttempts()


def _note(notes: dict[Key, _Value], key: Key, value: _Value) -> None:
    if len(notes) >= _MOST:
        del notes[next(iter(notes))]
    notes[key] = value

"""The outcomes of earlier deliveries: events that this process has handled, and the group's failure counts.

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

#: Identifies a message by its number in the stream and the time when it was stored. The number alone would be
#: ambiguous, because numbers in a recreated stream start at 1 again.
Key: TypeAlias = tuple[int, str]

#: The maximum number of handled events, and of failed events, that this process remembers.
_MOST = 10_000

#: The bucket that stores the failures.
BUCKET = "FAILURES"
_STREAM = f"KV_{BUCKET}"

#: The maximum age of a record in seconds, and the maximum number of events in the bucket. The oldest
#: records are removed first.
_KEPT, _MOST_KEPT = 7 * 24 * 3600.0, 1_000_000

#: How many seconds to wait for a response, and for the bucket to be created.
_ANSWER, _MAKING = 2.0, 5.0

#: How many seconds to wait after a request has timed out before sending another one. Each request that times out
#: delays the events that follow.
_QUIET = 30.0


class PastAttempts(NamedTuple):
    """How many times an event has failed, and the reason for the last failure."""

    failures: int = 0
    reason: str = ""
    #: The number of deliveries that were returned by members without a subscription. These are not a sign of a crash.
    refused: int = 0


class DedupeCache:
    """The last events that this process handled, and the failures of other events. The records outlive connections."""

    def __init__(self) -> None:
        # Both dictionaries list entries in the order in which they were recorded, so that the oldest are removed first.
        self._handled: dict[Key, None] = {}
        self._failures: dict[Key, PastAttempts] = {}

    def past(self, key: Key) -> PastAttempts:
        """Return the failures that this process has recorded for an event."""
        return self._failures.get(key, PastAttempts())

    def failed(self, key: Key, past: PastAttempts) -> None:
        """Record an event's failures in this process."""
        _note(self._failures, key, past)

    def handled(self, key: Key) -> None:
        """Record that an event has been handled."""
        self._failures.pop(key, None)
        _note(self._handled, key, None)

    def was_handled(self, key: Key) -> bool:
        """Return whether the event was already handled. If so, its acknowledgement was lost."""
        return key in self._handled


class Failures:
    """The failures of a group's events, which are kept in the bucket ``FAILURES`` and in ``dedupe``.

    The bucket is created when the first failure occurs. If the account does not allow this, each process only counts
    its own failures. If the server does not respond to a request, the process only counts its own for half a minute.
    """

    def __init__(self, connection: Connection, settings: Settings, dedupe: DedupeCache) -> None:
        self._connection = connection
        self._prefix = f"$KV.{BUCKET}.{settings.stream}.{settings.group}"
        self._dedupe = dedupe
        #: Whether other processes can read the records.
        self.is_shared: bool = True
        # This process sends no requests to the server until this time.
        self._quiet_until = 0.0
        # Whether we have logged a warning about missing responses.
        self._is_told = False

    async def past(self, key: Key) -> PastAttempts:
        """Return an event's failures. If the server does not respond, return those that this process recorded."""
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
        """Store an event's failures. If the server does not respond, store the failures later."""
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
        _log.warning("%s; counting only the failures in this process", reason)

    def _note_trouble(self, error: Exception) -> None:
        """Only count our own failures for a while, or permanently if the server denies access.

        Denied requests get no response.
        """
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
            "cannot use the bucket %r (%s); counting only the failures in this process until it can be used",
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
    """Return the record written by `Failures.note`, or an empty one if the value comes from another program."""
    try:
        said: Any = json.loads(data or b"")
        return PastAttempts(int(said["failures"]), str(said["reason"]), int(said.get("refused", 0)))
    except (ValueError, KeyError, TypeError):
        return PastAttempts()


def _note(notes: dict[Key, _Value], key: Key, value: _Value) -> None:
    if len(notes) >= _MOST:
        del notes[next(iter(notes))]
    notes[key] = value

"""The file of an inbox: the requests that were accepted, and their results.

Opening it needs only the file; delivering from it needs the lock, which one process has at a time.
"""

from __future__ import annotations

import json
import logging
import math
import os
from typing import TYPE_CHECKING, NamedTuple

from lifecycle._util import error_text
from lifecycle.events import WebhookEvent
from lifecycle.journal import QUEUES, Journal, Queue
from lifecycle.journal.database import FileLock

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from lifecycle.journal import Entry

__all__ = ["WEBHOOKS", "InboxStore", "Message", "lock_path", "packed", "stored_error", "unpacked"]

_log = logging.getLogger("lifecycle.sources")

#: The queue of webhooks, in a file that may hold other queues too.
WEBHOOKS = Queue("webhook")

#: Characters of an error that are kept.
_LONGEST_ERROR = 1000

#: Messages that are read from the file at a time.
_BATCH = 50


class Message(NamedTuple):
    """An accepted request that is to be delivered."""

    id: int
    event: WebhookEvent
    attempt: int = 1
    failures: int = 0


def lock_path(path: str | os.PathLike[str]) -> str:
    """Return the lock file of the process that delivers from the file at ``path``, for any name of that file."""
    return f"{os.path.realpath(path)}-lock"


def packed(event: WebhookEvent) -> bytes:
    """Return ``event`` as a line of JSON, and the body as it came."""
    head = json.dumps([event.method, event.path, event.headers, event.query, event.id])
    return head.encode() + b"\n" + event.body


def unpacked(message: bytes) -> WebhookEvent:
    """Return the event that was `packed`.

    Raises:
        ValueError: for other bytes.
    """
    head, _, body = message.partition(b"\n")
    try:
        method, path, headers, query, identity = json.loads(head)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if not (isinstance(path, str) and path.startswith("/")):
        raise ValueError(f"{path!r} is not a path")
    return WebhookEvent(method, path, headers, query, body, identity)


def stored_error(error: BaseException) -> str:
    """Return the text of an error as it is stored with its message."""
    return error_text(error)[:_LONGEST_ERROR]


class InboxStore:
    """The file of one inbox, while a process uses it; keys are remembered for ``dedupe`` seconds."""

    def __init__(self, path: str | os.PathLike[str], *, dedupe: float) -> None:
        self.path = os.fspath(path)
        self._dedupe = dedupe
        self._journal = Journal(self.path, QUEUES)
        self._lock = FileLock(lock_path(self.path))
        self._is_open = False

    async def open(self) -> None:
        """Open the file, or create it.

        Raises:
            JournalError: when it cannot be used; the message has the reason.
        """
        if not self._is_open:
            await self._journal.__aenter__()
            self._is_open = True

    async def close(self) -> None:
        """Close the file and release the lock; when cancelled, too."""
        if self._is_open:
            self._is_open = False
            try:
                await self._journal.__aexit__(None, None, None)
            finally:
                self._lock.release()

    def take_lock(self) -> bool:
        """Take the lock; return False if another process delivers from this file."""
        return self._lock.take()

    def has_lock(self) -> bool:
        """Return whether the lock is ours; if its file was deleted, take it again unless another process was faster."""
        if self._lock.is_there():
            return True
        _log.error(
            "the lock %s was deleted; another receiver may have delivered from the same file meanwhile",
            self._lock.path,
        )
        self._lock.release()
        return self._lock.take()

    async def accept(self, event: WebhookEvent, key: str, *, ours: bool) -> int | None:
        """Put ``event`` on disk and return its number; None if it was there before.

        ``ours``: this process delivers it at once. Otherwise the process with the lock finds it.
        """
        message, name, now, remember = packed(event), _storable(key), self._journal.time(), self._dedupe
        leased = math.inf if ours else 0.0
        return await self._journal.run(
            lambda db: WEBHOOKS.accept(db, message, now=now, key=name, remember=remember, leased=leased)
        )

    async def take_over(self) -> None:
        """Release the messages of the last owner, once this process has the lock."""
        await self._journal.run(WEBHOOKS.release_all)

    async def due(self) -> tuple[list[Message], float]:
        """Return the oldest messages that are free and due, and in how many seconds there may be more.

        A message that cannot be read becomes a dead letter.
        """
        now = self._journal.time()

        def look(db: sqlite3.Connection) -> tuple[list[Message], float]:
            WEBHOOKS.forget(db, now=now)
            entries = WEBHOOKS.lease(db, now=now, limit=_BATCH)
            messages = list(_opened(db, entries))
            if len(entries) == _BATCH:
                return messages, 0.0
            later = WEBHOOKS.next_due(db, now=now)
            return messages, math.inf if later is None else later - now

        return await self._journal.run(look)

    async def counts(self) -> dict[str, int]:
        """Return how many messages wait or are being delivered, and how many are dead."""
        return await self._journal.run(WEBHOOKS.counts)

    async def done(self, numbers: list[int]) -> None:
        """Store that they were handled."""
        await self._journal.run(lambda db: WEBHOOKS.done(db, *numbers))

    async def retry(self, number: int, delay: float, error: str) -> None:
        """Store that it failed, and is due again after ``delay`` seconds."""
        due, text = self._journal.time() + delay, _storable(error)
        await self._journal.run(lambda db: WEBHOOKS.retry(db, number, due=due, error=text))

    async def discard(self, number: int, error: str) -> None:
        """Store that it failed for good, and is a dead letter."""
        text = _storable(error)
        await self._journal.run(lambda db: WEBHOOKS.discard(db, number, error=text))

    async def release(self, numbers: list[int]) -> None:
        """Release messages that were not delivered."""
        if numbers:
            await self._journal.run(lambda db: WEBHOOKS.release(db, *numbers))


def _storable(text: str) -> str:
    """Return ``text`` as a database can store it: header values may hold invalid characters."""
    return text.encode("utf-8", "backslashreplace").decode()


def _opened(db: sqlite3.Connection, entries: list[Entry]) -> Iterator[Message]:
    for entry in entries:
        try:
            event = unpacked(entry.body)
        except ValueError as error:
            WEBHOOKS.discard(db, entry.id, error=f"it cannot be read: {error}")
        else:
            yield Message(entry.id, event, entry.attempts, entry.failures)

"""The file of an inbox: the accepted requests and their results.

Any process can open the inbox and add messages, but only the process that holds the lock can deliver them.
"""

from __future__ import annotations

import json
import logging
import math
import os
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from lifecycle.events import WebhookEvent
from lifecycle.journal import QUEUES, Journal, Queue
from lifecycle.journal.database import FileLock

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator

    from lifecycle.journal import Entry

__all__ = ["WEBHOOKS", "InboxStore", "Message", "lock_path", "packed", "unpacked"]

T = TypeVar("T")

_log = logging.getLogger("lifecycle.sources")

#: The queue of webhooks, in a file that may also contain other queues.
WEBHOOKS = Queue("webhook")

#: The maximum number of messages to read from the file at a time.
_BATCH = 50


class Message(NamedTuple):
    """An accepted request that has yet to be delivered."""

    id: int
    event: WebhookEvent
    attempt: int = 1
    failures: int = 0


def lock_path(path: str | os.PathLike[str]) -> str:
    """Return the path of the lock that a process must hold to deliver messages from ``path``. Links are resolved."""
    return f"{os.path.realpath(path)}-lock"


def packed(event: WebhookEvent) -> bytes:
    """Return ``event`` as bytes: a line of JSON, followed by the unchanged body."""
    head = json.dumps([event.method, event.path, event.headers, event.query, event.id])
    return head.encode() + b"\n" + event.body


def unpacked(message: bytes) -> WebhookEvent:
    """Return the event in a message that `packed` created.

    Raises:
        ValueError: if `packed` did not create ``message``.
    """
    head, _, body = message.partition(b"\n")
    try:
        method, path, headers, query, identity = json.loads(head)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if not (isinstance(path, str) and path.startswith("/")):
        raise ValueError(f"{path!r} is not a path")
    return WebhookEvent(method, path, headers, query, body, identity)


class InboxStore:
    """The open file of one inbox. Idempotency keys are kept for ``dedupe`` seconds."""

    def __init__(self, path: str | os.PathLike[str], *, dedupe: float) -> None:
        self.path = os.fspath(path)
        self._dedupe = dedupe
        self._journal = Journal(self.path, QUEUES)
        self._lock = FileLock(lock_path(self.path))
        self._is_open = False

    async def open(self) -> None:
        """Open the file, or create it.

        Raises:
            JournalError: if the file cannot be used. The message contains the reason.
        """
        if not self._is_open:
            await self._journal.__aenter__()
            self._is_open = True

    async def close(self) -> None:
        """Close the file and release the lock, even if cancelled."""
        if self._is_open:
            self._is_open = False
            try:
                await self._journal.__aexit__(None, None, None)
            finally:
                self._lock.release()

    def take_lock(self) -> bool:
        """Try to take the lock. Return False if another process is delivering from this file."""
        return self._lock.take()

    def has_lock(self) -> bool:
        """Return whether this process holds the lock. If the lock file was deleted, try to take the lock again."""
        if self._lock.is_there():
            return True
        _log.error(
            "the lock %s was deleted, so another process may have delivered from the same file in the meantime",
            self._lock.path,
        )
        self._lock.release()
        return self._lock.take()

    async def accept(self, event: WebhookEvent, key: str, *, ours: bool) -> int | None:
        """Store ``event`` on disk and return its number, or None if it is already stored.

        If ``ours`` is true, this process delivers the event itself. Otherwise, the process that holds the lock finds it
        in the file.
        """
        message, name, now, remember = packed(event), _storable(key), self._journal.time(), self._dedupe
        leased = math.inf if ours else 0.0
        return await self.run(
            lambda db: WEBHOOKS.accept(db, message, now=now, key=name, remember=remember, leased=leased)
        )

    async def run(self, step: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``step`` in a transaction, in the thread of the file."""
        return await self._journal.run(step)

    async def due(self) -> tuple[list[Message], float]:
        """Return the oldest messages that are due and unclaimed, and the number of seconds until more may be due.

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

        return await self.run(look)

    async def end(self, number: int, error: str, *, delay: float | None = None) -> None:
        """Record that a message failed. It is due again after ``delay`` seconds, or becomes a dead letter."""
        text = _storable(error)
        if delay is None:
            await self.run(lambda db: WEBHOOKS.discard(db, number, error=text))
        else:
            due = self._journal.time() + delay
            await self.run(lambda db: WEBHOOKS.retry(db, number, due=due, error=text))


def _storable(text: str) -> str:
    """Return ``text`` in a form that a database can store. Header values may contain invalid characters."""
    return text.encode("utf-8", "backslashreplace").decode()


def _opened(db: sqlite3.Connection, entries: list[Entry]) -> Iterator[Message]:
    for entry in entries:
        try:
            event = unpacked(entry.body)
        except ValueError as error:
            WEBHOOKS.discard(db, entry.id, error=f"it cannot be read: {error}")
        else:
            yield Message(entry.id, event, entry.attempts, entry.failures)

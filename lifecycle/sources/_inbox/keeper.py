"""The file of an inbox: what was accepted, and what became of it.

Opening it takes no more than the file; delivering from it takes the lock, which one process has at a time.
"""

from __future__ import annotations

import json
import logging
import math
import os
from typing import TYPE_CHECKING, NamedTuple

from lifecycle._util import error_text
from lifecycle.events import WebhookEvent
from lifecycle.journal import QUEUES, FileLock, Journal, Queue

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from lifecycle.journal import Entry
    from lifecycle.sources.inbox import Inbox

__all__ = ["LETTERS", "Keeper", "Letter", "lock_path", "packed", "told", "unpacked"]

_log = logging.getLogger("lifecycle.sources")

#: Where webhooks are, in a file that others may use too.
LETTERS = Queue("webhook")

#: Characters of an error that are kept.
_LONGEST_ERROR = 1000

#: Letters that are read from the file at a time.
_BATCH = 50


class Letter(NamedTuple):
    """An accepted request that we have to deliver."""

    id: int
    event: WebhookEvent
    attempt: int = 1
    failures: int = 0


def lock_path(path: str | os.PathLike[str]) -> str:
    """Where the lock of whoever delivers from the file at ``path`` is, whatever names lead to that."""
    return f"{os.path.realpath(path)}-lock"


def packed(event: WebhookEvent) -> bytes:
    """A line of JSON, and the body as it came."""
    head = json.dumps([event.method, event.path, event.headers, event.query, event.id])
    return head.encode() + b"\n" + event.body


def unpacked(letter: bytes) -> WebhookEvent:
    """The event that was `packed`.

    Raises:
        ValueError: for what is none.
    """
    head, _, body = letter.partition(b"\n")
    try:
        method, path, headers, query, identity = json.loads(head)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if not (isinstance(path, str) and path.startswith("/")):
        raise ValueError(f"{path!r} is no path")
    return WebhookEvent(method, path, headers, query, body, identity)


def told(error: BaseException) -> str:
    """How a letter failed, as it is kept with it."""
    return error_text(error)[:_LONGEST_ERROR]


class Keeper:
    """One inbox's file, as long as a process uses it."""

    def __init__(self, inbox: Inbox) -> None:
        self.path = os.fspath(inbox.path)
        self._remember = inbox.dedupe
        self._journal = Journal(self.path, QUEUES)
        self._lock = FileLock(lock_path(self.path))
        self.is_open = False

    async def open(self) -> None:
        """Open the file, or make it.

        Raises:
            JournalError: saying what is wrong with it.
        """
        if not self.is_open:
            await self._journal.__aenter__()
            self.is_open = True

    async def close(self) -> None:
        """Let go of the file and of the lock; cancelled too."""
        if self.is_open:
            self.is_open = False
            try:
                await self._journal.__aexit__(None, None, None)
            finally:
                self._lock.release()

    def take_lock(self) -> bool:
        """Whether nobody else delivers from this file now."""
        return self._lock.take()

    def has_lock(self) -> bool:
        """Whether the lock is ours; one whose file was deleted is taken again, unless another process was quicker."""
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

        ``ours``: we deliver it ourselves, at once. Otherwise whoever has the lock finds it.
        """
        letter, name, now, remember = packed(event), _storable(key), self._journal.time(), self._remember
        leased = math.inf if ours else 0.0
        return await self._journal.run(
            lambda db: LETTERS.accept(db, letter, now=now, key=name, remember=remember, leased=leased)
        )

    async def take_over(self) -> None:
        """Now that we have the lock: nobody else has anything."""
        await self._journal.run(LETTERS.release)

    async def due(self) -> tuple[list[Letter], float]:
        """The oldest of those that nobody has and that are due; and in how many seconds there may be more.

        What cannot be read becomes a dead letter on the way.
        """
        now = self._journal.time()

        def look(db: sqlite3.Connection) -> tuple[list[Letter], float]:
            LETTERS.forget(db, now=now)
            entries = LETTERS.lease(db, now=now, limit=_BATCH)
            letters = list(_opened(db, entries))
            if len(entries) == _BATCH:
                return letters, 0.0
            later = LETTERS.next_due(db, now=now)
            return letters, math.inf if later is None else later - now

        return await self._journal.run(look)

    async def counts(self) -> dict[str, int]:
        """How many letters wait or are under way, and how many are dead."""
        return await self._journal.run(LETTERS.counts)

    async def done(self, numbers: list[int]) -> None:
        """They were handled."""
        await self._journal.run(lambda db: LETTERS.done(db, *numbers))

    async def retry(self, number: int, delay: float, error: str) -> None:
        """It failed, and comes again after ``delay`` seconds."""
        due, told = self._journal.time() + delay, _storable(error)
        await self._journal.run(lambda db: LETTERS.retry(db, number, due=due, error=told))

    async def bury(self, number: int, error: str) -> None:
        """It failed for good, and becomes a dead letter."""
        told = _storable(error)
        await self._journal.run(lambda db: LETTERS.bury(db, number, error=told))

    async def give_back(self, numbers: list[int]) -> None:
        """We had them and did nothing with them."""
        if numbers:
            await self._journal.run(lambda db: LETTERS.give_back(db, *numbers))


def _storable(text: str) -> str:
    """``text`` as a database can have it: header values may hold bytes that are no characters."""
    return text.encode("utf-8", "backslashreplace").decode()


def _opened(db: sqlite3.Connection, entries: list[Entry]) -> Iterator[Letter]:
    for entry in entries:
        try:
            event = unpacked(entry.body)
        except ValueError as error:
            LETTERS.bury(db, entry.id, error=f"it cannot be read: {error}")
        else:
            yield Letter(entry.id, event, entry.attempts, entry.failures)

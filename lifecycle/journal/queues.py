"""Durable queues of work with leases, retries and dead letters, and cached counts.

A `Queue` has no connection of its own. Its methods use the connection of the caller's transaction, so that work is
accepted or completed atomically with related changes. The caller passes all times, in seconds since the epoch.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lifecycle._async import start_task
from lifecycle._durations import in_seconds
from lifecycle.journal.database import Schema

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable

    from lifecycle._durations import Duration

__all__ = ["QUEUES", "CachedCounts", "Entry", "Queue"]

QUEUES = Schema(
    "queues",
    (
        (
            # Ids are never reused, so they identify entries and order them by insertion.
            """CREATE TABLE lifecycle_queue (
                id INTEGER PRIMARY KEY AUTOINCREMENT,
                queue TEXT NOT NULL,
                body BLOB NOT NULL,
                accepted REAL NOT NULL,
                due REAL NOT NULL,
                leased REAL NOT NULL,
                attempts INTEGER NOT NULL,
                failures INTEGER NOT NULL DEFAULT 0,
                error TEXT NOT NULL DEFAULT '',
                dead INTEGER NOT NULL DEFAULT 0
            )""",
            "CREATE INDEX lifecycle_queue_waiting ON lifecycle_queue (queue, id) WHERE dead = 0",
            """CREATE TABLE lifecycle_queue_keys (
                queue TEXT NOT NULL,
                key TEXT NOT NULL,
                until REAL NOT NULL,
                PRIMARY KEY (queue, key)
            ) WITHOUT ROWID""",
            "CREATE INDEX lifecycle_queue_keys_until ON lifecycle_queue_keys (queue, until)",
        ),
    ),
)

_COLUMNS = "id, body, accepted, due, leased, attempts, failures, error, dead"


@dataclass(frozen=True, slots=True)
class Entry:
    """Work that has been accepted but is not done yet."""

    id: int
    body: bytes
    accepted: float
    #: The earliest time at which the entry can be leased.
    due: float
    #: When the lease expires, or 0 if there is no lease.
    leased: float
    #: The number of leases so far, including the current one.
    attempts: int
    #: The number of failures so far.
    failures: int
    #: The last error.
    error: str
    #: True if the entry is a dead letter.
    dead: bool


class Queue:
    """The entries of the queue ``name``, in the tables that `QUEUES` creates."""

    def __init__(self, name: str) -> None:
        self.name = name

    def accept(
        self,
        db: sqlite3.Connection,
        body: bytes,
        *,
        now: float,
        key: str = "",
        remember: Duration = 0.0,
        leased: float = 0.0,
    ) -> int | None:
        """Add an entry and return its id, or return None if an entry with the same ``key`` was accepted recently.

        Keys are remembered for ``remember`` seconds, unless they are empty. If ``leased`` is set, the caller gets a
        lease on the new entry until that time.
        """
        kept = in_seconds("remember", remember, least=0)
        if key and kept > 0 and not self._is_new(db, key, now, kept):
            return None
        added = db.execute(
            "INSERT INTO lifecycle_queue (queue, body, accepted, due, leased, attempts) VALUES (?, ?, ?, 0, ?, ?)",
            (self.name, body, now, leased, int(leased > now)),
        )
        return added.lastrowid

    def _is_new(self, db: sqlite3.Connection, key: str, now: float, remember: float) -> bool:
        remembered = db.execute(
            "INSERT INTO lifecycle_queue_keys VALUES (?, ?, ?)"
            " ON CONFLICT DO UPDATE SET until = excluded.until WHERE until <= ?",
            (self.name, key, now + remember, now),
        )
        return remembered.rowcount > 0

    def forget(self, db: sqlite3.Connection, *, now: float) -> None:
        """Remove expired keys."""
        db.execute("DELETE FROM lifecycle_queue_keys WHERE queue = ? AND until <= ?", (self.name, now))

    def lease(self, db: sqlite3.Connection, *, now: float, until: float = math.inf, limit: int = 1) -> list[Entry]:
        """Lease up to ``limit`` due entries that are not leased, oldest first. The leases expire at ``until``."""
        leased = db.execute(
            "UPDATE lifecycle_queue SET leased = ?, attempts = attempts + 1 WHERE id IN"  # noqa: S608  # our own columns
            " (SELECT id FROM lifecycle_queue WHERE queue = ? AND dead = 0 AND due <= ? AND leased <= ?"
            f" ORDER BY id LIMIT ?) RETURNING {_COLUMNS}",
            (until, self.name, now, now, limit),
        )
        return sorted(map(_entry, leased), key=lambda entry: entry.id)

    def next_due(self, db: sqlite3.Connection, *, now: float) -> float | None:
        """Return when the next delayed or leased entry becomes available, or None if there is no such entry."""
        due: tuple[float | None] = db.execute(
            "SELECT min(max(due, leased)) FROM lifecycle_queue"
            " WHERE queue = ? AND dead = 0 AND max(due, leased) > ? AND leased < ?",
            (self.name, now, math.inf),
        ).fetchone()
        return due[0]

    def release_all(self, db: sqlite3.Connection) -> None:
        """End all leases. Call this only when the leases' owners are known to have exited."""
        db.execute("UPDATE lifecycle_queue SET leased = 0 WHERE queue = ? AND dead = 0 AND leased > 0", (self.name,))

    def release(self, db: sqlite3.Connection, *ids: int) -> None:
        """End unused leases without counting them as attempts."""
        db.executemany(
            "UPDATE lifecycle_queue SET leased = 0, attempts = attempts - 1 WHERE queue = ? AND id = ?",
            [(self.name, each) for each in ids],
        )

    def done(self, db: sqlite3.Connection, *ids: int) -> None:
        """Remove completed entries."""
        db.executemany("DELETE FROM lifecycle_queue WHERE queue = ? AND id = ?", [(self.name, each) for each in ids])

    def retry(self, db: sqlite3.Connection, number: int, *, due: float, error: str) -> None:
        """End the lease on an entry that has failed, and retry the entry at ``due``."""
        self._end(db, number, due=due, error=error, dead=False)

    def discard(self, db: sqlite3.Connection, number: int, *, error: str) -> None:
        """Turn an entry that has failed into a dead letter."""
        self._end(db, number, due=0.0, error=error, dead=True)

    def _end(self, db: sqlite3.Connection, number: int, *, due: float, error: str, dead: bool) -> None:
        db.execute(
            "UPDATE lifecycle_queue SET leased = 0, due = ?, failures = failures + 1, error = ?, dead = ?"
            " WHERE queue = ? AND id = ?",
            (due, error, dead, self.name, number),
        )

    def revive(self, db: sqlite3.Connection, number: int) -> bool:
        """Make an entry due now, and reset its failure count. Return False if it is leased or does not exist."""
        changed = db.execute(
            "UPDATE lifecycle_queue SET dead = 0, failures = 0, due = 0 WHERE queue = ? AND id = ? AND leased = 0",
            (self.name, number),
        )
        return changed.rowcount > 0

    def get(self, db: sqlite3.Connection, number: int) -> Entry | None:
        """Return the entry with this id, or None if it does not exist."""
        row = db.execute(
            f"SELECT {_COLUMNS} FROM lifecycle_queue WHERE queue = ? AND id = ?",  # noqa: S608  # our own columns
            (self.name, number),
        ).fetchone()
        return None if row is None else _entry(row)

    def counts(self, db: sqlite3.Connection) -> dict[str, int]:
        """Return the number of ``waiting`` entries, including leased ones, and the number of ``dead`` entries."""
        # Both of these queries only read indexes. Counting dead entries directly would read entire rows, including the
        # bodies.
        every = db.execute("SELECT count(*) FROM lifecycle_queue WHERE queue = ?", (self.name,)).fetchone()[0]
        live = db.execute("SELECT count(*) FROM lifecycle_queue WHERE queue = ? AND dead = 0", (self.name,)).fetchone()
        return {"waiting": live[0], "dead": every - live[0]}

    def entries(self, db: sqlite3.Connection) -> list[Entry]:
        """Return all entries, including dead letters, oldest first."""
        rows = db.execute(
            f"SELECT {_COLUMNS} FROM lifecycle_queue WHERE queue = ? ORDER BY id",  # noqa: S608  # our own columns
            (self.name,),
        )
        return list(map(_entry, rows))


def _entry(row: tuple[Any, ...]) -> Entry:
    number, body, accepted, due, leased, attempts, failures, error, dead = row
    return Entry(number, body, accepted, due, leased, attempts, failures, error, bool(dead))


_log = logging.getLogger("lifecycle.journal")

#: The minimum number of seconds between counts.
_EVERY = 1.0


class CachedCounts:
    """The cached result of ``count``, for callers that must not wait for the disk.

    After a call to `renew`, ``count`` is called again soon. If the result has changed, ``changed`` is called.
    """

    def __init__(self, count: Callable[[], Awaitable[dict[str, int]]], changed: Callable[[], object]) -> None:
        self._count, self._changed = count, changed
        #: The number of entries of each kind. Empty before the first count.
        self.figures: dict[str, int] = {}
        # The number of calls to `open` that have not been matched by a call to `close`.
        self._users = 0
        self._counting: asyncio.Task[None] | None = None
        # True if the counts may have changed since the last count began.
        self._stale = False

    def open(self) -> None:
        """Start counting."""
        self._users += 1
        self.renew()

    async def close(self) -> None:
        """Stop counting."""
        self._users -= 1
        if self._counting is not None and not self._users:
            # If `open` is called while we wait, it starts a new task.
            counting, self._counting = self._counting, None
            counting.cancel()
            await asyncio.wait([counting])

    def renew(self) -> None:
        """Count again soon, if this object is open."""
        self._stale = True
        if self._users and (self._counting is None or self._counting.done()):
            self._counting = start_task(self._go_on(), name="count")

    async def _go_on(self) -> None:
        while self._stale:
            self._stale = False
            await self._look()
            await asyncio.sleep(_EVERY)

    async def _look(self) -> None:
        try:
            figures = await self._count()
        except Exception as error:  # noqa: BLE001  # writers report errors; until then the last counts are kept
            _log.debug("could not count the entries: %s", error)
            return
        if figures != self.figures:
            self.figures = figures
            self._changed()

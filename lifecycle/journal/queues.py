"""The one durable queue: work is accepted, leased, tried again, done, or put aside as a dead letter.

A `Queue` is a name; its methods use the connection of a transaction that somebody else began, so that accepting,
or finishing, is one step with whatever else belongs to it. Times are seconds since the epoch, given by the caller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lifecycle.journal.schemas import Schema

if TYPE_CHECKING:
    import sqlite3

__all__ = ["QUEUES", "Entry", "Queue"]

QUEUES = Schema(
    "queues",
    (
        (
            # Ids are never used again, so that an id is an order and a name.
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
    """Something that was accepted and is not done."""

    id: int
    body: bytes
    accepted: float
    #: Not to be leased before.
    due: float
    #: Whoever leased it has it until then; 0: nobody has.
    leased: float
    #: How often it was leased, the present lease included.
    attempts: int
    #: How often it failed.
    failures: int
    #: How it failed last.
    error: str
    #: Whether it is put aside, until somebody revives or drops it.
    dead: bool


class Queue:
    """The entries of one name, in tables that `QUEUES` makes."""

    def __init__(self, name: str) -> None:
        self.name = name

    def accept(
        self,
        db: sqlite3.Connection,
        body: bytes,
        *,
        now: float,
        key: str = "",
        remember: float = 0.0,
        leased: float = 0.0,
    ) -> int | None:
        """Add an entry and return its id, or None where ``key`` was accepted before and is still remembered.

        A key is remembered for ``remember`` seconds; an empty one never. ``leased`` is for who takes it at once.
        """
        if key and remember > 0 and not self._is_new(db, key, now, remember):
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
        """Remove the keys that need not be remembered any more."""
        db.execute("DELETE FROM lifecycle_queue_keys WHERE queue = ? AND until <= ?", (self.name, now))

    def lease(self, db: sqlite3.Connection, *, now: float, until: float = math.inf, limit: int = 1) -> list[Entry]:
        """Take up to ``limit`` entries that are due and nobody has, the oldest first; they are ours ``until`` then."""
        leased = db.execute(
            "UPDATE lifecycle_queue SET leased = ?, attempts = attempts + 1 WHERE id IN"  # noqa: S608  # our own columns
            " (SELECT id FROM lifecycle_queue WHERE queue = ? AND dead = 0 AND due <= ? AND leased <= ?"
            f" ORDER BY id LIMIT ?) RETURNING {_COLUMNS}",
            (until, self.name, now, now, limit),
        )
        return sorted(map(_entry, leased), key=lambda entry: entry.id)

    def next_due(self, db: sqlite3.Connection, *, now: float) -> float | None:
        """When the next entry that cannot be leased now can be; None if there is none."""
        due: tuple[float | None] = db.execute(
            "SELECT min(max(due, leased)) FROM lifecycle_queue"
            " WHERE queue = ? AND dead = 0 AND max(due, leased) > ? AND leased < ?",
            (self.name, now, math.inf),
        ).fetchone()
        return due[0]

    def release(self, db: sqlite3.Connection) -> None:
        """Take every entry from whoever leased it: for who knows that they are gone."""
        db.execute("UPDATE lifecycle_queue SET leased = 0 WHERE queue = ? AND dead = 0 AND leased > 0", (self.name,))

    def give_back(self, db: sqlite3.Connection, *ids: int) -> None:
        """End leases that nobody made use of: they were no attempts."""
        db.executemany(
            "UPDATE lifecycle_queue SET leased = 0, attempts = attempts - 1 WHERE queue = ? AND id = ?",
            [(self.name, each) for each in ids],
        )

    def done(self, db: sqlite3.Connection, *ids: int) -> None:
        """Remove entries that are done with."""
        db.executemany("DELETE FROM lifecycle_queue WHERE queue = ? AND id = ?", [(self.name, each) for each in ids])

    def retry(self, db: sqlite3.Connection, number: int, *, due: float, error: str) -> None:
        """End the lease of an entry that failed; it comes again at ``due``."""
        self._end(db, number, due=due, error=error, dead=False)

    def bury(self, db: sqlite3.Connection, number: int, *, error: str) -> None:
        """Put an entry that failed aside as a dead letter."""
        self._end(db, number, due=0.0, error=error, dead=True)

    def _end(self, db: sqlite3.Connection, number: int, *, due: float, error: str, dead: bool) -> None:
        db.execute(
            "UPDATE lifecycle_queue SET leased = 0, due = ?, failures = failures + 1, error = ?, dead = ?"
            " WHERE queue = ? AND id = ?",
            (due, error, dead, self.name, number),
        )

    def revive(self, db: sqlite3.Connection, number: int) -> bool:
        """Let an entry that nobody has come at once, as if it had never failed; False if there is none such."""
        changed = db.execute(
            "UPDATE lifecycle_queue SET dead = 0, failures = 0, due = 0 WHERE queue = ? AND id = ? AND leased = 0",
            (self.name, number),
        )
        return changed.rowcount > 0

    def get(self, db: sqlite3.Connection, number: int) -> Entry | None:
        """One entry."""
        row = db.execute(
            f"SELECT {_COLUMNS} FROM lifecycle_queue WHERE queue = ? AND id = ?",  # noqa: S608  # our own columns
            (self.name, number),
        ).fetchone()
        return None if row is None else _entry(row)

    def counts(self, db: sqlite3.Connection) -> dict[str, int]:
        """How many entries are ``waiting``, leased ones too, and how many are ``dead``."""
        # Two counts that an index and the first columns answer: whether one is dead stands behind its body.
        every = db.execute("SELECT count(*) FROM lifecycle_queue WHERE queue = ?", (self.name,)).fetchone()[0]
        live = db.execute("SELECT count(*) FROM lifecycle_queue WHERE queue = ? AND dead = 0", (self.name,)).fetchone()
        return {"waiting": live[0], "dead": every - live[0]}

    def entries(self, db: sqlite3.Connection) -> list[Entry]:
        """All that is there, dead letters too, the oldest first."""
        rows = db.execute(
            f"SELECT {_COLUMNS} FROM lifecycle_queue WHERE queue = ? ORDER BY id",  # noqa: S608  # our own columns
            (self.name,),
        )
        return list(map(_entry, rows))


def _entry(row: tuple[Any, ...]) -> Entry:
    number, body, accepted, due, leased, attempts, failures, error, dead = row
    return Entry(number, body, accepted, due, leased, attempts, failures, error, bool(dead))

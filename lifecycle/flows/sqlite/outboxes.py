"""`SQLiteOutbox`: what was sent, in the file of the flows that sent it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle.flows.records import OutboxRow, taken
from lifecycle.journal import Schema

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Sequence

    from lifecycle.flows.records import FailedDelivery
    from lifecycle.journal import Journal

__all__ = ["OUTBOX_TABLES", "SQLiteOutbox", "post"]

OUTBOX_TABLES = Schema(
    "outbox",
    (
        (
            """CREATE TABLE lifecycle_outbox (
                number INTEGER PRIMARY KEY AUTOINCREMENT,
                id TEXT NOT NULL,
                topic TEXT NOT NULL,
                data TEXT NOT NULL,
                until REAL NOT NULL
            )""",
        ),
        (
            "ALTER TABLE lifecycle_outbox ADD COLUMN failures INTEGER NOT NULL DEFAULT 0",
            "ALTER TABLE lifecycle_outbox ADD COLUMN error TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE lifecycle_outbox ADD COLUMN dead INTEGER NOT NULL DEFAULT 0",
            "CREATE INDEX lifecycle_outbox_free ON lifecycle_outbox (until, number) WHERE dead = 0",
            "CREATE INDEX lifecycle_outbox_dead ON lifecycle_outbox (number) WHERE dead = 1",
        ),
    ),
)

_POST = "INSERT INTO lifecycle_outbox (id, topic, data, until) VALUES (?, ?, ?, 0)"
_COLUMNS = "id, topic, data, number, failures, error"
# The index has new rows in the order of their numbers, and the others by the end of their wait.
_FREE = f"""
SELECT * FROM (SELECT {_COLUMNS}, until FROM lifecycle_outbox
    WHERE dead = 0 AND until = 0 ORDER BY number LIMIT :limit)
UNION ALL
SELECT * FROM (SELECT {_COLUMNS}, until FROM lifecycle_outbox
    WHERE dead = 0 AND until > 0 AND until <= :now ORDER BY until LIMIT :limit)
ORDER BY number LIMIT :limit
"""  # noqa: S608  # our own columns
_DEAD = f"SELECT {_COLUMNS} FROM lifecycle_outbox WHERE dead = 1 ORDER BY number"  # noqa: S608  # the same
_FAIL = "UPDATE lifecycle_outbox SET failures = ?, error = ?, until = ?, dead = ? WHERE number = ?"
_REVIVE = "UPDATE lifecycle_outbox SET failures = 0, until = 0, dead = 0 WHERE number = ? AND dead = 1"
_TAKE = "UPDATE lifecycle_outbox SET until = ?, failures = ?, error = ? WHERE number = ?"
_HOLD = "UPDATE lifecycle_outbox SET until = ? WHERE number = ?"
_FORGET = "DELETE FROM lifecycle_outbox WHERE number = ?"


class SQLiteOutbox:
    """An `OutboxStore` in the file that ``journal`` writes."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def take(self, limit: int, *, now: float, until: float) -> list[OutboxRow]:
        """The first that nobody has, ours until then."""

        def write(db: sqlite3.Connection) -> list[OutboxRow]:
            free = db.execute(_FREE, {"now": now, "limit": limit})
            rows = [taken(OutboxRow._make(row), before) for *row, before in free]
            db.executemany(_TAKE, [(until, row.failures, row.error, row.number) for row in rows])
            return rows

        return await self._journal.run(write)

    async def hold(self, numbers: Collection[int], *, until: float) -> None:
        """Have them until another time; until 0 they are anybody's."""
        values = [(until, number) for number in numbers]
        await self._journal.run(lambda db: db.executemany(_HOLD, values).rowcount)

    async def forget(self, numbers: Collection[int]) -> None:
        """They were delivered."""
        values = [(number,) for number in numbers]
        await self._journal.run(lambda db: db.executemany(_FORGET, values).rowcount)

    async def put_down(
        self, *, delivered: Collection[int], freed: Collection[int], failed: Sequence[FailedDelivery]
    ) -> None:
        """Write the results of deliveries in one transaction; those ``freed`` can be taken again at once."""

        def write(db: sqlite3.Connection) -> None:
            db.executemany(_FORGET, [(number,) for number in delivered])
            db.executemany(_HOLD, [(0.0, number) for number in freed])
            db.executemany(_FAIL, [(row.failures, row.error, *_end(row), row.number) for row in failed])

        await self._journal.run(write)

    async def dead(self) -> list[OutboxRow]:
        """The dead letters, the oldest first."""
        return await self._journal.read(lambda db: [OutboxRow._make(row) for row in db.execute(_DEAD)])

    async def revive(self, numbers: Collection[int]) -> None:
        """Have dead letters delivered again, as if none had failed."""
        values = [(number,) for number in numbers]
        await self._journal.run(lambda db: db.executemany(_REVIVE, values).rowcount)


def _end(row: FailedDelivery) -> tuple[float, bool]:
    """The end of its wait, and whether it is dead."""
    return (0.0, True) if row.until is None else (row.until, False)


def post(db: sqlite3.Connection, rows: Sequence[OutboxRow]) -> None:
    """Keep what was sent."""
    db.executemany(_POST, [row[:3] for row in rows])

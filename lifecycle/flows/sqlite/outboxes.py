"""`SQLiteOutbox`: what was sent, in the file of the flows that sent it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle.flows.records import OutboxRow
from lifecycle.journal import Schema

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Sequence

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
    ),
)

_POST = "INSERT INTO lifecycle_outbox (id, topic, data, until) VALUES (?, ?, ?, 0)"
_FREE = "SELECT id, topic, data, number FROM lifecycle_outbox WHERE until <= ? ORDER BY number LIMIT ?"
_HOLD = "UPDATE lifecycle_outbox SET until = ? WHERE number = ?"
_FORGET = "DELETE FROM lifecycle_outbox WHERE number = ?"


class SQLiteOutbox:
    """An `OutboxStore` in the file that ``journal`` writes."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def take(self, limit: int, *, now: float, until: float) -> list[OutboxRow]:
        """The first that nobody has, ours until then."""

        def write(db: sqlite3.Connection) -> list[OutboxRow]:
            rows = [OutboxRow._make(row) for row in db.execute(_FREE, (now, limit))]
            db.executemany(_HOLD, [(until, row.number) for row in rows])
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


def post(db: sqlite3.Connection, rows: Sequence[OutboxRow]) -> None:
    """Keep what was sent."""
    db.executemany(_POST, [row[:3] for row in rows])

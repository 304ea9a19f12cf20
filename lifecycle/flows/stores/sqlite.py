"""`SQLiteStore`: an `SQLStore` in an SQLite file. A `Journal` writes to the file in a thread."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from lifecycle.flows.stores.presence import FilePresence, Presence
from lifecycle.flows.stores.sql import (
    CREATE_FLOWS,
    CREATE_JOBS,
    CREATE_OUTBOX,
    CREATE_SCHEDULES,
    CREATE_SIGNALS,
    FLOW_INDEXES,
    JOB_KEYS,
    QUEUES,
    Dialect,
    Guarded,
    Rows,
    SQLStore,
)
from lifecycle.journal import Journal, Schema

if TYPE_CHECKING:
    import os
    import sqlite3
    from collections.abc import Awaitable, Sequence
    from types import TracebackType
    from typing import Self

    from lifecycle.flows.stores.sql import Row, Statement

__all__ = ["FLOW_TABLES", "SQLiteStore"]

# SQLite's JSON cannot contain NUL, so `_listed` writes NUL as two characters.
_NUL = "replace(replace(value, char(1, 97), char(0)), char(1, 98), char(1))"


def _listed(values: list[Any]) -> str:
    safe = [each.replace("\1", "\1b").replace("\0", "\1a") if isinstance(each, str) else each for each in values]
    return json.dumps(safe)


_SQLITE = Dialect(
    locks=False,
    among=f"IN (SELECT {_NUL} FROM json_each(:{{name}}))",  # noqa: S608  # our own text
    number="rowid",
    guard="SELECT 1 FROM lifecycle_flows WHERE id = :flow AND epoch = :epoch AND {uncancelled}",
    # Most batches only change steps. In that case we avoid writing the flow's row, because it can be large.
    then=(
        """
    UPDATE lifecycle_flows SET at = CASE WHEN state = :state THEN at ELSE :at END, state = :state, error = :error,
        store = coalesce(:store, store), kind = :kind, due = :due, result = :result
    WHERE id = :flow AND (state != :state OR error != :error OR due != :due OR :store IS NOT NULL)
    """,
    ),
    types={
        "serial": "",
        "flow_key": "NOT NULL UNIQUE",
        "key": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "real": "REAL",
        "spare": "",
        "clustered": " WITHOUT ROWID",
    },
    local=True,
    encode_list=_listed,
)

# The first version had the same tables with fewer columns.
FLOW_TABLES = Schema(
    "flows",
    (
        (),
        (
            "ALTER TABLE lifecycle_flow_atoms ADD COLUMN undone INTEGER NOT NULL DEFAULT 0",
            "ALTER TABLE lifecycle_flow_atoms ADD COLUMN due REAL NOT NULL DEFAULT 0",
            # In earlier versions, each round had a separate key.
            """UPDATE lifecycle_flow_atoms SET undone = CASE WHEN state IN ('PENDING', 'REVERTED') THEN round
                ELSE max(round - 1, 0) END WHERE round > 0""",
        ),
        (
            "ALTER TABLE lifecycle_flow_atoms RENAME TO lifecycle_flow_steps",
            "ALTER TABLE lifecycle_flow_steps DROP COLUMN revert_result",
            "ALTER TABLE lifecycle_flows DROP COLUMN version",
            "ALTER TABLE lifecycle_flows ADD COLUMN stamp BIGINT NOT NULL DEFAULT 0",
        ),
        (
            "ALTER TABLE lifecycle_flows ADD COLUMN due REAL NOT NULL DEFAULT 0",
            "ALTER TABLE lifecycle_flows ADD COLUMN parent TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE lifecycle_flows ADD COLUMN result TEXT",
            "ALTER TABLE lifecycle_flows ADD COLUMN created REAL NOT NULL DEFAULT 0",
            "ALTER TABLE lifecycle_flows ADD COLUMN kind TEXT NOT NULL DEFAULT 'flow'",
            "UPDATE lifecycle_flows SET created = at",
            *map(_SQLITE.text, (*FLOW_INDEXES, *CREATE_SIGNALS, *CREATE_SCHEDULES)),
        ),
    ),
    tuple(map(_SQLITE.text, (*CREATE_FLOWS, *CREATE_SIGNALS, *CREATE_SCHEDULES))),
)
_JOB_TABLES = Schema(
    "jobs",
    (
        (),
        (
            # Earlier versions could leave a discarded job's flow unfinished and later run it again.
            """UPDATE lifecycle_flows
                SET state = CASE state WHEN 'PENDING' THEN state ELSE 'FAILURE' END,
                    epoch = epoch + 1, owner = '', error = 'its job was discarded'
                WHERE state NOT IN ('SUCCESS', 'FAILURE', 'REVERTED') AND EXISTS (SELECT 1 FROM lifecycle_jobs j
                    WHERE j.id = lifecycle_flows.id AND j.flow = lifecycle_flows.name AND j.outcome = 'trashed')""",
        ),
        (
            "UPDATE lifecycle_jobs SET outcome = 'discarded' WHERE outcome = 'trashed'",
            "ALTER TABLE lifecycle_jobs ADD COLUMN stamp BIGINT NOT NULL DEFAULT 0",
            "ALTER TABLE lifecycle_jobs RENAME COLUMN posted TO enqueued",
        ),
        (
            "ALTER TABLE lifecycle_jobs ADD COLUMN queue TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE lifecycle_jobs ADD COLUMN key TEXT NOT NULL DEFAULT ''",
            "DROP INDEX lifecycle_jobs_ready",
            *map(_SQLITE.text, QUEUES),
        ),
        ("DROP INDEX lifecycle_jobs_keys", JOB_KEYS),
    ),
    tuple(map(_SQLITE.text, CREATE_JOBS)),
)
_OUTBOX_TABLES = Schema(
    "outbox",
    (
        (),
        (
            "ALTER TABLE lifecycle_outbox ADD COLUMN failures INTEGER NOT NULL DEFAULT 0",
            "ALTER TABLE lifecycle_outbox ADD COLUMN error TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE lifecycle_outbox ADD COLUMN dead INTEGER NOT NULL DEFAULT 0",
            "CREATE INDEX lifecycle_outbox_free ON lifecycle_outbox (until, number) WHERE dead = 0",
            "CREATE INDEX lifecycle_outbox_dead ON lifecycle_outbox (number) WHERE dead = 1",
        ),
        (
            "DROP INDEX lifecycle_outbox_free",
            "DROP INDEX lifecycle_outbox_dead",
            *map(_SQLITE.text, CREATE_OUTBOX[1:]),
        ),
    ),
    tuple(map(_SQLITE.text, CREATE_OUTBOX)),
)


class _File:
    """A `Database` that reads and writes its file through ``journal``."""

    dialect = _SQLITE

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def run(self, *works: Statement | Guarded, done: Sequence[Statement] = ()) -> Awaitable[list[list[Row]]]:  # noqa: ARG002  # files lose no responses
        """Run ``works`` as one transaction, and return the requested rows."""
        return self._journal.run(lambda db: _carry_out(db, works))

    def read(self, *statements: Statement) -> Awaitable[list[list[Row]]]:
        """Run read-only statements on one snapshot of the data."""
        return self._journal.read(lambda db: _carry_out(db, statements))


def _carry_out(db: sqlite3.Connection, works: Sequence[Statement | Guarded]) -> list[list[Row]]:
    results: list[list[Row]] = []
    for work in works:
        statement = work.guard if isinstance(work, Guarded) else work
        rows = _execute(db, statement)
        if statement.asked:
            results.append(rows)
        if isinstance(work, Guarded) and rows:
            for each in work.then:
                if isinstance(each, Rows):
                    _insert(db, each)
                else:
                    _execute(db, each)
    return results


def _execute(db: sqlite3.Connection, statement: Statement) -> list[Row]:
    """Run a statement and return its rows. A write without `RETURNING` returns an empty tuple for each changed row."""
    cursor = db.execute(statement.text, statement.values)
    return cursor.fetchall() if cursor.description else [()] * max(0, cursor.rowcount)


def _insert(db: sqlite3.Connection, rows: Rows) -> None:
    verb = "INSERT OR REPLACE" if rows.key and not rows.keep else "INSERT"
    rest = f" ON CONFLICT ({rows.key}) DO NOTHING" if rows.keep else ""
    places = ", ".join("?" * len(rows.columns))
    db.executemany(f"{verb} INTO {rows.table} ({', '.join(rows.columns)}) VALUES ({places}){rest}", rows.rows)


class SQLiteStore(SQLStore):
    """A `Store` in the file ``path``, which is created if necessary. The file may contain other tables of this library.

    Nothing is lost if a process is killed. After a power cut, the last transactions may be missing, but the state is
    consistent. With ``durable=True``, nothing is lost in a power cut either, but each phase of a flow waits for the
    disk.
    """

    def __init__(self, path: str | os.PathLike[str], *schemas: Schema, durable: bool = False) -> None:
        #: The journal that writes to the file. It is open while you are in the store's context.
        self.journal: Final = Journal(path, FLOW_TABLES, _JOB_TABLES, _OUTBOX_TABLES, *schemas, durable=durable)
        super().__init__(_File(self.journal))

    def __repr__(self) -> str:
        return f"<SQLiteStore {self.journal.path}>"

    async def __aenter__(self) -> Self:
        """Open the file.

        Raises:
            JournalError: if the file cannot be opened or written to, is not a database, or was created by a newer
                version.
        """
        await self.journal.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Write everything that was submitted, then close the file."""
        await self.journal.__aexit__(kind, error, traceback)

    def presence(self) -> Presence:
        """Return the processes that have this file open. They find each other through a directory next to the file."""
        path = self.journal.path
        return Presence() if path == ":memory:" else FilePresence(f"{path}-owners")

    def time(self) -> float:
        """Return the time in seconds since the epoch. Changes to the system clock do not affect this time."""
        return self.journal.time()

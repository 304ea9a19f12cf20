"""`SQLiteStore`: flows in one SQLite file, written by the journal's thread, a phase of an engine in a transaction."""

from __future__ import annotations

import time
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from lifecycle.flows.owners import Owners
from lifecycle.flows.records import AtomRow, Change, FlowRow, Snapshot
from lifecycle.flows.sqlitejobs import JOB_TABLES, SQLiteJobs
from lifecycle.flows.sqliteoutbox import OUTBOX_TABLES, SQLiteOutbox, post
from lifecycle.flows.stores import lost, unknown
from lifecycle.journal import Journal, Schema

if TYPE_CHECKING:
    import os
    import sqlite3
    from collections.abc import Collection
    from types import TracebackType
    from typing import Self

    from lifecycle.flows.records import Batch

__all__ = ["FLOW_TABLES", "SQLiteStore", "begin", "snapshot_of"]

FLOW_TABLES = Schema(
    "flows",
    (
        (
            """CREATE TABLE lifecycle_flows (
                id TEXT NOT NULL UNIQUE,
                name TEXT NOT NULL,
                state TEXT NOT NULL,
                version INTEGER NOT NULL,
                epoch INTEGER NOT NULL,
                owner TEXT NOT NULL,
                store TEXT NOT NULL,
                error TEXT NOT NULL,
                at REAL NOT NULL
            )""",
            "CREATE INDEX lifecycle_flows_by_name ON lifecycle_flows (name, state)",
            """CREATE TABLE lifecycle_flow_atoms (
                flow TEXT NOT NULL,
                name TEXT NOT NULL,
                kind TEXT NOT NULL,
                state TEXT NOT NULL,
                intention TEXT NOT NULL,
                attempt INTEGER NOT NULL,
                round INTEGER NOT NULL,
                result TEXT,
                failure TEXT,
                revert_result TEXT,
                revert_failure TEXT,
                history TEXT,
                PRIMARY KEY (flow, name)
            ) WITHOUT ROWID""",
            """CREATE TABLE lifecycle_flow_changes (
                flow TEXT NOT NULL,
                seq INTEGER NOT NULL,
                at REAL NOT NULL,
                kind TEXT NOT NULL,
                name TEXT NOT NULL,
                old TEXT NOT NULL,
                new TEXT NOT NULL,
                reason TEXT NOT NULL,
                attempt INTEGER NOT NULL,
                result TEXT,
                PRIMARY KEY (flow, seq)
            ) WITHOUT ROWID""",
        ),
    ),
)


def _places(row: type[FlowRow | AtomRow]) -> str:
    return ", ".join("?" * len(row._fields))


#: The number of the last change is where the changes are, and not kept a second time.
_LAST = "(SELECT coalesce(max(seq), 0) FROM lifecycle_flow_changes WHERE flow = id)"
_FLOW = ", ".join(FlowRow._fields).replace("seq", _LAST)
_ATOM = ", ".join(AtomRow._fields)
_SELECT_FLOW = f"SELECT {_FLOW} FROM lifecycle_flows"  # noqa: S608  # our own columns
_INSERT_FLOW = (
    "INSERT INTO lifecycle_flows (id, name, state, version, epoch, owner, store, error, at)"
    " VALUES (:id, :name, :state, :version, :epoch, :owner, :store, :error, :at)"
)
_INSERT_ATOM = f"INSERT OR REPLACE INTO lifecycle_flow_atoms (flow, {_ATOM}) VALUES (?, {_places(AtomRow)})"  # noqa: S608  # the same
_INSERT_CHANGE = (
    "INSERT INTO lifecycle_flow_changes (flow, seq, at, kind, name, old, new, reason, attempt, result)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_TOLD = attrgetter("flow", "seq", "at", "kind", "name", "old", "new", "reason", "attempt", "text")


class SQLiteStore:
    """A `Store` in the file ``path``, which is made if need be, and may hold other things of this library.

    A process that is killed loses nothing. A power cut may take the last transactions, and leaves an older state that
    is whole; with ``durable=True`` it takes none, and each phase of a flow waits for the disk.
    """

    def __init__(self, path: str | os.PathLike[str], *schemas: Schema, durable: bool = False) -> None:
        #: Where it is written; open while the store is entered.
        self.journal: Final = Journal(path, FLOW_TABLES, JOB_TABLES, OUTBOX_TABLES, *schemas, durable=durable)

    def __repr__(self) -> str:
        return f"<SQLiteStore {self.journal.path}>"

    async def __aenter__(self) -> Self:
        """Open the file.

        Raises:
            JournalError: when it cannot be opened or written, is no database, or is of a newer version.
        """
        await self.journal.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the file, after what was handed in is written."""
        await self.journal.__aexit__(kind, error, traceback)

    async def create(self, flow: FlowRow) -> bool:
        """Keep a flow that is new; False where its id is taken, and then nothing is written."""
        return await self.journal.run(lambda db: begin(db, flow))

    async def load(self, id: str) -> Snapshot:  # noqa: A002  # what it is
        """What is kept of a flow.

        Raises:
            FlowError: where there is none of that id.
        """
        return await self.journal.run(lambda db: snapshot_of(db, id))

    async def take(self, id: str, owner: str, *, seen: int) -> Snapshot:  # noqa: A002  # what it is
        """Take a flow whose epoch is ``seen``: it is one more from now on.

        Raises:
            ClaimLost: where its epoch is another; somebody else was quicker.
            FlowError: where there is none of that id.
        """

        def write(db: sqlite3.Connection) -> Snapshot:
            taken = db.execute(
                "UPDATE lifecycle_flows SET epoch = epoch + 1, owner = ? WHERE id = ? AND epoch = ?", (owner, id, seen)
            )
            snapshot = snapshot_of(db, id)
            if not taken.rowcount:
                raise lost(id, seen)
            return snapshot

        return await self.journal.run(write)

    async def commit(self, batch: Batch) -> None:
        """Write what one phase of the engine changed, all of it or nothing.

        Raises:
            ClaimLost: where the flow was taken by somebody else since.
            JournalError: when the file is full, locked, damaged or not to be written.
        """
        await self.journal.run(lambda db: _write(db, batch))

    async def flows(self, *, name: str | None = None, states: Collection[str] = ()) -> list[FlowRow]:
        """The flows of that name and in one of those states, the first first; without them, all."""

        def read(db: sqlite3.Connection) -> list[FlowRow]:
            rows = db.execute(f"{_SELECT_FLOW} WHERE coalesce(name = ?, 1) ORDER BY rowid", (name,))
            flows = map(FlowRow._make, rows)
            return [flow for flow in flows if not states or flow.state in states]

        return await self.journal.run(read)

    async def changes(self, id: str, *, after: int = 0, limit: int = 500) -> list[Change]:  # noqa: A002  # what it is
        """What happened to a flow after the change of that number; the results are only text."""

        def read(db: sqlite3.Connection) -> list[Change]:
            rows = db.execute(
                "SELECT kind, name, old, new, NULL, reason, attempt, flow, seq, at, result FROM lifecycle_flow_changes"
                " WHERE flow = ? AND seq > ? ORDER BY seq LIMIT ?",
                (id, after, limit),
            )
            return list(map(Change._make, rows))

        return await self.journal.run(read)

    async def delete(self, id: str) -> bool:  # noqa: A002  # what it is
        """Forget a flow; False where there is none."""

        def write(db: sqlite3.Connection) -> bool:
            db.execute("DELETE FROM lifecycle_flow_atoms WHERE flow = ?", (id,))
            db.execute("DELETE FROM lifecycle_flow_changes WHERE flow = ?", (id,))
            return db.execute("DELETE FROM lifecycle_flows WHERE id = ?", (id,)).rowcount > 0

        return await self.journal.run(write)

    def owners(self) -> Owners:
        """Who has this file open: they meet in a directory beside it."""
        path = self.journal.path
        return Owners(None if path == ":memory:" else f"{path}-owners")

    def time(self) -> float:
        """The system's, in seconds since the epoch."""
        return time.time()

    def outbox(self) -> SQLiteOutbox:
        """What tasks have sent and nobody has delivered yet."""
        return SQLiteOutbox(self.journal)

    def jobs(self, owners: Owners) -> SQLiteJobs:
        """The jobs that are kept beside the flows; ``owners`` know who of those who claimed them lives."""
        return SQLiteJobs(self.journal, owners)


def begin(db: sqlite3.Connection, flow: FlowRow) -> bool:
    """Keep a flow that is new; False where its id is taken."""
    if _row(db, flow.id) is not None:
        return False
    db.execute(_INSERT_FLOW, flow._asdict())
    return True


def _write(db: sqlite3.Connection, batch: Batch) -> None:
    found = db.execute("SELECT epoch, state, error FROM lifecycle_flows WHERE id = ?", (batch.flow,)).fetchone()
    if found is None or found[0] != batch.epoch:
        raise lost(batch.flow, batch.epoch)
    # Most batches are about atoms alone: one page less for the disk.
    if batch.store is not None or found[1:] != (batch.state, batch.error):
        db.execute(
            "UPDATE lifecycle_flows SET state = ?, at = ?, error = ?, store = coalesce(?, store) WHERE id = ?",
            (batch.state, batch.at, batch.error, batch.store, batch.flow),
        )
    db.executemany(_INSERT_ATOM, [(batch.flow, *row) for row in batch.atoms])
    db.executemany(_INSERT_CHANGE, map(_TOLD, batch.changes))
    if batch.sent:
        post(db, batch.sent)


def _row(db: sqlite3.Connection, id: str) -> FlowRow | None:  # noqa: A002  # what it is
    found = db.execute(f"{_SELECT_FLOW} WHERE id = ?", (id,)).fetchone()
    return None if found is None else FlowRow._make(found)


def snapshot_of(db: sqlite3.Connection, id: str) -> Snapshot:  # noqa: A002  # what it is
    """What is kept of a flow.

    Raises:
        FlowError: where there is none of that id.
    """
    flow = _row(db, id)
    if flow is None:
        raise unknown(id)
    rows = db.execute(f"SELECT {_ATOM} FROM lifecycle_flow_atoms WHERE flow = ?", (id,))  # noqa: S608  # our columns
    atoms = map(AtomRow._make, rows)
    return Snapshot(flow, {row.name: row for row in atoms})

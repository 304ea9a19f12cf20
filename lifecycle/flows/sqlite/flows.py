"""The tables of flows in an SQLite file, and how rows get in and out; each function is a part of one transaction."""

from __future__ import annotations

import time
from operator import attrgetter
from typing import TYPE_CHECKING

from lifecycle.flows.records import Change, FlowRow, Snapshot, StepRow
from lifecycle.flows.sqlite.outboxes import post
from lifecycle.flows.stores import lost, unknown
from lifecycle.journal import Schema

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection

    from lifecycle.flows.records import Batch

__all__ = ["FLOW_TABLES", "begin", "changes", "discard", "fence", "find", "forget", "snapshot", "take", "write"]

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
        (
            "ALTER TABLE lifecycle_flow_atoms ADD COLUMN undone INTEGER NOT NULL DEFAULT 0",
            "ALTER TABLE lifecycle_flow_atoms ADD COLUMN due REAL NOT NULL DEFAULT 0",
            # Each round had a key of its own before.
            """UPDATE lifecycle_flow_atoms SET undone = CASE WHEN state IN ('PENDING', 'REVERTED') THEN round
                ELSE max(round - 1, 0) END WHERE round > 0""",
        ),
    ),
)


def _places(row: type[FlowRow | StepRow]) -> str:
    return ", ".join("?" * len(row._fields))


#: The number of the last change is where the changes are, and not kept a second time.
_LAST = "(SELECT coalesce(max(seq), 0) FROM lifecycle_flow_changes WHERE flow = id)"
_FLOW = ", ".join(FlowRow._fields).replace("seq", _LAST)
_STEP = ", ".join(StepRow._fields)
_SELECT_FLOW = f"SELECT {_FLOW} FROM lifecycle_flows"  # noqa: S608  # our own columns
_INSERT_FLOW = (
    "INSERT INTO lifecycle_flows (id, name, state, version, epoch, owner, store, error, at)"
    " VALUES (:id, :name, :state, :version, :epoch, :owner, :store, :error, :at)"
)
_INSERT_STEP = f"INSERT OR REPLACE INTO lifecycle_flow_atoms (flow, {_STEP}) VALUES (?, {_places(StepRow)})"  # noqa: S608  # the same
_INSERT_CHANGE = (
    "INSERT INTO lifecycle_flow_changes (flow, seq, at, kind, name, old, new, reason, attempt, result)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_FENCE = "UPDATE lifecycle_flows SET epoch = epoch + 1, owner = ? WHERE id = ?"
_DISCARD = (
    "UPDATE lifecycle_flows SET state = CASE state WHEN 'PENDING' THEN state ELSE 'FAILURE' END,"
    " error = ?, at = ?, epoch = epoch + 1, owner = ''"
    " WHERE id = ? AND name = ? AND state NOT IN ('SUCCESS', 'FAILURE', 'REVERTED')"
)
_SELECT_CHANGES = (
    "SELECT kind, name, old, new, NULL, reason, attempt, flow, seq, at, result FROM lifecycle_flow_changes"
    " WHERE flow = ? AND seq > ? ORDER BY seq LIMIT ?"
)
_TOLD = attrgetter("flow", "seq", "at", "kind", "name", "old", "new", "reason", "attempt", "text")


def begin(db: sqlite3.Connection, flow: FlowRow) -> bool:
    """Keep a flow that is new; False where its id is taken."""
    if _row(db, flow.id) is not None:
        return False
    db.execute(_INSERT_FLOW, flow._asdict())
    return True


def snapshot(db: sqlite3.Connection, id: str) -> Snapshot:  # noqa: A002  # what it is
    """What is kept of a flow.

    Raises:
        FlowError: where there is none of that id.
    """
    flow = _row(db, id)
    if flow is None:
        raise unknown(id)
    rows = db.execute(f"SELECT {_STEP} FROM lifecycle_flow_atoms WHERE flow = ?", (id,))  # noqa: S608  # our columns
    steps = map(StepRow._make, rows)
    return Snapshot(flow, {row.name: row for row in steps})


def take(db: sqlite3.Connection, id: str, owner: str, *, seen: int) -> Snapshot:  # noqa: A002  # what it is
    """Have the flow belong to ``owner`` if its epoch is ``seen``.

    Raises:
        ClaimLost: where its epoch is another.
        FlowError: where there is none of that id.
    """
    taken = db.execute(f"{_FENCE} AND epoch = ?", (owner, id, seen))
    found = snapshot(db, id)
    if not taken.rowcount:
        raise lost(id, seen)
    return found


def fence(db: sqlite3.Connection, id: str, owner: str, *, name: str) -> str:  # noqa: A002  # what it is
    """Give the flow of that id and name to ``owner``, so that its owner before cannot write.

    Returns:
        The state of the flow, or nothing if there is no such flow.
    """
    fenced = db.execute(f"{_FENCE} AND name = ? RETURNING state", (owner, id, name)).fetchall()
    return str(fenced[0][0]) if fenced else ""


def discard(db: sqlite3.Connection, id: str, error: str, *, name: str) -> None:  # noqa: A002  # what it is
    """End the flow of that id and name as FAILURE, or leave it PENDING with an error; not if it is at its end."""
    db.execute(_DISCARD, (error, time.time(), id, name))


def write(db: sqlite3.Connection, batch: Batch) -> None:
    """Keep what one phase of an engine changed.

    Raises:
        ClaimLost: where the flow was taken by somebody else since.
    """
    found = db.execute("SELECT epoch, state, error FROM lifecycle_flows WHERE id = ?", (batch.flow,)).fetchone()
    if found is None or found[0] != batch.epoch:
        raise lost(batch.flow, batch.epoch)
    # Most batches are about steps alone: one page less for the disk.
    if batch.store is not None or found[1:] != (batch.state, batch.error):
        db.execute(
            "UPDATE lifecycle_flows SET state = ?, at = ?, error = ?, store = coalesce(?, store) WHERE id = ?",
            (batch.state, batch.at, batch.error, batch.store, batch.flow),
        )
    db.executemany(_INSERT_STEP, [(batch.flow, *row) for row in batch.steps])
    if batch.taken_back:
        db.execute("DELETE FROM lifecycle_flow_changes WHERE flow = ? AND seq >= ?", (batch.flow, batch.taken_back))
    db.executemany(_INSERT_CHANGE, map(_TOLD, batch.changes))
    if batch.sent:
        post(db, batch.sent)


def find(db: sqlite3.Connection, name: str | None, states: Collection[str]) -> list[FlowRow]:
    """Those of that name and in one of those states, the first first; without them, all."""
    # Only what is given is compared, so that the index on both serves.
    wanted = [] if name is None else ["name = ?"]
    if states:
        wanted.append(f"state IN ({', '.join('?' * len(states))})")
    where = f"WHERE {' AND '.join(wanted)}" if wanted else ""
    values = [*([] if name is None else [name]), *map(str, states)]
    return list(map(FlowRow._make, db.execute(f"{_SELECT_FLOW} {where} ORDER BY rowid", values)))


def changes(db: sqlite3.Connection, id: str, *, after: int, limit: int) -> list[Change]:  # noqa: A002  # what it is
    """What happened to a flow after the change of that number; the results are only text."""
    return list(map(Change._make, db.execute(_SELECT_CHANGES, (id, after, limit))))


def forget(db: sqlite3.Connection, id: str) -> bool:  # noqa: A002  # what it is
    """Forget a flow; False where there is none."""
    db.execute("DELETE FROM lifecycle_flow_atoms WHERE flow = ?", (id,))
    db.execute("DELETE FROM lifecycle_flow_changes WHERE flow = ?", (id,))
    return db.execute("DELETE FROM lifecycle_flows WHERE id = ?", (id,)).rowcount > 0


def _row(db: sqlite3.Connection, id: str) -> FlowRow | None:  # noqa: A002  # what it is
    found = db.execute(f"{_SELECT_FLOW} WHERE id = ?", (id,)).fetchone()
    return None if found is None else FlowRow._make(found)

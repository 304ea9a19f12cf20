"""Which tables a journal's users need, and the way from an older version of them to this one."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from lifecycle.errors import JournalError

__all__ = ["Schema", "migrate"]

_VERSIONS = """
CREATE TABLE IF NOT EXISTS lifecycle_schemas (name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of one user of a journal; several users share a file, each with a schema and names of its own.

    A step that was released is never changed; what has to become different is a step more.
    """

    #: What it is called in the file.
    name: str
    #: The statements that lead from each version to the next; the first step makes version 1 of nothing.
    steps: tuple[tuple[str, ...], ...]


def migrate(db: sqlite3.Connection, schema: Schema) -> None:
    """Bring the tables of ``schema`` up to date, inside the transaction that the caller has begun.

    Raises:
        JournalError: when the file has a version of them that is newer than this program knows, or tables of somebody
            else under their names.
    """
    db.execute(_VERSIONS)
    found, known = _version(db, schema.name), len(schema.steps)
    if found > known:
        raise JournalError(
            f"the tables {schema.name!r} are of version {found}, and this program knows them up to {known}; "
            "use the newer program that wrote them, or another file"
        )
    for step in schema.steps[found:]:
        for statement in step:
            _make(db, schema.name, statement)
    if found < known:
        db.execute("INSERT OR REPLACE INTO lifecycle_schemas VALUES (?, ?)", (schema.name, known))


def _version(db: sqlite3.Connection, name: str) -> int:
    """The version of the tables called ``name``; 0 if there are none."""
    try:
        row = db.execute("SELECT version FROM lifecycle_schemas WHERE name = ?", (name,)).fetchone()
    except sqlite3.OperationalError as error:
        raise _damaged(f"the table lifecycle_schemas cannot be read: {error}", error) from error
    found: object = row[0] if row else 0
    if not isinstance(found, int) or found < 0:
        raise _damaged(f"the version of the tables {name!r} must be a number from 0, and is {found!r}")
    return found


def _damaged(what: str, error: sqlite3.Error | None = None) -> JournalError:
    # Another process may have the file for a moment, and a disk may be full: that is no damage.
    if error is not None and getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) != sqlite3.SQLITE_ERROR:
        raise error
    return JournalError(
        f"it is damaged, or was written by another program ({what}); restore a copy, or give another file"
    )


def _make(db: sqlite3.Connection, name: str, statement: str) -> None:
    try:
        db.execute(statement)
    except sqlite3.OperationalError as error:
        # SQLite has no code of its own for it.
        if str(error).startswith(("no such ", "duplicate column ")):
            raise _damaged(f"its tables {name!r} cannot be brought up to date: {error}", error) from error
        if "already exists" not in str(error):
            raise
        raise JournalError(
            f"something in it is called as a table of {name!r} and is none ({error}); give another file"
        ) from error

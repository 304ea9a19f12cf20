"""Which tables a journal's users need, and the way from an older version of them to this one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lifecycle.errors import JournalError

if TYPE_CHECKING:
    import sqlite3

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
        JournalError: when the file has a version of them that is newer than this program knows.
    """
    db.execute(_VERSIONS)
    row = db.execute("SELECT version FROM lifecycle_schemas WHERE name = ?", (schema.name,)).fetchone()
    found, known = (row[0] if row else 0), len(schema.steps)
    if found > known:
        raise JournalError(
            f"the tables {schema.name!r} are of version {found}, and this program knows them up to {known}; "
            "use the newer program that wrote them, or another file"
        )
    for step in schema.steps[found:]:
        for statement in step:
            db.execute(statement)
    if found < known:
        db.execute("INSERT OR REPLACE INTO lifecycle_schemas VALUES (?, ?)", (schema.name, known))

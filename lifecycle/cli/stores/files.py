"""Whether a file that a command was given holds what it is about: not every database does."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from lifecycle.cli.failures import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from lifecycle.journal import Schema

__all__ = ["check_file"]


def check_file(file: Path, schema: Schema, *, lacks: str, given_to: str) -> None:
    """Refuse a file without ``schema``, so that nothing is made of one that has something else in it.

    One that is damaged or out of reach is let through: then to open it tells what is wrong.

    Args:
        file: what the command was given.
        schema: what a journal has that is meant.
        lacks: what to say of a file that is not, such as "is no inbox".
        given_to: who writes such files, such as "Inbox".

    Raises:
        UsageError: if it is not there, or is something else.
    """
    advice = f"give the path that {given_to}(…) was given"
    if not file.is_file():
        raise UsageError(f"there is no file {file}; {advice}")
    if not _has(file, schema):
        raise UsageError(f"{file} {lacks}; {advice}")


def _has(file: Path, schema: Schema) -> bool:
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as db:
            found = db.execute("SELECT 1 FROM lifecycle_schemas WHERE name = ?", (schema.name,)).fetchone()
    except sqlite3.Error as error:
        return error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
    return found is not None

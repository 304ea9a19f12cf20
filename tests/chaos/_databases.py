"""The database of a chaos test, and queries for its checks. The database is a file, or a server that is also killed."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg

from tests.engines import require
from tests.postgres import Postgres

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["File", "OnServer", "database"]

_LIMIT = 60.0


class File:
    """A SQLite file."""

    #: A file cannot be attacked.
    attacks = 0

    def __init__(self, path: Path) -> None:
        #: The argument for `Flows`.
        self.where = str(path)
        self._path = path

    def rows(self, query: str, *values: Any) -> Sequence[tuple[Any, ...]]:
        """Return the rows, or none before the tables exist."""
        with closing(sqlite3.connect(self._path)) as db:
            if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'lifecycle_flow_changes'").fetchone():
                return []
            return db.execute(query.replace("%s", "?"), values).fetchall()

    def trouble(self, chance: random.Random) -> bool:
        """Do nothing."""
        del chance
        return False

    def forget_the_dead(self) -> None:
        """Do nothing, because the system notices dead processes immediately."""

    def close(self) -> None:
        """Do nothing, because the file is removed with its directory."""


class OnServer:
    """A PostgreSQL server for one chaos test."""

    def __init__(self) -> None:
        self._server = Postgres()
        self._server.start()
        self.where = self._server.url()
        #: The number of times the server was killed or all connections were cut.
        self.attacks = 0

    def rows(self, query: str, *values: Any) -> Sequence[tuple[Any, ...]]:
        """Return the rows, or none before the tables exist."""
        with psycopg.connect(self.where, autocommit=True, application_name="judge") as db:
            if db.execute("SELECT to_regclass('lifecycle_outbox')").fetchone() == (None,):
                return []
            return db.execute(query.encode(), values or None).fetchall()

    def trouble(self, chance: random.Random) -> bool:
        """Occasionally restart the server or cut all connections, and return whether that happened."""
        dice = chance.random()
        if dice < 0.1:
            self._server.kill()
            time.sleep(chance.random() * 0.1)
            self._server.start()
        elif dice < 0.25:
            self._server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lifecycle'"
            )
        self.attacks += dice < 0.25
        return dice < 0.25

    def forget_the_dead(self) -> None:
        """Wait until the server has noticed which processes are dead."""
        end = time.monotonic() + _LIMIT
        asked = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'lifecycle'"
        while self._server.execute(asked):
            assert time.monotonic() < end
            time.sleep(0.005)

    def close(self) -> None:
        """Stop the server and remove its files."""
        self._server.close()


def database(store: str, path: Path) -> File | OnServer:
    """Return a database of this kind."""
    if store == "sqlite":
        return File(path)
    require(store)
    return OnServer()

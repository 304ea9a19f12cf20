"""One SQLite file: opened, written in transactions, closed; and its errors in words that help.

Everything here blocks. A journal calls it in its writer thread, a command in its only one.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from lifecycle.errors import JournalError
from lifecycle.journal.clocks import SteadyClock
from lifecycle.journal.schemas import migrate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lifecycle.journal.schemas import Schema

__all__ = ["Database", "Outcome", "Work"]

_log = logging.getLogger("lifecycle.journal")

#: What is done inside a transaction.
Work: TypeAlias = Callable[[sqlite3.Connection], Any]

#: What a work returned, and the error that it raised instead.
Outcome: TypeAlias = tuple[Any, BaseException | None]

#: Seconds to wait for another process that writes the same file.
_PATIENCE = 5.0

_MEMORY = ":memory:"

# SQLite's authorizer is asked when a statement is prepared, and Python keeps what it has prepared: a work that says
# the same must not get ours.
_BEGIN, _COMMIT, _ROLL_BACK = "BEGIN IMMEDIATE -- journal", "COMMIT -- journal", "ROLLBACK -- journal"
_BEGIN_READING = "BEGIN -- journal"

#: SQLite's primary result codes that say what is wrong with the file, and not with a statement; and what to do.
_TROUBLES = {
    sqlite3.SQLITE_FULL: "the disk is full; make room",
    sqlite3.SQLITE_READONLY: "it cannot be written; give this process the right to, in its directory too",
    sqlite3.SQLITE_PERM: "it may not be opened; give this process the right to",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; does its directory exist, and may this process write there?",
    sqlite3.SQLITE_BUSY: f"another process has held it locked for {_PATIENCE:g} s; is one stuck in a transaction?",
    sqlite3.SQLITE_LOCKED: "it is locked by another user in this process; end that transaction",
    sqlite3.SQLITE_CORRUPT: "it is damaged; move it away, with the files beside it, and restore a copy",
    sqlite3.SQLITE_AUTH: "what is run in it neither begins nor ends a transaction; leave that to the journal",
    sqlite3.SQLITE_NOTADB: "it is no SQLite database; give another path",
    sqlite3.SQLITE_IOERR: "the disk does not read or write it; look at the system's log",
}


#: What SQLite says of a table of ours that is not there, or has other columns; there is no code for it.
_NO_TABLE = re.compile(r"no such (table: (main\.)?lifecycle_|column: )|table lifecycle_\w+ has no column ")


class Database:
    """A file with the tables of ``schemas``."""

    def __init__(self, path: str, schemas: Sequence[Schema], *, durable: bool) -> None:
        self._path = path
        self._schemas = schemas
        self._durable = durable
        self._db: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self.clock: SteadyClock = SteadyClock()
        # Whether a work is being done, which may not end the transaction of all.
        self._working = False
        # The file and its log, each with its device and inode; and the words for it once one of them was deleted.
        self._files: dict[str, tuple[int, int]] = {}
        self._place = path
        self._lost = ""

    def open(self) -> None:
        """Open the file, make it if there is none, and bring its tables up to date.

        Raises:
            JournalError: saying what is wrong with it.
        """
        try:
            self._open()
        except JournalError as error:
            self.close()
            raise JournalError(f"the journal {self._path}: {error}") from None
        except BaseException as error:
            self.close()
            raise self._told(error) from error

    def _open(self) -> None:
        # Absolute, since the program may change its directory.
        self._place = self._path if self._path == _MEMORY else os.path.abspath(self._path)  # noqa: PTH100  # pathlib is not imported here
        if self._path != _MEMORY:
            # What is accepted is nobody else's business; the files that SQLite puts beside it are made alike.
            with suppress(OSError):
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        self._db = db = sqlite3.connect(self._path, timeout=_PATIENCE, isolation_level=None)
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal" and self._path != _MEMORY:
            raise JournalError(f"SQLite cannot keep a write-ahead log beside it (it said {mode!r}); use a local disk")
        db.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
        db.execute(_BEGIN)
        for schema in self._schemas:
            migrate(db, schema)
        db.execute(_COMMIT)
        self._agree_on_the_time(db)
        db.set_authorizer(self._authorize)
        self._lost = ""
        files = () if self._path == _MEMORY else (self._place, f"{self._place}-wal")
        self._files = {each: found for each in files if (found := _identity(each)) is not None}

    def _agree_on_the_time(self, db: sqlite3.Connection) -> None:
        try:
            db.execute(_BEGIN)
            self.clock.agree(db)
            db.execute(_COMMIT)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            # The file is damaged here; the rest of it may be in order, and is refused when it is used if not.
            _log.warning("the journal %s has no common clock: %s", self._path, error)
            self._roll_back(db)

    def _authorize(self, action: int, *_: str | None) -> int:
        forbidden = self._working and action == sqlite3.SQLITE_TRANSACTION
        return sqlite3.SQLITE_DENY if forbidden else sqlite3.SQLITE_OK

    def close(self) -> None:
        """Close the file; a transaction that was not committed is none."""
        db, self._db = self._db, None
        if db is not None:
            db.close()

    @property
    def can_be_read(self) -> bool:
        """Whether `read` can be used: a database in memory has one connection only."""
        return self._path != _MEMORY

    def read(self, work: Work) -> Any:
        """What ``work`` returns, on a connection that only reads: it neither waits for writers nor holds them up.

        To be called in one thread, and with `stop_reading` in the same.

        Raises:
            JournalError: saying what is wrong with the file.
        """
        try:
            self._check_place()
            if self._reader is None:
                self._reader = sqlite3.connect(self._place, timeout=_PATIENCE, isolation_level=None)
                self._reader.execute("PRAGMA query_only = ON")
            # All that it reads is of one moment.
            self._reader.execute(_BEGIN_READING)
            try:
                found = work(self._reader)
            finally:
                self._reader.execute(_ROLL_BACK)
            self._check_place()
        except BaseException as error:
            told = self._told(error)
            if told is error:
                raise
            raise told from error
        return found

    def _check_place(self) -> None:
        if (lost := self.check()) is not None:
            raise lost

    def stop_reading(self) -> None:
        """Close the connection that `read` has opened."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def check(self) -> JournalError | None:
        """Return the error for a file that was deleted or replaced since it was opened; None if it is in place.

        SQLite does not notice: it goes on writing into a file that has no name any more, and is gone with the process.
        """
        if not self._lost:
            gone = next((path for path, known in self._files.items() if _identity(path) != known), None)
            if gone is None:
                return None
            self._lost = (
                f"the journal {self._path}: {gone} was deleted or replaced while it was open, so that nothing can be "
                "kept; stop this program, put the file back or let a new one be made, and start the program again"
            )
            _log.error("%s", self._lost)
        return JournalError(self._lost)

    def carry_out(self, works: Sequence[Work]) -> list[Outcome]:
        """What becomes of each of ``works``, which are committed together; one that fails leaves no trace.

        Where all together cannot be, each is done alone: so a work may be called twice, and only the second counts.
        """
        if self.clock.is_to_be_noted:
            return self._carry_out([*works, self.clock.note])[:-1]
        return self._carry_out(works)

    def _carry_out(self, works: Sequence[Work]) -> list[Outcome]:
        outcomes: list[Outcome] | None = None
        if len(works) > 1:
            with suppress(sqlite3.Error, _TransactionLost):
                outcomes = self._together(works)
        if outcomes is None:
            outcomes = [self._alone(work) for work in works]
        # After the commit: what was written into a file that is gone was not kept.
        if (lost := self.check()) is not None:
            return [(None, lost)] * len(works)
        return outcomes

    def _together(self, works: Sequence[Work]) -> list[Outcome]:
        db = self._connection()
        try:
            db.execute(_BEGIN)
        except sqlite3.Error as error:
            # Not each alone: nobody shall wait once more for a lock that everybody has waited for.
            return [(None, self._told(error)) for _ in works]
        try:
            outcomes = [self._apart(db, work) for work in works]
            db.execute(_COMMIT)
        except BaseException:
            self._roll_back(db)
            raise
        return outcomes

    def _apart(self, db: sqlite3.Connection, work: Work) -> Outcome:
        """One of several in a transaction."""
        db.execute("SAVEPOINT lifecycle_work")
        outcome = self._outcome(db, work)
        if not db.in_transaction:
            raise _TransactionLost
        if outcome[1] is not None:
            db.execute("ROLLBACK TO lifecycle_work")
        db.execute("RELEASE lifecycle_work")
        return outcome

    def _alone(self, work: Work) -> Outcome:
        db = self._connection()
        try:
            db.execute(_BEGIN)
            outcome = self._outcome(db, work)
            if outcome[1] is None:
                db.execute(_COMMIT)
        except sqlite3.Error as error:
            outcome = None, self._told(error)
        self._roll_back(db)
        return outcome

    def _outcome(self, db: sqlite3.Connection, work: Work) -> Outcome:
        self._working = True
        try:
            return work(db), None
        except BaseException as error:  # noqa: BLE001  # whoever handed it in gets it
            return None, self._told(error)
        finally:
            self._working = False

    def _roll_back(self, db: sqlite3.Connection) -> None:
        """After some errors, a full disk among them, SQLite has done it already."""
        if db.in_transaction:
            with suppress(sqlite3.Error):
                db.execute(_ROLL_BACK)

    def _connection(self) -> sqlite3.Connection:
        assert self._db is not None
        return self._db

    def _told(self, error: BaseException) -> BaseException:
        """The same error, for somebody who has to do something about the file; others stay as they are."""
        if isinstance(error, StopIteration):
            # No future can carry it.
            return RuntimeError("what the journal was given to run raised StopIteration")
        trouble = _TROUBLES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        if trouble is None and _NO_TABLE.match(str(error)):
            trouble = "it is damaged: a table is missing or has other columns; restore a copy"
        if trouble is None or not isinstance(error, sqlite3.Error):
            return error
        told = JournalError(f"the journal {self._path}: {trouble} ({error})")
        told.__cause__ = error
        return told


def _identity(path: str) -> tuple[int, int] | None:
    """The device and the inode of a file; None if it is not there."""
    try:
        found = os.stat(path)  # noqa: PTH116  # the same
    except OSError:
        return None
    return found.st_dev, found.st_ino


class _TransactionLost(Exception):
    """The transaction of several is gone, and with it what those before had written."""

"""The files that a journal uses: an SQLite database with its schemas and clock, and a lock file.

All functions here block. A journal calls these functions in its own thread, and commands call them in the main thread.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from lifecycle.errors import JournalError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Database", "FileLock", "Outcome", "Schema", "SteadyClock", "Work", "migrate"]

_log = logging.getLogger("lifecycle.journal")

#: A function to call inside a transaction.
Work: TypeAlias = Callable[[sqlite3.Connection], Any]

#: The result of a function, or the error that it raised.
Outcome: TypeAlias = tuple[Any, BaseException | None]

#: How many seconds to wait while another process is writing to the file.
_PATIENCE = 5.0

_MEMORY = ":memory:"

#: The bytes at the start of SQLite's log, and before each page in it.
_LOG_HEAD, _CHANGE_HEAD = 32, 24

# SQLite calls its authorizer only when it prepares a statement, and Python caches prepared statements. Our own
# statements contain a comment, so that a caller's ``COMMIT``, for example, is not found in the cache and is checked.
_BEGIN, _COMMIT, _ROLL_BACK = "BEGIN IMMEDIATE -- journal", "COMMIT -- journal", "ROLLBACK -- journal"
_BEGIN_READING = "BEGIN -- journal"

#: Advice for problems with the file, by SQLite's primary result code.
_TROUBLES = {
    sqlite3.SQLITE_FULL: "the disk is full; free some space",
    sqlite3.SQLITE_READONLY: "it cannot be written to; grant this process write permission for it and its directory",
    sqlite3.SQLITE_PERM: "it cannot be opened; grant this process permission",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check that its directory exists and this process may write there",
    sqlite3.SQLITE_BUSY: f"another process has locked it for more than {_PATIENCE:g} s; check for open transactions",
    sqlite3.SQLITE_LOCKED: "it is locked by another connection in this process; end its transaction",
    sqlite3.SQLITE_CORRUPT: "it is damaged; move it and the files next to it away, and restore a backup",
    sqlite3.SQLITE_AUTH: "a function passed to the journal must not begin or end a transaction",
    sqlite3.SQLITE_NOTADB: "it is not an SQLite database; use another path",
    sqlite3.SQLITE_IOERR: "the disk cannot read or write it; check the system's log",
}


#: Matches SQLite's messages for a missing table or column, since these errors have no specific code.
_NO_TABLE = re.compile(r"no such (table: (main\.)?lifecycle_|column: )|table lifecycle_\w+ has no column ")


class Database:
    """A file that contains the tables in ``schemas``."""

    def __init__(self, path: str, schemas: Sequence[Schema], *, durable: bool) -> None:
        self._path = path
        self._schemas = schemas
        self._durable = durable
        self._db: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self.clock: SteadyClock = SteadyClock()
        # True while a caller's function is running. Such a function must not end the transaction.
        self._working = False
        # The device and inode numbers of the file and its log, by path.
        self._files: dict[str, tuple[int, int]] = {}
        # The absolute path.
        self._place = path
        # The path of SQLite's log of changes. Empty for a database in memory.
        self._log = ""
        # The size of the log after our last transaction.
        self._log_size = 0
        # The error message if the file or its log was deleted or truncated. Otherwise empty.
        self._lost = ""

    def open(self) -> None:
        """Open the file, creating it if necessary, and migrate its tables.

        Raises:
            JournalError: if the file cannot be used. The message describes the problem.
        """
        try:
            self._open()
        except JournalError as error:
            self.close()
            raise JournalError(f"the journal {self._path}: {error}") from None
        except BaseException as error:
            self.close()
            raise self._explained(error) from error

    def _open(self) -> None:
        # An absolute path stays valid if the program changes its working directory.
        self._place = self._path if self._path == _MEMORY else os.path.abspath(self._path)  # noqa: PTH100  # pathlib is not imported here
        if self._path != _MEMORY:
            # Only the file's owner may read it. SQLite creates the files next to it with the same permissions.
            with suppress(OSError):
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        self._db = db = sqlite3.connect(self._path, timeout=_PATIENCE, isolation_level=None)
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal" and self._path != _MEMORY:
            raise JournalError(f"SQLite cannot use WAL mode there (journal_mode is {mode!r}); use a local disk")
        db.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
        db.execute(_BEGIN)
        for schema in self._schemas:
            migrate(db, schema)
        db.execute(_COMMIT)
        self._agree_on_the_time(db)
        db.set_authorizer(self._authorize)
        self._lost = ""
        self._log = "" if self._path == _MEMORY else f"{self._place}-wal"
        self._log_size = _size(self._log)
        files = (self._place, self._log) if self._log else ()
        self._files = {each: found for each in files if (found := _identity(each)) is not None}

    def _agree_on_the_time(self, db: sqlite3.Connection) -> None:
        try:
            db.execute(_BEGIN)
            self.clock.agree(db)
            db.execute(_COMMIT)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            # The clock's table is damaged, but the other tables may still be readable, so don't treat this as an
            # error.
            _log.warning("cannot read the clock that processes share in the journal %s: %s", self._path, error)
            self._roll_back(db)

    def _authorize(self, action: int, *_: str | None) -> int:
        forbidden = self._working and action == sqlite3.SQLITE_TRANSACTION
        return sqlite3.SQLITE_DENY if forbidden else sqlite3.SQLITE_OK

    def close(self) -> None:
        """Close the file. An uncommitted transaction is lost."""
        db, self._db = self._db, None
        if db is not None:
            db.close()

    @property
    def can_be_read(self) -> bool:
        """True if `read` is available. An in-memory database has only one connection, so it doesn't support `read`."""
        return self._path != _MEMORY

    def read(self, work: Work) -> Any:
        """Return the result of ``work`` on a read-only connection, which neither waits for writers nor blocks them.

        `read` and `stop_reading` must be called in the same thread.

        Raises:
            JournalError: if the file cannot be used. The message describes the problem.
        """
        try:
            self._check_place()
            if self._reader is None:
                self._reader = sqlite3.connect(self._place, timeout=_PATIENCE, isolation_level=None)
                self._reader.execute("PRAGMA query_only = ON")
            # Within a transaction, all reads see the same snapshot.
            self._reader.execute(_BEGIN_READING)
            try:
                found = work(self._reader)
            finally:
                self._reader.execute(_ROLL_BACK)
            self._check_place()
        except BaseException as error:
            explained = self._explained(error)
            if explained is error:
                raise
            raise explained from error
        return found

    def _check_place(self) -> None:
        if (lost := self.check()) is not None:
            raise lost

    def stop_reading(self) -> None:
        """Close the connection opened by `read`."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def check(self) -> JournalError | None:
        """Return an error if the file has been deleted or replaced since it was opened. Otherwise, return None.

        SQLite does not detect this. It would keep writing to the deleted file, which is lost when the process exits.
        """
        if not self._lost:
            gone = next((path for path, known in self._files.items() if _identity(path) != known), None)
            if gone is None:
                return None
            self._lose(f"{gone} was deleted or replaced")
        return JournalError(self._lost)

    def _lose(self, what: str) -> None:
        self._lost = (
            f"the journal {self._path}: {what} while it was open, so nothing can be "
            "stored; stop this program, put the file back if you can, and start the program again"
        )
        _log.error("%s", self._lost)

    def _check_log(self) -> JournalError | None:
        """Return an error if another program has truncated the log. Otherwise, return None.

        SQLite does not detect this either. It would write beyond the end of the log, and what was there before would be
        missing after a restart. SQLite itself makes the log shorter only for ``PRAGMA wal_checkpoint(TRUNCATE)``.
        """
        if self._log and not self._lost and _size(self._log) < self._log_size:
            if (lost := self.check()) is not None:
                return lost
            if not self._log_is_complete():
                self._lose(f"{self._log} was truncated by another program")
        return JournalError(self._lost) if self._lost else None

    def _log_is_complete(self) -> bool:
        """Return True if the log contains all changes that SQLite has written to it since it was last reset."""
        db = self._connection()
        try:
            # This also returns the number of changed pages in the log.
            ((_, changes, _),) = db.execute("PRAGMA wal_checkpoint(PASSIVE)")
            ((page,),) = db.execute("PRAGMA page_size")
        except sqlite3.Error:
            return False
        return int(changes) <= 0 or _size(self._log) >= _LOG_HEAD + int(changes) * (_CHANGE_HEAD + int(page))

    def carry_out(self, works: Sequence[Work]) -> list[Outcome]:
        """Call ``works`` in one transaction, and return their outcomes. Functions that fail write nothing.

        If the shared transaction fails, each function is called again in a separate transaction.
        """
        if self.clock.is_to_be_noted:
            return self._carry_out([*works, self.clock.note])[:-1]
        return self._carry_out(works)

    def _carry_out(self, works: Sequence[Work]) -> list[Outcome]:
        if (lost := self._check_log()) is not None:
            return [(None, lost)] * len(works)
        outcomes: list[Outcome] | None = None
        if len(works) > 1:
            with suppress(sqlite3.Error, _TransactionLost):
                outcomes = self._together(works)
        if outcomes is None:
            outcomes = [self._alone(work) for work in works]
        # Data written to a deleted file is lost, so check the file after the commit.
        if (lost := self.check()) is not None:
            return [(None, lost)] * len(works)
        self._log_size = _size(self._log)
        return outcomes

    def _together(self, works: Sequence[Work]) -> list[Outcome]:
        db = self._connection()
        try:
            db.execute(_BEGIN)
        except sqlite3.Error as error:
            # Otherwise, each separate transaction would wait for the same lock again.
            return [(None, self._explained(error)) for _ in works]
        try:
            outcomes = [self._apart(db, work) for work in works]
            db.execute(_COMMIT)
        except BaseException:
            self._roll_back(db)
            raise
        return outcomes

    def _apart(self, db: sqlite3.Connection, work: Work) -> Outcome:
        """Call one of several functions that share a transaction, so that its failure does not affect the others."""
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
            outcome = None, self._explained(error)
        self._roll_back(db)
        return outcome

    def _outcome(self, db: sqlite3.Connection, work: Work) -> Outcome:
        self._working = True
        try:
            return work(db), None
        except BaseException as error:  # noqa: BLE001  # raised to the caller of the journal
            return None, self._explained(error)
        finally:
            self._working = False

    def _roll_back(self, db: sqlite3.Connection) -> None:
        """Roll back the transaction, unless SQLite already did so, for example because the disk is full."""
        if db.in_transaction:
            with suppress(sqlite3.Error):
                db.execute(_ROLL_BACK)

    def _connection(self) -> sqlite3.Connection:
        assert self._db is not None
        return self._db

    def _explained(self, error: BaseException) -> BaseException:
        """Convert an error caused by the file to an error with advice. Any other error is returned unchanged."""
        if isinstance(error, StopIteration):
            # StopIteration cannot be raised from a future.
            return RuntimeError("a function passed to the journal raised StopIteration")
        trouble = _TROUBLES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        if trouble is None and _NO_TABLE.match(str(error)):
            trouble = "it is damaged: a table is missing or has the wrong columns; restore a backup"
        if trouble is None or not isinstance(error, sqlite3.Error):
            return error
        explained = JournalError(f"the journal {self._path}: {trouble} ({error})")
        explained.__cause__ = error
        return explained


def _identity(path: str) -> tuple[int, int] | None:
    """Return a file's device and inode numbers, or None if the file does not exist."""
    try:
        found = os.stat(path)  # noqa: PTH116  # without pathlib
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _size(path: str) -> int:
    """Return a file's size in bytes, or 0 if the file does not exist."""
    try:
        return os.stat(path).st_size  # noqa: PTH116  # without pathlib
    except OSError:
        return 0


class _TransactionLost(Exception):
    """The shared transaction was lost, along with everything that its functions wrote."""


_VERSIONS = """
CREATE TABLE IF NOT EXISTS lifecycle_schemas (name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of one component that uses a journal. Components that share a file have separate schemas and names.

    Do not change a step once it has been released. Append a new step instead.
    """

    #: The name of the schema in the file.
    name: str
    #: The statements that migrate from each version to the next. The first step creates version 1.
    steps: tuple[tuple[str, ...], ...]
    #: The statements that create the latest version. If empty, all steps are run for a new file.
    tables: tuple[str, ...] = ()

    def since(self, version: int) -> tuple[tuple[str, ...], ...]:
        """Return the steps from ``version`` to the latest version. Version 0 is an empty database."""
        return self.steps[version:] if version or not self.tables else (self.tables,)


def migrate(db: sqlite3.Connection, schema: Schema) -> None:
    """Migrate the tables in ``schema``. The caller must have begun a transaction.

    Raises:
        JournalError: if the tables were created by a newer version than this program supports, or if a different
            program created tables with the same names.
    """
    db.execute(_VERSIONS)
    found, known = _version(db, schema.name), len(schema.steps)
    if found > known:
        raise JournalError(
            f"the tables {schema.name!r} have version {found}, but this program supports versions up to {known}; "
            "use the newer program that created them, or a different file"
        )
    for step in schema.since(found):
        for statement in step:
            _make(db, schema.name, statement)
    if found < known:
        db.execute("INSERT OR REPLACE INTO lifecycle_schemas VALUES (?, ?)", (schema.name, known))


def _version(db: sqlite3.Connection, name: str) -> int:
    """Return the version of the tables called ``name``, or 0 if they do not exist."""
    try:
        row = db.execute("SELECT version FROM lifecycle_schemas WHERE name = ?", (name,)).fetchone()
    except sqlite3.OperationalError as error:
        raise _damaged(f"the table lifecycle_schemas cannot be read: {error}", error) from error
    found: object = row[0] if row else 0
    if not isinstance(found, int) or found < 0:
        raise _damaged(f"the version of the tables {name!r} must be 0 or more, got {found!r}")
    return found


def _damaged(what: str, error: sqlite3.Error | None = None) -> JournalError:
    # The file may also be locked, or the disk full, which doesn't mean that the file is damaged.
    if error is not None and getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) != sqlite3.SQLITE_ERROR:
        raise error
    return JournalError(
        f"it is damaged or was written by another program ({what}); restore a backup, or use a different file"
    )


def _make(db: sqlite3.Connection, name: str, statement: str) -> None:
    try:
        db.execute(statement)
    except sqlite3.OperationalError as error:
        # SQLite has no specific code for these errors.
        if str(error).startswith(("no such ", "duplicate column ")):
            raise _damaged(f"its tables {name!r} cannot be migrated: {error}", error) from error
        if "already exists" not in str(error):
            raise
        raise JournalError(
            f"it has another program's table or index with a name that {name!r} needs ({error}); use another file"
        ) from error


#: The file that contains the kernel's id for the current boot.
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_CLOCK = "CREATE TABLE IF NOT EXISTS lifecycle_clock (boot TEXT NOT NULL, ahead REAL NOT NULL, seen REAL NOT NULL)"
#: How often to write the time to the file, in seconds.
_NOTE = 60.0


class SteadyClock:
    """A clock that returns seconds since the epoch, and does not jump when the system clock is changed.

    The clock counts the time since boot, including time spent asleep. All processes that have the same file open share
    the clock through the file. After a reboot, the clock starts at either the system time or the last time in the file,
    whichever is later. On systems other than Linux, this is simply the system clock.
    """

    def __init__(self) -> None:
        self._boot = _boot()
        self._ahead = time.time() - _since_boot()
        self._noted = 0.0

    def time(self) -> float:
        """Return seconds since the epoch."""
        return _since_boot() + self._ahead if self._boot else time.time()

    def agree(self, db: sqlite3.Connection) -> None:
        """Adopt the clock stored in the file. If there is none, store this clock. Call this in a write transaction."""
        db.execute(_CLOCK)
        known = db.execute("SELECT boot, ahead, seen FROM lifecycle_clock").fetchone()
        if known is None:
            db.execute("INSERT INTO lifecycle_clock VALUES ('', 0, 0)")
        elif known[0] == self._boot:
            # There is no need to change the file.
            self._ahead, self._noted = known[1:]
            return
        else:
            self._ahead = max(time.time(), known[2]) - _since_boot()
        db.execute("UPDATE lifecycle_clock SET boot = ?, ahead = ?", (self._boot, self._ahead))
        self.note(db)

    def note(self, db: sqlite3.Connection) -> None:
        """Write the current time to the file."""
        self._noted = self.time()
        db.execute("UPDATE lifecycle_clock SET seen = ?", (self._noted,))

    @property
    def is_to_be_noted(self) -> bool:
        """True if the time should be written to the file again."""
        return not 0 <= self.time() - self._noted < _NOTE


def _boot() -> str:
    """Return the id of the current boot, or an empty string if the system does not have one."""
    if sys.platform != "linux":
        return ""
    try:
        with open(_BOOT_ID) as file:  # noqa: PTH123  # pathlib is not imported here
            return file.read().strip()
    except OSError:
        return ""


def _since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else 0.0


class FileLock:
    """An exclusive lock on a small file at ``path``, which is created if necessary and never removed.

    The system releases the lock when the process exits. Two locks on the same file exclude each other, even in the same
    process.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: str = os.fspath(path)
        self._file: int | None = None

    def take(self) -> bool:
        """Acquire the lock without waiting. Return False if it is already held.

        Raises:
            OSError: if the file cannot be created or opened.
        """
        import fcntl  # not on Windows

        if self._file is not None:
            return True
        file = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        except BaseException:
            os.close(file)
            raise
        self._file = file
        return True

    def is_held(self) -> bool:
        """Return True if any process holds the lock. This neither blocks other processes nor creates the file."""
        import fcntl  # not on Windows

        try:
            # If this is a FIFO, opening it for reading would block. Opening it for writing fails if it has no reader.
            file = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno == errno.ENXIO:
                return False
            raise
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False

    def is_there(self) -> bool:
        """Return True if this object holds the lock and the locked file still exists at its path."""
        if self._file is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._file), os.stat(self.path))  # noqa: PTH116  # without pathlib
        except OSError:
            return False

    def release(self) -> None:
        """Release the lock, if it is held."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

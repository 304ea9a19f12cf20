"""`Connector`: how a PostgreSQL server is connected to and asked, and its errors in words that help.

Everything here blocks: what may not is to go through a `Connection`.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from lifecycle.errors import FlowError, JournalError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg

__all__ = [
    "CHANNEL",
    "LOOK",
    "OLDEST",
    "AnswerLost",
    "Connector",
    "Row",
    "Statement",
    "Unreachable",
    "check_version",
    "sql",
]

#: What comes back, a column after the other.
Row = tuple[Any, ...]

#: The oldest version that has all that is asked of it.
OLDEST = 15

#: Seconds after which the server's clock is read again; by which two clocks may differ that agree; and that a process
#: which connects waits at most for another to read the clock.
_LOOK, _APART, _PATIENCE = 10.0, 1.0, 1.0
#: How often it is tried to note the time while others do.
_TRIES = 10

_READ = b"SELECT extract(epoch FROM clock_timestamp())::float8, correction, seen FROM lifecycle_clock"
_BEGIN = b"INSERT INTO lifecycle_clock DEFAULT VALUES ON CONFLICT DO NOTHING"
_NOTE = b"""UPDATE lifecycle_clock SET correction = %s, seen = %s WHERE correction = %s AND seen = %s RETURNING 1"""
# Every process that has the store open holds a lock of this form.
_OTHERS = b"""SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND pid != pg_backend_pid()
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
#: The channel of a schema, and the line that has all who hear it read the server's clock.
CHANNEL, LOOK = "SELECT 'lifecycle_' || oid FROM pg_namespace WHERE nspname = current_schema()", "look"
_ASK = f"SELECT pg_notify(({CHANNEL}), '- {LOOK}')".encode()

#: What a connection has unless the URL says otherwise: somebody who vanishes is missed within half a minute.
_DEFAULTS = {
    "application_name": "lifecycle",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
    "client_encoding": "utf8",
}

#: Where connecting failed: what libpq's words are known by, as it has no codes; and what to do.
_CLOSED_DOORS = {
    "password authentication failed": "give the right password, in the URL, in PGPASSWORD or in ~/.pgpass",
    "no password supplied": "give the password, in the URL, in PGPASSWORD or in ~/.pgpass",
    "no pg_hba.conf entry": "let this host and user in, in the server's pg_hba.conf",
    "does not exist": "make it, or name another",
    "could not translate host name": "name a host that is known here",
    "Connection refused": "is the server running, and is this its address?",
    "No such file or directory": "is the server running, and is this its socket?",
    "too many": "let the server have more connections (max_connections), or give Flows fewer",
}

#: SQLSTATE: what is wrong; and what to do.
_TROUBLES = {
    "25006": "nothing can be written there; if it is a standby, name all hosts and ?target_session_attrs=read-write",
    "42501": "the server does not let us; give the role of the URL the right to (CREATE on the schema)",
    "42P01": "a table is missing; restore it, or give the URL a schema of its own (?options=-csearch_path%3Dname)",
    "42703": "a table has other columns than ours; give the URL a schema of its own (?options=-csearch_path%3Dname)",
    "53100": "the server's disk is full; make room",
    "53200": "the server is out of memory; give it more",
    "57014": "the server gave up on it; give it a longer statement_timeout",
    "55P03": "somebody holds a lock for long; is one stuck in a transaction?",
}
#: What text cannot hold there: NUL, or half a surrogate.
_UNSAYABLE = ("22021", "22P02", "22P05")
#: What is gone with another try, on another connection: a standby, a server that starts or stops; a lost race.
_PASSING = ("25006", "57P01", "57P02", "57P03", "57P04", "57P05", "40001", "40P01", "08")


def _step(off: float, since: float, elapsed: float) -> float:
    """By how much the server's clock was set.

    Args:
        off: By how much the time is off from that by our own clock.
        since: Seconds by the server's clock since some process has read it.
        elapsed: Seconds by our own clock since we have read it, which was not later.
    """
    # Where the server's clock does not show the difference, ours has stood still, or another has seen to it.
    return off if abs(off) > _APART and -_APART <= since - off <= elapsed + _APART else 0.0


def _since_boot() -> float:
    """Seconds since the machine was started, those in which it slept too where the system counts them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class Statement(NamedTuple):
    """A statement, and what is filled in."""

    text: bytes
    values: Mapping[str, Any]


def sql(text: str, **values: Any) -> Statement:
    """A statement whose ``%(name)s`` are ``values``."""
    return Statement(text.encode(), values)


class Unreachable(Exception):
    """The server did not take what was sent; a later try may find it willing."""


class AnswerLost(Unreachable):
    """Nobody knows whether the server carried it out."""


class Connector:
    """How to reach the server at ``url``, whose password is shown to nobody."""

    def __init__(self, url: str) -> None:
        try:
            from psycopg import ProgrammingError, conninfo
        except ImportError as error:
            raise JournalError(
                "PostgreSQL needs psycopg; install the extra 'postgres': pip install 'lifecycle-control[postgres]'"
            ) from error
        try:
            given = conninfo.conninfo_to_dict(url)
        except ProgrammingError:
            # What libpq says of it may show the password.
            raise ValueError(
                "that is no URL of a PostgreSQL server; give postgresql://user@host:port/database"
            ) from None
        self._given: dict[str, Any] = _DEFAULTS | {name: value for name, value in given.items() if value is not None}
        self._place = _place(self._given)
        # By how many seconds the time of the store is ahead of the time since the boot, and when that was found out.
        self._ahead, self._looked = 0.0, -math.inf
        self._looking = threading.Lock()

    def __repr__(self) -> str:
        return self._place

    def connect(self) -> psycopg.Connection[Row]:
        """A new connection; each statement is a transaction.

        Raises:
            Unreachable: where the server did not answer, or not with a yes.
            JournalError: where it is too old.
        """
        import psycopg

        try:
            db = psycopg.connect(**self._given, autocommit=True)
        except psycopg.Error as error:
            raise Unreachable(f"{self}: {_said(error, _way_in(error))}") from error
        try:
            check_version(f"{self}", db.info.server_version)
        except BaseException as error:
            db.close()
            raise self.told(db, error) from error
        return db

    # -- the time of the store ------------------------------------------------------------------------------------

    def time(self) -> float:
        """Seconds since the epoch, on which all agree that have the store open, whatever is done to any clock.

        It is the server's clock and a correction in the store. A process whose own clock shows that the server's was
        set changes the correction, so that the time goes on as before.
        """
        return _since_boot() + self._ahead

    def keep_time(self, db: psycopg.Connection[Row]) -> None:
        """Read the server's clock now and then, from the first `read_clock` on."""
        if -math.inf < self._looked < _since_boot() - _LOOK:
            self.read_clock(db)

    def read_clock(self, db: psycopg.Connection[Row]) -> None:
        """Agree with the others on the time."""
        if not self._looking.acquire(blocking=False):
            return
        try:
            alone = self._looked == -math.inf and self._have_it_read(db)
            for _ in range(_TRIES):
                if self._read_clock(db, alone=alone):
                    return
        finally:
            self._looking.release()

    def _have_it_read(self, db: psycopg.Connection[Row]) -> bool:
        """Let the others read the clock, who know whether it was set; whether there are none."""
        db.execute(_BEGIN)
        ((_, _, seen),) = db.execute(_READ)
        ((others,),) = db.execute(_OTHERS)
        if others:
            db.execute(_ASK)
        end = _since_boot() + _PATIENCE
        while others and _since_boot() < end and db.execute(_READ).fetchall()[0][2] == seen:
            time.sleep(0.01)
        return not others

    def _read_clock(self, db: psycopg.Connection[Row], *, alone: bool) -> bool:
        """Read it once; False if another process has written meanwhile."""
        before = _since_boot()
        rows = db.execute(_READ).fetchall()
        after = _since_boot()
        if not rows:
            db.execute(_BEGIN)
            return False
        ((raw, correction, seen),) = rows
        at, first = (before + after) / 2, self._looked == -math.inf
        if not first and after - before > _APART:
            # Where an answer takes so long, it says too little of the time. The next one may be quicker.
            return True
        if alone:
            corrected = max(0.0, seen + correction - raw)
        elif first:
            corrected = correction + (seen - raw if seen - raw > _APART else 0.0)
        else:
            corrected = correction - _step(raw + correction - at - self._ahead, raw - seen, at - self._looked)
        if not db.execute(_NOTE, (corrected, raw, correction, seen)).fetchall() and corrected != correction:
            return False
        self._ahead, self._looked = raw + corrected - at, at
        return True

    def carry_out(self, db: psycopg.Connection[Row], statements: Sequence[Statement]) -> list[Row]:
        """What the last of ``statements`` gives; they are committed together, and go there and come back once."""
        cursor = db.execute(*statements[0]) if len(statements) == 1 else _together(db, statements)[-1]
        return cursor.fetchall() if cursor.description else []

    def carry_out_together(self, db: psycopg.Connection[Row], works: Sequence[Sequence[Statement]]) -> list[list[Row]]:
        """What `carry_out` gives of each of ``works``, which are one transaction, and go there and come back once."""
        cursors = iter(_together(db, [each for statements in works for each in statements]))
        # Of each work the last statement counts.
        lasts = [list(islice(cursors, len(statements)))[-1] for statements in works]
        return [cursor.fetchall() if cursor.description else [] for cursor in lasts]

    def told(self, db: psycopg.Connection[Row], error: BaseException) -> BaseException:
        """The same error, for somebody who has to do something about it; others stay as they are."""
        import psycopg

        if isinstance(error, UnicodeEncodeError):
            return _unsayable(error)
        if not isinstance(error, psycopg.Error):
            return error
        state = error.sqlstate or ""
        if db.closed or db.broken:
            return AnswerLost(f"{self}: the connection was lost ({_one_line(error)})")
        if state.startswith(_PASSING):
            return Unreachable(f"{self}: {_said(error, _TROUBLES.get(state, ''))}")
        if state in _UNSAYABLE or (isinstance(error, psycopg.DataError) and not state):
            return _unsayable(error)
        return JournalError(f"{self}: {_said(error, _TROUBLES.get(state, 'the server refuses it'))}")


def _together(db: psycopg.Connection[Row], statements: Sequence[Statement]) -> list[psycopg.Cursor[Row]]:
    """Carry out ``statements`` in one pipeline, and return their cursors."""
    import psycopg

    failure: psycopg.Error | None = None
    cursors: list[psycopg.Cursor[Row]] = []
    try:
        with db.pipeline():
            try:
                cursors.extend(db.execute(*each) for each in statements)
            except psycopg.Error as error:
                # A pipeline that is left by an error logs the next one, which says the same.
                failure = error
    except psycopg.Error:
        if failure is None:
            raise
    if failure is not None:
        raise failure
    return cursors


def check_version(place: str, version: int) -> None:
    """Refuse a server that does not have what is asked of it.

    Raises:
        JournalError: naming both versions.
    """
    if version < OLDEST * 10_000:
        raise JournalError(f"{place} is PostgreSQL {version // 10_000}; {OLDEST} or newer is needed")


def _unsayable(error: Exception) -> FlowError:
    return FlowError(f"PostgreSQL cannot keep a text with NUL or half a surrogate in it ({_one_line(error)})")


def _place(given: dict[str, Any]) -> str:
    user = f"{given['user']}@" if given.get("user") else ""
    port = f":{given['port']}" if given.get("port") else ""
    return f"postgresql://{user}{given.get('host', '')}{port}/{given.get('dbname', '')}"


def _way_in(error: Exception) -> str:
    text = _one_line(error)
    return next((advice for words, advice in _CLOSED_DOORS.items() if words in text), "")


def _said(error: BaseException, advice: str) -> str:
    text = _one_line(error)
    return f"{advice} ({text})" if advice else text


def _one_line(error: BaseException) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())

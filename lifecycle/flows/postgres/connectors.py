"""`Connector`: how a PostgreSQL server is connected to and asked, and its errors in words that help.

Everything here blocks: what may not is to go through a `Connection`.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from lifecycle.errors import FlowError, JournalError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg

__all__ = ["OLDEST", "AnswerLost", "Connector", "Row", "Statement", "Unreachable", "check_version", "sql"]

#: What comes back, a column after the other.
Row = tuple[Any, ...]

#: The oldest version that has all that is asked of it.
OLDEST = 15

#: Seconds after which the server's clock is looked at again.
_LOOK = 60.0

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
        #: By how many seconds the server's clock is ahead of our monotonic one, as it was seen last; and when.
        self.ahead: float = 0.0
        self._looked = -math.inf

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
            self._look_at_the_clock(db)
        except BaseException as error:
            db.close()
            raise self.told(db, error) from error
        return db

    def keep_time(self, db: psycopg.Connection[Row]) -> None:
        """Look at the server's clock now and then: it may be set, and no two run alike."""
        if time.monotonic() - self._looked > _LOOK:
            self._look_at_the_clock(db)

    def _look_at_the_clock(self, db: psycopg.Connection[Row]) -> None:
        before = time.monotonic()
        ((there,),) = db.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
        self._looked = time.monotonic()
        self.ahead = there - (before + self._looked) / 2

    def carry_out(self, db: psycopg.Connection[Row], statements: Sequence[Statement]) -> list[Row]:
        """What the last of ``statements`` gives; they are committed together, and go there and come back once."""
        cursor = db.execute(*statements[0]) if len(statements) == 1 else _together(db, statements)
        return cursor.fetchall() if cursor.description else []

    def carry_out_together(self, db: psycopg.Connection[Row], works: Sequence[Sequence[Statement]]) -> list[list[Row]]:
        """What `carry_out` gives of each of ``works``, which are one transaction, and go there and come back once."""
        with db.pipeline():
            cursors = [[db.execute(*each) for each in statements][-1] for statements in works]
        return [cursor.fetchall() if cursor.description else [] for cursor in cursors]

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


def _together(db: psycopg.Connection[Row], statements: Sequence[Statement]) -> psycopg.Cursor[Row]:
    """Carry out ``statements`` in one pipeline, and return the cursor of the last."""
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
    return cursors[-1]


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

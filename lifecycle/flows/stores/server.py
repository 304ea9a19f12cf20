"""`Server`: a PostgreSQL server, queried through a few connections, each in its own thread.

Queries that are sent together run in one transaction. If the connection or the server fails before the response
arrives, we don't know whether the transaction was committed. We therefore run other queries to look for its effects
before sending it again.

There are two reasons for using threads instead of psycopg's asynchronous API: virtual time waits for threads, and a
query can be cancelled immediately even if the server does not respond.
"""

from __future__ import annotations

import asyncio
import math
import socket
import sys
import threading
import time
from collections import deque
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from lifecycle._async import start_task
from lifecycle._util import needs_extra
from lifecycle.backoff import Backoff
from lifecycle.errors import FlowError, JournalError
from lifecycle.journal.threads import LoopThread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
    from typing import TypeVar

    import psycopg

    _T = TypeVar("_T")

__all__ = [
    "CHANNEL",
    "FAREWELL",
    "HELLO",
    "OLDEST",
    "READ_CLOCK",
    "AnswerLost",
    "Connector",
    "Cord",
    "Query",
    "Row",
    "Server",
    "Unreachable",
    "check_version",
    "sql",
]

#: A row of a result.
Row = tuple[Any, ...]

#: The oldest supported version.
OLDEST = 15

#: Seconds between readings of the server's clock.
_LOOK = 10.0
#: The maximum difference in seconds between two clocks that agree.
_APART = 1.0
#: How many seconds a connecting process waits for another process to read the clock.
_PATIENCE = 1.0
#: How many times to try to write the time while other processes are also writing it.
_TRIES = 10

_READ = b"SELECT extract(epoch FROM clock_timestamp())::float8, correction, seen FROM lifecycle_clock"
_BEGIN = b"INSERT INTO lifecycle_clock DEFAULT VALUES ON CONFLICT DO NOTHING"
_NOTE = b"""UPDATE lifecycle_clock SET correction = %s, seen = %s WHERE correction = %s AND seen = %s RETURNING 1"""
# Counts the locks held by other processes. Each process that has the store open holds one lock.
_OTHERS = b"""SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND pid != pg_backend_pid()
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
#: The query that returns the name of the notification channel. Each schema has its own channel.
CHANNEL = "SELECT 'lifecycle_' || oid FROM pg_namespace WHERE nspname = current_schema()"
#: The message that a process sends to itself when it connects. The other processes ignore it.
HELLO = "hello"
#: The message that makes every process read the server's clock.
READ_CLOCK = "look"
_ASK = f"SELECT pg_notify(({CHANNEL}), '- {READ_CLOCK}')".encode()

#: Defaults for parameters that are not in the URL. They ensure that a lost peer is detected within half a minute.
_DEFAULTS = {
    "application_name": "lifecycle",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
    "client_encoding": "utf8",
}

#: Advice for a pooler that does not pass on the options in the URL.
_OWN_PATH = "run ALTER ROLE … SET search_path on the server, and remove the options from the URL"
#: Advice for failed connections. Since these errors have no codes, the keys are parts of libpq's messages, and of
#: PgBouncer's.
_REFUSALS = {
    "password authentication failed": "set the right password in the URL, in PGPASSWORD or in ~/.pgpass",
    "no password supplied": "set the password in the URL, in PGPASSWORD or in ~/.pgpass",
    "root certificate file": "set the file with the certificate of the server's CA in the URL (?sslrootcert=FILE)",
    "certificate verify failed": "check that sslrootcert in the URL is the certificate of the server's CA",
    "does not match host name": "use a host name that is in the server's certificate",
    "does not support SSL": "enable TLS on the server (ssl = on)",
    "no encryption": "add ?sslmode=verify-full to the URL, or allow this host and user in the server's pg_hba.conf",
    "no pg_hba.conf entry": "allow this host and user in the server's pg_hba.conf",
    "does not exist": "create it, or use an existing one",
    "could not translate host name": "check the host name",
    "Connection refused": "check that the server is running at this address",
    "No such file or directory": "check that the server is running and uses this socket",
    "unsupported startup parameter": f"a pooler refuses the options in the URL; {_OWN_PATH}",
    "bouncer config error": "check that PgBouncer's [databases] contain the database",
    "no more connections allowed": "increase max_client_conn in PgBouncer",
    "query_wait_timeout": "increase default_pool_size in PgBouncer, or pass a lower connections= to the store",
    "statement pooling": "set pool_mode = session in PgBouncer",
    "too many": "increase max_connections on the server, or pass a lower connections= to the store",
}

#: Advice for common problems, by SQLSTATE.
_TROUBLES = {
    "25006": "the server is read-only; if it is a standby, list all hosts and add ?target_session_attrs=read-write",
    "42501": "permission denied; grant the role in the URL CREATE on the schema",
    "42P01": "a table is missing; restore it, or use a separate schema in the URL (?options=-csearch_path%3Dname)",
    "42703": "a table lacks expected columns; use a separate schema in the URL (?options=-csearch_path%3Dname)",
    "53100": "the server's disk is full; free some space",
    "53200": "the server is out of memory; add memory, or reduce what uses it",
    "57014": "the server cancelled the query; set a longer statement_timeout",
    "55P03": "another client has held a lock for too long; check for a client stuck in a transaction",
}
#: SQLSTATE codes for text that the server cannot store because it contains NUL or half a surrogate pair.
_NOT_STORABLE = ("22021", "22P02", "22P05")
#: SQLSTATE codes of temporary errors: the server is a standby, is starting or stopping, or has rolled back a conflict.
_PASSING = ("25006", "57P01", "57P02", "57P03", "57P04", "57P05", "40001", "40P01", "08")


def _step(off: float, since: float, elapsed: float) -> float:
    """Return the number of seconds by which the server's clock was changed.

    Args:
        off: Seconds by which the store's time is ahead of what our own clock suggests.
        since: The seconds that have passed on the server's clock since any process last read it.
        elapsed: The seconds that have passed on our own clock since this process last read the server's clock.
    """
    # If the server's clock does not show the difference, either our clock stopped or another process has already
    # corrected the time.
    return off if abs(off) > _APART and -_APART <= since - off <= elapsed + _APART else 0.0


def _since_boot() -> float:
    """Return seconds since the system booted, including time spent asleep if the system counts it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class Query(NamedTuple):
    """A statement and its parameter values."""

    text: bytes
    values: Mapping[str, Any]
    #: True to return the rows that the statement produces.
    asked: bool = True


def sql(text: str, **values: Any) -> Query:
    """Return the query ``text``, whose ``%(name)s`` placeholders are filled in from ``values``."""
    return Query(text.encode(), values)


class Unreachable(Exception):
    """The server did not accept a query. Retrying may succeed."""


class AnswerLost(Unreachable):
    """The response was lost, so we don't know whether the server ran the query."""


class Connector:
    """Opens and uses connections to the server at ``url``, from any thread. The password never appears in messages."""

    def __init__(self, url: str) -> None:
        try:
            from psycopg import ProgrammingError, conninfo
        except ImportError as error:
            raise JournalError(needs_extra("PostgreSQL", "psycopg", "postgres")) from error
        try:
            given = conninfo.conninfo_to_dict(url)
        except ProgrammingError:
            # libpq's own message may show the password.
            raise ValueError(
                "the PostgreSQL server's URL is invalid; use postgresql://user@host:port/database"
            ) from None
        self._given: dict[str, Any] = _DEFAULTS | {name: value for name, value in given.items() if value is not None}
        self._place = _place(self._given)
        # Seconds to add to the time since boot to get the store's time.
        self._ahead = 0.0
        # When `_ahead` was determined, in seconds since boot.
        self._looked = -math.inf
        self._looking = threading.Lock()

    def __repr__(self) -> str:
        return self._place

    def connect(self) -> psycopg.Connection[Row]:
        """Return a new connection, which commits each statement separately.

        Raises:
            Unreachable: if the server does not respond or refuses the connection.
            JournalError: if the server is too old.
        """
        import psycopg

        try:
            db = psycopg.connect(**self._given, autocommit=True)
        except psycopg.Error as error:
            raise Unreachable(f"{self}: {_with_advice(error, _advice(error))}") from error
        try:
            check_version(f"{self}", db.info.server_version)
        except BaseException as error:
            db.close()
            raise self.translated(db, error) from error
        return db

    def check_schema(self, db: psycopg.Connection[Row]) -> None:
        """Raise an error if a pooler has dropped the ``search_path`` in the URL, and ``db`` uses another schema.

        Raises:
            JournalError: if that is the case.
        """
        if "search_path" not in self._given.get("options", ""):
            return
        ((source,),) = db.execute("SELECT source FROM pg_settings WHERE name = 'search_path'")
        # A pooler may also set it after it has connected.
        if source not in ("client", "session"):
            raise JournalError(f"{self}: a pooler ignores the search_path in the URL; {_OWN_PATH}")

    # -- the store's time ---------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Return the time in seconds since the epoch.

        It is the same in all processes, even if a system clock is changed. The time is the server's clock plus a
        correction that is kept in the store. If the server's clock is changed, a process detects the difference from
        its own clock and adjusts the correction, so that the time continues without a jump.
        """
        return _since_boot() + self._ahead

    def keep_time(self, db: psycopg.Connection[Row]) -> None:
        """Read the server's clock if `read_clock` was called earlier and the last reading is too old."""
        if -math.inf < self._looked < _since_boot() - _LOOK:
            self.read_clock(db)

    def read_clock(self, db: psycopg.Connection[Row]) -> None:
        """Determine the store's time in coordination with the other processes."""
        if not self._looking.acquire(blocking=False):
            return
        try:
            alone = self._looked == -math.inf and self._wait_for_readers(db)
            for _ in range(_TRIES):
                if self._read_clock(db, alone=alone):
                    return
        finally:
            self._looking.release()

    def _wait_for_readers(self, db: psycopg.Connection[Row]) -> bool:
        """Wait until another process reads the clock. Return True if there are no other processes.

        Only a process that has read the clock before can detect that it was changed in the meantime.
        """
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
        """Read the clock once. Return False if another process wrote the time in the meantime."""
        before = _since_boot()
        rows = db.execute(_READ).fetchall()
        after = _since_boot()
        if not rows:
            db.execute(_BEGIN)
            return False
        ((raw, correction, seen),) = rows
        at, first = (before + after) / 2, self._looked == -math.inf
        if not first and after - before > _APART:
            # The round trip took so long that the time would be inaccurate. The next reading may be faster.
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

    def carry_out(self, db: psycopg.Connection[Row], works: Sequence[Sequence[Query]]) -> list[list[list[Row]]]:
        """Run all queries in ``works`` as one transaction, in one round trip, and return the requested rows."""
        queries = [each for work in works for each in work]
        cursors = iter([db.execute(*queries[0][:2])] if len(queries) == 1 else _together(db, queries))
        answers: list[list[list[Row]]] = []
        for work in works:
            pairs = [(each, next(cursors)) for each in work]
            answers.append([cursor.fetchall() for each, cursor in pairs if each.asked])
        return answers

    def translated(self, db: psycopg.Connection[Row], error: BaseException) -> BaseException:
        """Convert a server error to one of our own errors, with advice. Any other error is returned unchanged."""
        import psycopg

        if isinstance(error, UnicodeEncodeError):
            return _not_storable(error)
        if not isinstance(error, psycopg.Error):
            return error
        state = error.sqlstate or ""
        if db.broken:
            return AnswerLost(f"{self}: {_with_advice(error, _advice(error) or 'the connection was lost')}")
        if state.startswith(_PASSING):
            return Unreachable(f"{self}: {_with_advice(error, _TROUBLES.get(state, ''))}")
        if state in _NOT_STORABLE or (isinstance(error, psycopg.DataError) and not state):
            return _not_storable(error)
        return JournalError(f"{self}: {_with_advice(error, _TROUBLES.get(state, 'the server rejected a query'))}")


def _together(db: psycopg.Connection[Row], queries: Sequence[Query]) -> list[psycopg.Cursor[Row]]:
    """Run ``queries`` in one pipeline, and return their cursors."""
    import psycopg

    failure: psycopg.Error | UnicodeError | None = None
    cursors: list[psycopg.Cursor[Row]] = []
    try:
        with db.pipeline():
            try:
                cursors.extend(db.execute(*each[:2]) for each in queries)
            except (psycopg.Error, UnicodeError) as error:
                # If we let the error leave the pipeline here, psycopg would also log an identical error from the
                # pipeline itself.
                failure = error
                if not db.closed:
                    # Leaving the pipeline would commit the queries before one whose values cannot be sent.
                    db.close()
    except psycopg.Error:
        if failure is None:
            raise
    if failure is not None:
        raise failure
    return cursors


def check_version(place: str, version: int) -> None:
    """Raise an error if the server is too old.

    Raises:
        JournalError: if the server's version is older than `OLDEST`.
    """
    if version < OLDEST * 10_000:
        raise JournalError(f"{place} runs PostgreSQL {version // 10_000}; version {OLDEST} or newer is required")


def _not_storable(error: Exception) -> FlowError:
    return FlowError(f"PostgreSQL cannot store text with NUL or half a surrogate pair ({_one_line(error)})")


def _place(given: dict[str, Any]) -> str:
    user = f"{given['user']}@" if given.get("user") else ""
    port = f":{given['port']}" if given.get("port") else ""
    return f"postgresql://{user}{given.get('host', '')}{port}/{given.get('dbname', '')}"


def _advice(error: Exception) -> str:
    text = _one_line(error)
    return next((advice for words, advice in _REFUSALS.items() if words in text), "")


def _with_advice(error: BaseException, advice: str) -> str:
    text = _one_line(error)
    return f"{advice} ({text})" if advice else text


def _one_line(error: BaseException) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())


# -- connections -------------------------------------------------------------------------------------------------------

#: How many seconds to wait for an unresponsive server when closing.
FAREWELL = 1.0


class Cord:
    """A duplicate of a connection's socket, which lets the loop interrupt a thread that is waiting for a response."""

    def __init__(self, db: Any) -> None:
        # `fromfd` duplicates the descriptor. We need a duplicate because the connection may close the original, and
        # the system may then reuse its number.
        self._socket = socket.fromfd(db.fileno(), socket.AF_INET, socket.SOCK_STREAM)
        self._lock = threading.Lock()

    def pull(self) -> None:
        """Shut down the connection. This ends any wait for a response."""
        with self._lock, suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the duplicate socket."""
        with self._lock:
            self._socket.close()


class Connection:
    """A connection in its own thread. It connects when it is first used, and reconnects if the connection is lost."""

    def __init__(self, thread: LoopThread, connector: Connector, loop: asyncio.AbstractEventLoop) -> None:
        self._thread, self._connector, self._loop = thread, connector, loop
        # The psycopg connection. None before the first use and after the connection is lost.
        self._db: Any = None
        # Interrupts the thread. None if there is no connection.
        self._cord: Cord | None = None

    async def carry_out(self, works: Sequence[Sequence[Query]]) -> list[list[list[Row]]]:
        """Call `Connector.carry_out` in the thread, without retrying."""
        return await self.do(lambda db: self._connector.carry_out(db, works))

    async def do(self, use: Callable[[Any], _T]) -> _T:
        """Call ``use`` with the connection in the thread, and return its result."""
        return await self._loop.run_in_executor(self._thread, self._do, use)

    def _do(self, use: Callable[[Any], _T]) -> _T:
        if self._db is None:
            self._db = self._connector.connect()
            self._cord = Cord(self._db)
        try:
            self._connector.keep_time(self._db)
            return use(self._db)
        except BaseException as error:
            told = self._connector.translated(self._db, error)
            # psycopg takes the statements of a failed pipeline for prepared, although the server has rejected them.
            if told is not error or isinstance(told, Unreachable):
                self._drop()
            if told is error:
                raise
            raise told from error

    async def close(self) -> None:
        """Close the connection and stop the thread, after waiting only briefly."""
        dropping = self._loop.run_in_executor(self._thread, self._drop)
        try:
            await asyncio.wait([dropping], timeout=FAREWELL)
            self.cut()
            # `cut` interrupts the thread, unless the thread is connecting.
            await asyncio.wait([dropping], timeout=FAREWELL)
        finally:
            self.cut()
            self._thread.shutdown(wait=dropping.done())

    def cut(self) -> None:
        """Interrupt the thread if it is waiting for a response."""
        if (cord := self._cord) is not None:
            cord.pull()

    def _drop(self) -> None:
        (db, self._db), (cord, self._cord) = (self._db, None), (self._cord, None)
        if db is not None:
            db.close()
        if cord is not None:
            cord.close()


# -- the server --------------------------------------------------------------------------------------------------------

#: How many seconds a server may be unreachable before a query fails.
PATIENCE = 30.0
#: The maximum number of groups sent at the same time.
_SENDERS = 2
#: The maximum number of requests per group.
_GROUP = 64
_PAUSE = Backoff(initial=0.02, maximum=1.0, multiplier=2.0, jitter=0.5)


class _Request:
    """The queries from one call to `Server.run`."""

    __slots__ = ("answer", "done", "group", "queries", "sender")

    def __init__(
        self, queries: tuple[Query, ...], done: tuple[Query, ...], answer: asyncio.Future[list[list[Row]]]
    ) -> None:
        self.queries, self.done, self.answer = queries, done, answer
        # All requests that are sent together, including this request.
        self.group: list[_Request] = []
        # The task that sends the group.
        self.sender: asyncio.Task[None] | None = None


class Server:
    """The server at ``url``, with up to ``connections`` connections. Call `open` before use."""

    def __init__(self, url: str, connections: int) -> None:
        if connections < 1:
            raise ValueError(f"connections must be 1 or more, got {connections!r}")
        self._connector = Connector(url)
        self._most = connections
        self._loop: asyncio.AbstractEventLoop | None = None
        # The idle connections, with the most recently used one last.
        self._idle: list[Connection] = []
        # All connections, idle or in use.
        self._connections: list[Connection] = []
        self._free = asyncio.Semaphore(connections)
        # The requests to send next, as one group.
        self._waiting: deque[_Request] = deque()
        # The tasks that send groups of requests.
        self._sending: set[asyncio.Task[None]] = set()
        self._soon = False

    def __repr__(self) -> str:
        return repr(self._connector)

    def time(self) -> float:
        """Return seconds since the epoch, by the clock shared by all processes using this store."""
        return self._connector.time()

    async def read_clock(self) -> None:
        """Determine the store's time in coordination with the other processes.

        Raises:
            JournalError: if the server is unreachable.
        """
        try:
            await self.run_once(self._connector.read_clock)
        except Unreachable as error:
            raise JournalError(str(error)) from None

    async def open(self, prepare: Callable[[Any], None]) -> None:
        """Connect, and call ``prepare`` with the first connection.

        Raises:
            JournalError: if the server is unreachable, refuses the connection, or is too old.
        """
        self._loop, self._free = asyncio.get_running_loop(), asyncio.Semaphore(self._most)

        def begin(db: Any) -> None:
            self._connector.check_schema(db)
            prepare(db)

        try:
            await self.run_once(begin)
        except BaseException as error:
            await self.close()
            if isinstance(error, Unreachable):
                raise JournalError(str(error)) from None
            raise

    async def close(self) -> None:
        """Close all connections after their current queries. If the server does not respond, wait only briefly."""
        self._loop, connections = None, self._connections
        self._connections, self._idle = [], []
        await asyncio.gather(*[connection.close() for connection in connections])
        for each in self._waiting:
            if not each.answer.done():
                each.answer.set_exception(JournalError(f"{self!r} is not open; enter the store first"))
        self._waiting.clear()
        if self._sending:
            await asyncio.wait(self._sending)

    async def run_once(self, use: Callable[[Any], _T]) -> _T:
        """Call ``use`` with a connection in a thread, without retrying, and return its result.

        Raises:
            Unreachable: if no connection is possible, or if the connection is lost.
        """
        async with self._leased() as connection:
            return await connection.do(use)

    @asynccontextmanager
    async def _leased(self) -> AsyncGenerator[Connection, None]:
        async with self._free:
            connection = self._take()
            try:
                yield connection
            except asyncio.CancelledError:
                # The caller no longer needs the response. The connection may be hanging, so we cut it rather than make
                # the next caller wait for it.
                connection.cut()
                self._idle.insert(0, connection)
                raise
            except BaseException:
                self._idle.append(connection)
                raise
            self._idle.append(connection)

    async def dial(self, introduce: Callable[[Any, Any], _T]) -> tuple[Any, _T]:
        """Open a separate connection, and return it with the result of ``introduce``.

        ``introduce`` is called with the new connection and another one.

        Raises:
            Unreachable: if no connection is possible.
        """
        # If the caller is cancelled, either the thread or the loop closes the connection: whichever is first to remove
        # it from the list.
        made: list[Any] = []
        unwanted = threading.Event()

        def dial(other: Any) -> tuple[Any, _T]:
            db = self._connector.connect()
            try:
                result = introduce(db, other)
            except BaseException as error:
                told = self._connector.translated(other if other.closed else db, error)
                db.close()
                raise told from error
            made.append(db)
            if unwanted.is_set():
                _close(made)
            return db, result

        try:
            return await self.run_once(dial)
        except asyncio.CancelledError:
            unwanted.set()
            _close(made)
            raise

    async def run(self, *queries: Query, done: Sequence[Query] = ()) -> list[list[Row]]:
        """Run all of ``queries`` as one transaction, and return the requested rows.

        If the response is lost, ``done`` runs before the queries are sent again. If the queries were committed,
        ``done`` returns the same rows. Otherwise, its first query returns no rows. If you don't pass ``done``, running
        the queries twice must have the same effect as running them once. While the server is unreachable, the call
        waits for up to half a minute.

        Raises:
            JournalError: if the server stays unreachable or rejects a query.
        """
        if self._loop is None:
            raise JournalError(f"{self!r} is not open; enter the store first")
        request = _Request(queries, tuple(done), self._loop.create_future())
        self._waiting.append(request)
        self._send_soon()
        try:
            return await request.answer
        except asyncio.CancelledError:
            if request.sender is not None and all(each.answer.cancelled() for each in request.group):
                # All callers in the group have stopped waiting for their results.
                request.sender.cancel()
            raise

    # -- in groups -----------------------------------------------------------------------------------------------------

    def _send_soon(self) -> None:
        """Send the waiting requests in the next loop iteration, along with any that arrive before then."""
        if self._waiting and not self._soon and len(self._sending) < _SENDERS and self._loop is not None:
            self._soon = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._soon = False
        group = [self._waiting.popleft() for _ in range(min(_GROUP, len(self._waiting)))]
        group = [each for each in group if not each.answer.cancelled()]
        if group:
            task = start_task(self._carry_out(group), name=f"ask {self!r}")
            for each in group:
                each.sender, each.group = task, group
            self._sending.add(task)
            task.add_done_callback(self._sent)
        self._send_soon()

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._send_soon()

    async def _carry_out(self, group: list[_Request]) -> None:
        """Run all requests in one transaction. If it fails, run each request in a separate transaction."""
        try:
            doubtful = False
            if len(group) > 1:
                doubtful = await self._carry_out_together(group)
            await asyncio.gather(*[self._answer(each, doubtful=doubtful) for each in group if not each.answer.done()])
        finally:
            for each in group:
                each.answer.cancel()

    async def _carry_out_together(self, group: list[_Request]) -> bool:
        """Try once. Return True if the response was lost, which means that the transaction may have been committed."""
        try:
            async with self._leased() as connection:
                answers = await connection.carry_out([each.queries for each in group])
        except AnswerLost:
            return True
        except Exception:  # noqa: BLE001  # each request is sent again alone and gets its own error
            return False
        for each, answer in zip(group, answers, strict=True):
            if not each.answer.done():
                each.answer.set_result(answer)
        return False

    async def _answer(self, request: _Request, *, doubtful: bool) -> None:
        try:
            async with self._leased() as connection:
                answer = await self._retry(connection, request, doubtful=doubtful)
        except Exception as error:  # noqa: BLE001  # the caller gets it
            if not request.answer.done():
                request.answer.set_exception(error)
        else:
            if not request.answer.done():
                request.answer.set_result(answer)

    async def _retry(self, connection: Connection, request: _Request, *, doubtful: bool) -> list[list[Row]]:
        """Run ``request``, retrying until the server responds or has been unreachable for too long."""
        end, tries = time.monotonic() + PATIENCE, 0
        while True:
            try:
                if doubtful and request.done:
                    (found,) = await connection.carry_out([request.done])
                    if found[0]:
                        return found
                (answer,) = await connection.carry_out([request.queries])
                if not doubtful or not request.done or any(answer):
                    return answer
                # The response to the earlier attempt was lost. The attempt may have been committed after `done` ran.
                (found,) = await connection.carry_out([request.done])
            except Unreachable as error:
                doubtful = doubtful or isinstance(error, AnswerLost)
                if self._loop is None or time.monotonic() > end:
                    raise JournalError(f"{error}; gave up after {PATIENCE:g} s") from None
            else:
                return found
            await asyncio.sleep(_PAUSE.delay(tries))
            tries += 1

    def _take(self) -> Connection:
        if self._loop is None:
            raise JournalError(f"{self!r} is not open; enter the store first")
        if not self._idle:
            connection = Connection(LoopThread(f"{self!r}", self._loop), self._connector, self._loop)
            self._connections.append(connection)
            self._idle.append(connection)
        return self._idle.pop()


def _close(made: list[Any]) -> None:
    with suppress(IndexError):
        made.pop().close()

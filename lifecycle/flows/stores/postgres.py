"""`PostgresStore`: an `SQLStore` on a PostgreSQL server, which workers on many machines can share."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import math
import os
import re
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from lifecycle._async import start_task
from lifecycle.backoff import Backoff
from lifecycle.errors import JournalError
from lifecycle.flows.stores.presence import GONE, Presence
from lifecycle.flows.stores.server import CHANNEL, FAREWELL, HELLO, READ_CLOCK, Cord, Query, Server, Unreachable, sql
from lifecycle.flows.stores.sql import (
    CREATE_FLOWS,
    CREATE_JOBS,
    CREATE_OUTBOX,
    CREATE_SCHEDULES,
    CREATE_SIGNALS,
    FLOW_INDEXES,
    JOB_KEYS,
    QUEUES,
    Dialect,
    Guarded,
    Rows,
    SQLStore,
)
from lifecycle.journal import Schema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from types import TracebackType
    from typing import Any, Self

    import psycopg

    from lifecycle.flows.stores.sql import Row, Statement

__all__ = ["POSTGRES", "TABLES", "PostgresStore", "prepare", "query_of"]

_log = logging.getLogger("lifecycle.flows")

POSTGRES = Dialect(
    locks=True,
    among="= ANY (:{name})",
    number="number",
    # If the flow was taken in the meantime, its epoch is different. If a write is sent twice, the second copy does
    # nothing, because the row already has the same stamp or a newer one.
    guard="""
    UPDATE lifecycle_flows SET at = CASE WHEN state = :state THEN at ELSE :at END, state = :state, error = :error,
        store = coalesce(:store, store), stamp = :stamp, kind = :kind, due = :due, result = :result
    WHERE id = :flow AND epoch = :epoch AND stamp < :stamp AND {uncancelled} RETURNING id
    """,
    types={
        # Rows are updated often. Leaving free space in the tables' pages avoids index updates.
        "serial": "number bigint GENERATED ALWAYS AS IDENTITY,\n        ",
        "flow_key": "PRIMARY KEY",
        "key": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "real": "float8",
        "spare": " WITH (fillfactor = 70)",
        "clustered": "",
    },
)

# -- converting statements to queries ----------------------------------------------------------------------------------

_NUMBERS = {
    **dict.fromkeys(("attempt", "round", "undone"), "integer"),
    **dict.fromkeys(("due", "at", "until", "created"), "float8"),
    **dict.fromkeys(("seq", "epoch", "stamp"), "bigint"),
}


@functools.cache
def _text(text: str) -> bytes:
    """Convert the ``:names`` in ``text`` to psycopg placeholders."""
    return re.sub(r"(?<!:):(\w+)", r"%(\1)s", text).encode()


@functools.cache
def _guarded(guard: str, then: tuple[str, ...]) -> str:
    """Return a statement that runs the statements in ``then``, in order, if ``guard`` returns a row."""
    # If the results of the parts are not used, the server runs the parts in reverse order.
    parts = ", ".join(f"then{place} AS ({each})" for place, each in enumerate(reversed(then)))
    return f"WITH held AS ({guard}), {parts} SELECT 1 FROM held" if then else guard  # noqa: S608  # our own statements


@functools.cache
def _insert(table: str, columns: tuple[str, ...], key: str, *, keep: bool) -> str:
    """Return the statement that inserts rows from the JSON parameter named after ``table``."""
    types = ", ".join(f"{name} {_NUMBERS.get(name, 'text')}" for name in columns)
    names = ", ".join(columns)
    text = (
        f"INSERT INTO {table} ({names}) SELECT r.* FROM held,"  # noqa: S608  # our own columns
        f" json_to_recordset(CAST(:{table} AS json)) AS r ({types})"
    )
    if not key:
        return text
    if keep:
        return f"{text} ON CONFLICT ({key}) DO NOTHING"
    changed = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key.split(", "))
    return f"{text} ON CONFLICT ({key}) DO UPDATE SET {changed}"


def query_of(work: Statement | Guarded) -> Query:
    """Convert ``work`` to a single query."""
    if not isinstance(work, Guarded):
        return Query(_text(work.text), work.values, work.asked)
    values: dict[str, Any] = dict(work.guard.values)
    texts: list[str] = []
    for each in work.then:
        if isinstance(each, Rows):
            texts.append(_insert(each.table, each.columns, each.key, keep=each.keep))
            values[each.table] = json.dumps([dict(zip(each.columns, row, strict=True)) for row in each.rows])
        else:
            texts.append(each.text)
            values |= each.values
    return Query(_text(_guarded(work.guard.text, tuple(texts))), values, work.guard.asked)


class _Tables:
    """The `Database` on ``server``."""

    dialect = POSTGRES

    def __init__(self, server: Server) -> None:
        self._server = server

    async def run(self, *works: Statement | Guarded, done: Sequence[Statement] = ()) -> list[list[Row]]:
        """Run ``works`` as one transaction, and return the requested rows."""
        return await self._server.run(*map(query_of, works), done=tuple(map(query_of, done)))

    async def read(self, *statements: Statement) -> list[list[Row]]:
        """Run read-only statements."""
        return await self._server.run(*map(query_of, statements))


# -- the tables --------------------------------------------------------------------------------------------------------

TABLES = Schema(
    "flows",
    (
        (),
        (
            """ALTER TABLE lifecycle_flow_atoms ADD COLUMN undone integer NOT NULL DEFAULT 0,
                ADD COLUMN due float8 NOT NULL DEFAULT 0""",
            # In earlier versions, each round had a separate key.
            """UPDATE lifecycle_flow_atoms SET undone = CASE WHEN state IN ('PENDING', 'REVERTED') THEN round
                ELSE greatest(round - 1, 0) END WHERE round > 0""",
            """CREATE TABLE lifecycle_clock (
                one boolean PRIMARY KEY DEFAULT true CHECK (one),
                correction float8 NOT NULL DEFAULT 0,
                seen float8 NOT NULL DEFAULT 0
            )""",
            # This index finds the unfinished flows with a given name without reading the finished ones.
            "DROP INDEX lifecycle_flows_by_name",
            "CREATE INDEX lifecycle_flows_by_name ON lifecycle_flows (name, state)",
            """ALTER TABLE lifecycle_outbox ADD COLUMN failures integer NOT NULL DEFAULT 0,
                ADD COLUMN error text NOT NULL DEFAULT '', ADD COLUMN dead boolean NOT NULL DEFAULT false""",
            "CREATE INDEX lifecycle_outbox_free ON lifecycle_outbox (until, number) WHERE NOT dead",
            "CREATE INDEX lifecycle_outbox_dead ON lifecycle_outbox (number) WHERE dead",
            "DROP INDEX lifecycle_jobs_ready",
            """CREATE INDEX lifecycle_jobs_ready ON lifecycle_jobs (flow, rank, number)
                WHERE state = 'UNCLAIMED' AND due = 0""",
            # Earlier versions could leave a discarded job's flow unfinished and later run it again.
            """UPDATE lifecycle_flows f
                SET state = CASE f.state WHEN 'PENDING' THEN f.state ELSE 'FAILURE' END,
                    epoch = f.epoch + 1, owner = '', stamp = 0, error = 'its job was discarded' FROM lifecycle_jobs j
                WHERE f.state NOT IN ('SUCCESS', 'FAILURE', 'REVERTED')
                AND j.id = f.id AND j.flow = f.name AND j.outcome = 'trashed'""",
        ),
        (
            "ALTER TABLE lifecycle_flow_atoms RENAME TO lifecycle_flow_steps",
            "ALTER TABLE lifecycle_flow_steps DROP COLUMN revert_result",
            """ALTER TABLE lifecycle_flows DROP COLUMN version, DROP COLUMN seq, ALTER COLUMN stamp SET DEFAULT 0""",
            "ALTER TABLE lifecycle_jobs ALTER COLUMN stamp SET DEFAULT 0",
            "ALTER TABLE lifecycle_jobs RENAME COLUMN posted TO enqueued",
            "UPDATE lifecycle_jobs SET outcome = 'discarded' WHERE outcome = 'trashed'",
        ),
        (
            """ALTER TABLE lifecycle_flows ADD COLUMN due float8 NOT NULL DEFAULT 0,
                ADD COLUMN parent text NOT NULL DEFAULT '', ADD COLUMN result text,
                ADD COLUMN created float8 NOT NULL DEFAULT 0, ADD COLUMN kind text NOT NULL DEFAULT 'flow'""",
            "UPDATE lifecycle_flows SET created = at",
            """ALTER TABLE lifecycle_jobs ADD COLUMN queue text NOT NULL DEFAULT '',
                ADD COLUMN key text NOT NULL DEFAULT ''""",
            "DROP INDEX lifecycle_jobs_ready",
            *map(POSTGRES.text, (*FLOW_INDEXES, *CREATE_SIGNALS, *CREATE_SCHEDULES, *QUEUES)),
        ),
        ("DROP INDEX lifecycle_jobs_keys", JOB_KEYS),
    ),
    (
        *map(POSTGRES.text, (*CREATE_FLOWS, *CREATE_SIGNALS, *CREATE_SCHEDULES, *CREATE_JOBS, *CREATE_OUTBOX)),
        # ``correction`` is added to the server's clock, so that the store's time does not jump. ``seen`` is the last
        # stored reading of the server's clock.
        """CREATE TABLE lifecycle_clock (
            one boolean PRIMARY KEY DEFAULT true CHECK (one),
            correction float8 NOT NULL DEFAULT 0,
            seen float8 NOT NULL DEFAULT 0
        )""",
    ),
)

_ALONE = "SELECT pg_advisory_xact_lock(hashtext('lifecycle tables'), hashtext(current_schema()))"
# Locks all tables in the order that most transactions use.
_STILL = """LOCK TABLE lifecycle_jobs, lifecycle_flows, lifecycle_flow_{}, lifecycle_flow_changes, lifecycle_outbox
    IN ACCESS EXCLUSIVE MODE"""
#: The first version that calls the rows of flows steps.
_STEPS = 3
#: How many times to try to migrate the tables.
_TRIES = 10
_VERSIONS = "CREATE TABLE IF NOT EXISTS lifecycle_schemas (name text PRIMARY KEY, version integer NOT NULL)"
_FOUND = """SELECT current_schema(),
    to_regclass(quote_ident(current_schema()) || '.lifecycle_schemas') IS NOT NULL"""
_VERSION = "SELECT version FROM lifecycle_schemas WHERE name = %s"
_KEEP = "INSERT INTO lifecycle_schemas VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET version = excluded.version"


def prepare(db: psycopg.Connection[Row]) -> None:
    """Create or migrate the tables. If several processes connect at the same time, only one of them migrates.

    Raises:
        JournalError: if the tables were created by a newer version of this library or belong to a different program.
    """
    import psycopg

    # The tables are usually up to date, in which case we need neither a lock nor permission to create tables.
    if _version(db) == len(TABLES.steps):
        return
    for _ in range(_TRIES - 1):
        # Processes running an earlier version of this library may take the locks in a different order.
        with suppress(psycopg.errors.DeadlockDetected):
            _migrate(db)
            return
    _migrate(db)


def _migrate(db: psycopg.Connection[Row]) -> None:
    with db.transaction():
        db.execute(_ALONE)
        db.execute(_VERSIONS)
        found, known = _version(db), len(TABLES.steps)
        if found and found < known:
            db.execute(_STILL.format("steps" if found >= _STEPS else "atoms").encode())
        for step in TABLES.since(found):
            for statement in step:
                _make(db, statement)
        if found < known:
            db.execute(_KEEP, (TABLES.name, known))


def _version(db: psycopg.Connection[Row]) -> int:
    ((place, there),) = db.execute(_FOUND)
    if place is None:
        raise JournalError(
            "no schema in the search_path can be used; create one, and GRANT USAGE on it to the role in the URL"
        )
    row = db.execute(_VERSION, (TABLES.name,)).fetchone() if there else None
    found, known = (row[0] if row else 0), len(TABLES.steps)
    if found > known:
        raise JournalError(
            f"the tables {TABLES.name!r} have version {found}, but this program supports versions up to {known}; "
            "use the newer program that created them, or a different schema"
        )
    return found


def _make(db: psycopg.Connection[Row], statement: str) -> None:
    import psycopg

    try:
        db.execute(statement.encode())
    except (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject) as error:
        raise JournalError(
            f"another program's table or index has the same name as ours ({str(error).splitlines()[0]}); "
            "use a separate schema in the URL (?options=-csearch_path%3Dname)"
        ) from error


# -- the processes that have the store open ----------------------------------------------------------------------------

#: How many seconds to collect messages before sending them. We collect them because each notification takes a
#: server-wide lock.
_GATHER = 0.005
#: The maximum number of bytes per notification. The server's limit is 8000.
_LONGEST = 7900
#: The maximum number of messages waiting to be sent. Any further messages are dropped.
_MOST = 1000


class _Channel:
    """Notifications on the channel ``name``. The loop reads them directly, without a thread or a task.

    The channel calls ``hear`` with each received line, and calls ``lost`` if the connection is lost.
    """

    def __init__(
        self,
        db: psycopg.Connection[Row],
        name: str,
        *,
        hear: Callable[[str], None],
        lost: Callable[[], None],
    ) -> None:
        self._db, self._hear, self._lost = db, hear, lost
        self.name: str = name
        self._loop = asyncio.get_running_loop()
        # The lines to send, in order.
        self._news: dict[bytes, None] = {}
        # The timer that sends the lines.
        self._timer: asyncio.TimerHandle | None = None
        # True while the server processes earlier lines.
        self._busy = False
        # True once the channel has stopped listening.
        self._over = False
        self._file = db.fileno()
        self._loop.add_reader(self._file, self._readable)

    def send(self, line: str) -> None:
        """Send ``line`` soon, along with any other waiting lines. Lines beyond the limits are dropped."""
        if len(self._news) < _MOST and len(line) < _LONGEST:
            self._news[line.encode()] = None
        if self._timer is None and not self._busy:
            self._timer = self._loop.call_later(_GATHER, self._send)

    def _send(self) -> None:
        self._timer = None
        if self._news and not self._busy:
            values = [self.name.encode(), _together(self._news)]
            self._busy = self._guarded(lambda: self._post(values))

    def _post(self, values: list[bytes]) -> None:
        self._db.pgconn.send_query_params(b"SELECT pg_notify($1, $2)", values)
        self._db.pgconn.flush()

    def _readable(self) -> None:
        if self._guarded(self._read) and not self._busy and self._news and self._timer is None:
            self._timer = self._loop.call_later(_GATHER, self._send)

    def _read(self) -> None:
        pg = self._db.pgconn
        pg.consume_input()
        while self._busy and not pg.is_busy():
            self._busy = pg.get_result() is not None
        while (told := pg.notifies()) is not None:
            for line in told.extra.decode().split("\n"):
                self._hear(line)

    def _guarded(self, use: Callable[[], None]) -> bool:
        """Call ``use``. Return False if the connection is lost."""
        import psycopg

        try:
            use()
        except psycopg.Error:
            # `release` may detect the loss again, so make sure to report it only once.
            if not self._over:
                self._forget()
                self._db.close()
                self._lost()
            return False
        return True

    def release(self) -> psycopg.Connection[Row]:
        """Send the waiting lines, stop listening, and return the connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._send()
        self._forget()
        return self._db

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # Use the descriptor that we stored, because a lost connection no longer has one.
        self._loop.remove_reader(self._file)
        self._over = True


def _together(news: dict[bytes, None]) -> bytes:
    """Remove the first lines from ``news``, up to the limit for one notification, and return them."""
    lines: list[bytes] = []
    room = _LONGEST
    while news and room >= len(first := next(iter(news))):
        room -= len(first) + 1
        lines.append(first)
        del news[first]
    return b"\n".join(lines)


_PAUSE = Backoff(initial=0.05, maximum=2.0)
#: Seconds that a process may be missing before we conclude that it has exited.
_GRACE = 5.0
#: Seconds between checks of a missing process.
_AGAIN = 0.25
# The presence names of the stores that are open in this process.
_HERE: set[str] = set()

# Keepalives let the server detect that a machine is gone. Unix sockets ignore these settings. The connection stays idle
# for long. Losing messages is acceptable, so sending them doesn't have to wait for the disk.
_SETTINGS = """SELECT set_config(name, value, false) FROM
    (VALUES ('tcp_keepalives_idle', '10'), ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3'),
        ('idle_session_timeout', '0'), ('synchronous_commit', 'off'))
    AS settings (name, value)"""
#: Seconds to wait for our own notification. It usually takes a millisecond.
_HEARD = 10.0
_APPEAR = "SELECT pg_advisory_lock_shared(%s)"
_LIVES = """SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1
    AND ((classid::bigint << 32) | objid::bigint) = %(key)s
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""


_LIVING = _LIVES.replace("SELECT 1", "SELECT (classid::bigint << 32) | objid::bigint").replace(
    "= %(key)s", "= ANY(%(keys)s)"
)


class ServerPresence(Presence):
    """All processes, on any machine, that have the same tables open on a server.

    Each process has a connection that listens for messages and holds a lock. The connection closes when the process
    exits for any reason, or when keepalives detect that the machine is gone. The server then releases the lock.
    Messages are sent as PostgreSQL notifications, each of which can contain several messages. Since messages can be
    lost along with a connection, each process also polls.
    """

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        # The server does not report it when a process is killed.
        self.look_every: float = 5.0
        self._present = False
        # When each missing process was first and last found to be missing, in loop time.
        self._missing: dict[str, tuple[float, float]] = {}
        self._channel: _Channel | None = None
        # The task that reconnects after the connection is lost.
        self._reconnecting: asyncio.Task[None] | None = None
        # The task that reads the server's clock when another process requests it.
        self._reading: asyncio.Task[None] | None = None

    @property
    def token(self) -> str:
        """The string that identifies this process in `lives`; empty while the store is closed."""
        return self.name if self._present else ""

    def open(self) -> None:
        """Do nothing, because entering the store opens the connection."""

    def close(self) -> None:
        """Do nothing, because leaving the store closes the connection."""

    async def appear(self) -> None:
        """Become visible to the other processes, and listen for their messages.

        Raises:
            JournalError: if the server is unreachable.
        """
        self.name: str = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(6).hex()}"
        try:
            await self._connect()
        except Unreachable as error:
            raise JournalError(str(error)) from None
        self._present = True
        _HERE.add(self.name)

    async def vanish(self) -> None:
        """Disconnect. To other processes, this process then appears to have exited."""
        self._present = False
        _HERE.discard(self.name)
        tasks = [task for task in (self._reconnecting, self._reading) if task is not None]
        self._reconnecting = self._reading = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await self._disconnect(channel.release(), channel.name)

    async def _disconnect(self, db: psycopg.Connection[Row], channel: str) -> None:
        """Close the connection, and wait a short time for the server to release the lock."""
        # Either the thread or the loop closes the connection: whichever is first to remove it from the list.
        left, cord = [db], Cord(db)
        try:
            async with asyncio.timeout(FAREWELL):
                await self._server.run_once(lambda _: _close(left.pop(), channel, f"{self.name} {GONE}"))
        except (Unreachable, JournalError, TimeoutError):
            pass
        finally:
            cord.pull()
            cord.close()
            with suppress(IndexError):
                left.pop().close()

    async def _connect(self) -> None:
        db, name = await self._server.dial(self._introduce)
        self._channel = _Channel(db, name, hear=self._notified, lost=self._disconnected)

    def _introduce(self, db: psycopg.Connection[Row], other: psycopg.Connection[Row]) -> str:
        """Take this process's lock, and return the name of the channel that the connection listens on."""
        ((channel,),) = db.execute(CHANNEL)
        db.execute(f'LISTEN "{channel}"'.encode())
        # If a pooler shares the session with its other clients, the settings and the lock must not be left in it.
        self._check_session(db, other, channel)
        db.execute(_SETTINGS)
        db.execute(_APPEAR, (_key(self.name),))
        return str(channel)

    def _check_session(self, db: psycopg.Connection[Row], other: psycopg.Connection[Row], channel: str) -> None:
        """Raise an error unless ``db`` receives a notification from ``other`` while it is idle.

        With transaction pooling, an idle connection has no session on the server, so it receives nothing.
        """
        line = f"{self.name} {HELLO}"
        ((ours,),) = db.execute("SELECT pg_backend_pid()")
        ((theirs, _),) = other.execute("SELECT pg_backend_pid(), pg_notify(%s, %s)", (channel, line))
        if ours != theirs and any(each.payload == line for each in db.notifies(timeout=_HEARD)):
            return
        raise JournalError(
            f"{self._server!r}: notifications do not arrive, as with a pooler that uses transaction pooling; "
            "use session pooling (pool_mode = session in PgBouncer), or connect to the server itself"
        )

    def _disconnected(self) -> None:
        self._channel = None
        if self._present:
            self._reconnecting = start_task(self._reconnect(), name="listen to PostgreSQL")

    async def _reconnect(self) -> None:
        tries = 0
        while True:
            await asyncio.sleep(_PAUSE.delay(tries))
            try:
                await self._connect()
            except (Unreachable, JournalError) as error:
                tries += 1
                _log.debug("notifications will not arrive until the connection is restored: %s", error)
            else:
                self._reconnecting = None
                # While this process was not connected, it could neither send nor receive messages.
                self.notify(GONE)
                return

    async def lives(self, token: str) -> bool:
        """Return True if the process with ``token``, on any machine, still has the store open."""
        if token == self.token:
            return True
        key = _key(token)
        return key is not None and (await self._server.run(sql(_LIVES, key=key))) != [[]]

    async def is_gone(self, token: str) -> bool:
        """Return True if the process with ``token`` has exited. It can take several seconds to detect an exit.

        A process that has lost its connection reconnects soon. We therefore conclude that a process has exited only if
        it stays missing for several seconds, or if it ran on this machine and no longer exists.
        """
        while not await self.lives(token):
            if self._is_missing_for_long(token):
                return True
            await asyncio.sleep(_AGAIN)
        self._missing.pop(token, None)
        return False

    def _is_missing_for_long(self, token: str) -> bool:
        """Record that the process is missing now, and return True if it must have exited."""
        first, last = self._missing.get(token, (0.0, -math.inf))
        now = asyncio.get_running_loop().time()
        # If the previous check was too long ago, the process may have been connected in between, so we start
        # measuring again.
        first = first if now - last < _AGAIN * 4 else now
        self._missing[token] = (first, now)
        return now - first >= _GRACE or _has_ended(token)

    async def find_gone(self, tokens: Collection[str]) -> tuple[set[str], bool]:
        """Return the processes among ``tokens`` that have exited, and whether more of them might have."""
        keys = {token: _key(token) for token in tokens}
        locks = [key for key in keys.values() if key is not None]
        (rows,) = await self._server.run(sql(_LIVING, keys=locks))
        held = {key for (key,) in rows}
        for token in [token for token, key in keys.items() if key in held]:
            self._missing.pop(token, None)
        missing = [token for token, key in keys.items() if key not in held]
        gone = set(filter(self._is_missing_for_long, missing))
        return gone, len(gone) < len(missing)

    def alive(self, token: str) -> bool:
        """Return True if ``token`` belongs to this process. For other processes, use `lives`."""
        return token == self.token

    def _send(self, news: str) -> None:
        if self._channel is not None:
            self._channel.send(f"{self.name} {news.encode('unicode_escape').decode()}")

    def _read_clock(self) -> None:
        if self._present and (self._reading is None or self._reading.done()):
            self._reading = start_task(self._agree(), name="read the clock of PostgreSQL")

    async def _agree(self) -> None:
        with suppress(Unreachable, JournalError):
            await self._server.read_clock()

    def _notified(self, line: str) -> None:
        name, _, news = line.partition(" ")
        if news == READ_CLOCK:
            self._read_clock()
        elif name != self.name:
            self._notify_here(news.encode().decode("unicode_escape", "replace"))


def _close(db: psycopg.Connection[Row], channel: str, farewell: str) -> None:
    """Release the lock, say so, and close the connection. The server may not detect the close immediately."""
    import psycopg

    with suppress(psycopg.Error):
        while db.pgconn.get_result() is not None:
            pass
        db.execute("SELECT pg_advisory_unlock_all()")
        db.execute("SELECT pg_notify(%s, %s)", (channel, farewell))
    db.close()


def _has_ended(token: str) -> bool:
    """Return True if ``token`` belongs to a process on this machine that has exited or closed its store."""
    place, _, _ = token.rpartition("-")
    host, _, number = place.rpartition("-")
    if host != socket.gethostname() or not number.isdecimal():
        return False
    if number == str(os.getpid()):
        return token not in _HERE
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError, ValueError):
        # No process has this number, or the number is too large for any process.
        return True
    except OSError:
        return False
    return False


def _key(token: str) -> int | None:
    """Return the key of a process's lock, or None if ``token`` does not have the expected form."""
    _, _, number = token.rpartition("-")
    try:
        return int(number, 16) if len(number) == 12 else None  # noqa: PLR2004  # as `appear` generates it
    except ValueError:
        return None


# -- the store ---------------------------------------------------------------------------------------------------------


class PostgresStore(SQLStore):
    """A `Store` on the PostgreSQL server at ``url``, in the first schema on its search_path.

    Stored data outlives this process. With PostgreSQL's default settings, it also survives a power cut on the server.
    Queries wait up to half a minute for an unreachable server, so nothing is lost when the server restarts.

    The store requires the extra ``postgres`` and PostgreSQL 15 or newer. If a connection pooler between the store and
    the server uses transaction pooling, entering the store raises `JournalError`.

    Args:
        url: ``postgresql://user@host:port/database``, with any libpq parameters, such as ``?sslmode=verify-full``.
        connections: The maximum number of connections for queries. One additional connection listens for messages.
    """

    def __init__(self, url: str, *, connections: int = 4) -> None:
        self._server = Server(url, connections)
        self._presence = ServerPresence(self._server)
        super().__init__(_Tables(self._server))

    def __repr__(self) -> str:
        return f"<PostgresStore {self._server!r}>"

    async def __aenter__(self) -> Self:
        """Connect, and create the tables if necessary.

        Raises:
            JournalError: if the server is unreachable or too old, or if there are unrelated tables with the same names.
        """
        await self._server.open(prepare)
        try:
            await self._server.read_clock()
            await self._presence.appear()
        except BaseException:
            await self._server.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Write everything that was submitted, then disconnect."""
        await self._presence.vanish()
        await self._server.close()

    async def holds_flows(self) -> bool:
        """Return True if the tables already exist. Call this before you enter the store.

        Raises:
            JournalError: if the server is unreachable or too old, or if the tables cannot be used.
        """
        found: list[bool] = []
        await self._server.open(lambda db: found.append(_version(db) > 0))
        await self._server.close()
        return found == [True]

    def presence(self) -> ServerPresence:
        """Return the processes, on any machine, that have these tables open."""
        return self._presence

    def time(self) -> float:
        """Return the time in seconds since the epoch.

        All machines share this clock, which does not jump with the server's clock.
        """
        return self._server.time()

"""`PostgresOwners`: the processes that have the tables of one server open, on whichever machine.

Each has a connection that listens, and holds a lock which the server lets go of when that connection is gone: with the
process, however it died, or with its machine, which the server misses by its keepalives. News are notifications of the
server, several in one: a hint, which may be lost with a connection. Whoever needs to know looks for himself now and
then.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from lifecycle.backoff import Backoff
from lifecycle.errors import JournalError
from lifecycle.flows.owners import Owners
from lifecycle.flows.postgres.channels import Channel
from lifecycle.flows.postgres.connections import FAREWELL, Cord
from lifecycle.flows.postgres.connectors import CHANNEL, LOOK, Unreachable, sql

if TYPE_CHECKING:
    import psycopg

    from lifecycle.flows.postgres.connectors import Row
    from lifecycle.flows.postgres.servers import Server

__all__ = ["PostgresOwners"]

_log = logging.getLogger("lifecycle.flows")

_PAUSE = Backoff(initial=0.05, maximum=2.0)
#: Seconds that an owner may be missed before it counts as gone, and after which it is looked for again.
_GRACE, _AGAIN = 5.0, 0.25
# The names of those that are present in this process.
_HERE: set[str] = set()

# The server asks a machine that says nothing whether it is still there; over a socket file there is nothing to ask.
_KEEPALIVE = """SELECT set_config(name, value, false) FROM
    (VALUES ('tcp_keepalives_idle', '10'), ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3'))
    AS settings (name, value)"""
_APPEAR = "SELECT pg_advisory_lock_shared(%s)"
_LIVES = """SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1
    AND ((classid::bigint << 32) | objid::bigint) = %(key)s
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""


class PostgresOwners(Owners):
    """One process among those that ``server`` knows; the store says when it appears and when it vanishes."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        self._present = False
        # When owners were missed first and last, by the clock of the loop.
        self._missing: dict[str, tuple[float, float]] = {}
        self._channel: Channel | None = None
        # Who makes another one, where it was lost.
        self._mending: asyncio.Task[None] | None = None
        # Who reads the server's clock, where another process asks for that.
        self._reading: asyncio.Task[None] | None = None

    @property
    def token(self) -> str:
        """What others can ask `lives` about."""
        return self.name if self._present else ""

    def open(self) -> None:
        """Nothing: the store that is entered has appeared."""

    def close(self) -> None:
        """Nothing: the store that is left vanishes."""

    async def appear(self) -> None:
        """Be seen by the others, and hear them.

        Raises:
            JournalError: where the server is gone again.
        """
        self.name: str = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(6).hex()}"
        try:
            await self._hang_on()
        except Unreachable as error:
            raise JournalError(str(error)) from None
        self._present = True
        _HERE.add(self.name)

    async def vanish(self) -> None:
        """Go; for the others it is as if we had died."""
        self._present = False
        _HERE.discard(self.name)
        tasks = [task for task in (self._mending, self._reading) if task is not None]
        self._mending = self._reading = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await self._part(channel.let_go())

    async def _part(self, db: psycopg.Connection[Row]) -> None:
        """Hang up, and wait for the server to notice, though not for one that says nothing."""
        # Whoever takes it out, the thread or the loop, closes it.
        left, cord = [db], Cord(db)
        try:
            async with asyncio.timeout(FAREWELL):
                await self._server.borrow(lambda _: _hang_up(left.pop()))
        except (Unreachable, JournalError, TimeoutError):
            pass
        finally:
            cord.pull()
            cord.close()
            with suppress(IndexError):
                left.pop().close()

    async def _hang_on(self) -> None:
        db, name = await self._server.dial(self._introduce)
        self._channel = Channel(db, name, hear=self._notified, lost=self._cut)

    def _introduce(self, db: psycopg.Connection[Row]) -> str:
        """Let it be known that we are there; the channel on which others are heard."""
        db.execute(_KEEPALIVE)
        # What is told is a hint, and need not wait for the disk.
        db.execute("SET synchronous_commit = off")
        ((channel,),) = db.execute(CHANNEL)
        db.execute(f'LISTEN "{channel}"'.encode())
        db.execute(_APPEAR, (_key(self.name),))
        return str(channel)

    def _cut(self) -> None:
        self._channel = None
        if self._present:
            self._mending = asyncio.create_task(self._mend(), name="listen to PostgreSQL")

    async def _mend(self) -> None:
        tries = 0
        while True:
            await asyncio.sleep(_PAUSE.delay(tries))
            try:
                await self._hang_on()
            except (Unreachable, JournalError) as error:
                tries += 1
                _log.debug("nobody is heard: %s", error)
            else:
                self._mending = None
                return

    async def lives(self, token: str) -> bool:
        """Whether the process that had the store open under ``token`` still has, wherever it runs."""
        if token == self.token:
            return True
        key = _key(token)
        return key is not None and bool(await self._server.run(sql(_LIVES, key=key)))

    async def is_gone(self, token: str) -> bool:
        """Whether that process has ended.

        One whose connection was cut comes back in a moment, so that it has ended only if it is missed for some seconds,
        or if it is known to have ended on this machine.
        """
        loop = asyncio.get_running_loop()
        while not await self.lives(token):
            first, last = self._missing.get(token, (0.0, -math.inf))
            now = loop.time()
            # Missed before, but not looked for since, it may have come back and be cut off again.
            first = first if now - last < _AGAIN * 4 else now
            self._missing[token] = (first, now)
            if now - first >= _GRACE or _has_ended(token):
                return True
            await asyncio.sleep(_AGAIN)
        self._missing.pop(token, None)
        return False

    def alive(self, token: str) -> bool:
        """Only of ourselves it can be said without asking the server; see `lives`."""
        return token == self.token

    def _ring(self, news: str) -> None:
        if self._channel is not None:
            self._channel.tell(f"{self.name} {news.encode('unicode_escape').decode()}")

    def _read_clock(self) -> None:
        if self._present and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(self._agree(), name="read the clock of PostgreSQL")

    async def _agree(self) -> None:
        with suppress(Unreachable, JournalError):
            await self._server.read_clock()

    def _notified(self, line: str) -> None:
        name, _, news = line.partition(" ")
        if news == LOOK:
            self._read_clock()
        elif name != self.name:
            self._tell(news.encode().decode("unicode_escape", "replace"))


def _hang_up(db: psycopg.Connection[Row]) -> None:
    """Be gone when this returns: the server may need a moment to miss a connection."""
    import psycopg

    with suppress(psycopg.Error):
        while db.pgconn.get_result() is not None:
            pass
        db.execute("SELECT pg_advisory_unlock_all()")
    db.close()


def _has_ended(token: str) -> bool:
    """Whether it is known to have been a process of this machine, or a store of this process, that is gone."""
    place, _, _ = token.rpartition("-")
    host, _, number = place.rpartition("-")
    if host != socket.gethostname() or not number.isdecimal():
        return False
    if int(number) == os.getpid():
        return token not in _HERE
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _key(token: str) -> int | None:
    """The number of an owner's lock; None for what is no token of ours."""
    _, _, number = token.rpartition("-")
    try:
        return int(number, 16) if len(number) == 12 else None  # noqa: PLR2004  # as many as `appear` gives it
    except ValueError:
        return None

"""`Connection`: one connection to a PostgreSQL server and the thread that waits for it, so that the loop need not.

What a thread waits for may never come: a `Cord` ends that from the loop.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lifecycle.flows.postgres.connectors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from lifecycle.flows.postgres.connectors import Connector, Row, Statement
    from lifecycle.journal.threads import LoopThread

    _T = TypeVar("_T")

__all__ = ["FAREWELL", "Connection", "Cord"]

#: Seconds that the end waits for a server which says nothing.
FAREWELL = 1.0


class Cord:
    """The socket of a connection, which the loop can pull while a thread waits for an answer."""

    def __init__(self, db: Any) -> None:
        # Another number of the same socket: that of the connection may soon be somebody else's.
        self._socket = socket.fromfd(db.fileno(), socket.AF_INET, socket.SOCK_STREAM)
        self._lock = threading.Lock()

    def pull(self) -> None:
        """Have who waits for an answer hear that there is none."""
        with self._lock, suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Nobody will want to."""
        with self._lock:
            self._socket.close()


class Connection:
    """A thread with a connection."""

    def __init__(self, thread: LoopThread, connector: Connector, loop: asyncio.AbstractEventLoop) -> None:
        self._thread, self._connector, self._loop = thread, connector, loop
        # The thread's own, and how others end it; None until they are needed, and after they were lost.
        self._db: Any = None
        self._cord: Cord | None = None

    async def run(self, statements: tuple[Statement, ...]) -> list[Row]:
        """What `Server.run` gives, tried once."""
        return await self.do(lambda db: self._connector.carry_out(db, statements))

    async def run_together(self, works: Sequence[tuple[Statement, ...]]) -> list[list[Row]]:
        """What `run` gives of each of ``works``, which are one transaction."""
        return await self.do(lambda db: self._connector.carry_out_together(db, works))

    async def do(self, use: Callable[[Any], _T]) -> _T:
        """What ``use`` makes of the connection."""
        return await self._loop.run_in_executor(self._thread, self._do, use)

    def _do(self, use: Callable[[Any], _T]) -> _T:
        if self._db is None:
            self._db = self._connector.connect()
            self._cord = Cord(self._db)
        try:
            self._connector.keep_time(self._db)
            return use(self._db)
        except BaseException as error:
            told = self._connector.told(self._db, error)
            if isinstance(told, Unreachable):
                self._drop()
            if told is error:
                raise
            raise told from error

    async def close(self) -> None:
        """Give up the connection, and end the thread; one that hears nothing ends by itself, soon."""
        dropping = self._loop.run_in_executor(self._thread, self._drop)
        try:
            await asyncio.wait([dropping], timeout=FAREWELL)
            self.cut()
            # It hears that at once, unless it is about to connect.
            await asyncio.wait([dropping], timeout=FAREWELL)
        finally:
            self.cut()
            self._thread.shutdown(wait=dropping.done())

    def cut(self) -> None:
        """Have the thread wait no more for an answer."""
        if (cord := self._cord) is not None:
            cord.pull()

    def _drop(self) -> None:
        (db, self._db), (cord, self._cord) = (self._db, None), (self._cord, None)
        if db is not None:
            db.close()
        if cord is not None:
            cord.close()

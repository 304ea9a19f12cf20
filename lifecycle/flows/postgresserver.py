"""`Server`: a PostgreSQL server, asked through a few connections; one that is lost is replaced.

What goes to the server in one piece is one transaction. Where its answer was lost, with the connection or with the
server, nobody knows whether it was carried out: then the server is asked for a trace of it before it is sent again.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from lifecycle.backoff import Backoff
from lifecycle.errors import JournalError
from lifecycle.flows.postgreslines import AnswerLost, Line, Unreachable
from lifecycle.journal.threads import LoopThread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from typing import TypeVar

    _T = TypeVar("_T")

__all__ = ["FAREWELL", "Ask", "Cord", "Row", "Server", "ask"]

#: What comes back, a column after the other.
Row = tuple[Any, ...]

#: Seconds that a server may be away before who asks is told so.
PATIENCE = 30.0
_PAUSE = Backoff(initial=0.02, maximum=1.0, multiplier=2.0, jitter=0.5)
#: Seconds that the end waits for a server which says nothing.
FAREWELL = 1.0


class Ask(NamedTuple):
    """A statement, and what is filled in."""

    text: bytes
    values: Mapping[str, Any]


def ask(text: str, **values: Any) -> Ask:
    """A statement whose ``%(name)s`` are ``values``."""
    return Ask(text.encode(), values)


class Server:
    """The server at ``url``, asked by at most ``connections`` at a time; to be opened."""

    def __init__(self, url: str, connections: int) -> None:
        if connections < 1:
            raise ValueError(f"connections={connections!r} cannot reach a server; give 1 or more")
        self._line = Line(url)
        self._most = connections
        self._loop: asyncio.AbstractEventLoop | None = None
        # Those that nobody uses, the one that was used last is the last; and all that were made.
        self._idle: list[_Hand] = []
        self._hands: list[_Hand] = []
        self._free = asyncio.Semaphore(connections)

    def __repr__(self) -> str:
        return repr(self._line)

    def time(self) -> float:
        """What the server's clock says, in seconds since the epoch, whatever is done to that of this machine."""
        return time.monotonic() + self._line.ahead

    async def open(self, prepare: Callable[[Any], None]) -> None:
        """Connect, and have ``prepare`` called with the first connection.

        Raises:
            JournalError: where the server cannot be reached, lets us not in, or is too old.
        """
        self._loop, self._free = asyncio.get_running_loop(), asyncio.Semaphore(self._most)
        try:
            await self.borrow(prepare)
        except BaseException as error:
            await self.close()
            if isinstance(error, Unreachable):
                raise JournalError(str(error)) from error
            raise

    async def close(self) -> None:
        """Let go of the server, after what was begun has ended; one that says nothing is not waited for."""
        self._loop, hands = None, self._hands
        self._hands, self._idle = [], []
        await asyncio.gather(*[hand.close() for hand in hands])

    async def borrow(self, use: Callable[[Any], _T]) -> _T:
        """What ``use`` makes of a connection, in a thread, tried once.

        Raises:
            Unreachable: where there is none to be had, or it was lost.
        """
        async with self._lent() as hand:
            return await hand.do(use)

    @asynccontextmanager
    async def _lent(self) -> AsyncGenerator[_Hand, None]:
        async with self._free:
            hand = self._take()
            try:
                yield hand
            except asyncio.CancelledError:
                # Nobody waits for the answer: the connection may be dead, and others need not wait for it either.
                hand.cut()
                self._idle.insert(0, hand)
                raise
            except BaseException:
                self._idle.append(hand)
                raise
            self._idle.append(hand)

    async def dial(self, introduce: Callable[[Any], _T]) -> tuple[Any, _T]:
        """A connection for who needs one of his own, and what ``introduce`` made of it.

        Raises:
            Unreachable: where there is none to be had.
        """
        # Whoever takes it out, the thread or the loop, closes what nobody waits for.
        made: list[Any] = []
        unwanted = threading.Event()

        def dial(_: Any) -> tuple[Any, _T]:
            db = self._line.connect()
            try:
                result = introduce(db)
            except BaseException as error:
                told = self._line.told(db, error)
                db.close()
                raise told from error
            made.append(db)
            if unwanted.is_set():
                _close(made)
            return db, result

        try:
            return await self.borrow(dial)
        except asyncio.CancelledError:
            unwanted.set()
            _close(made)
            raise

    async def run(self, *asks: Ask, done: Ask | None = None) -> list[Row]:
        """The rows that the last of ``asks`` gives, once all of them are committed together.

        ``done`` gives the same rows where they were carried out before; without it, to do them twice is to do them
        once. A server that is away is waited for.

        Raises:
            JournalError: where it is away for long, or cannot do what it is asked.
        """
        async with self._lent() as hand:
            return await self._see_through(hand, asks, done)

    async def _see_through(self, hand: _Hand, asks: tuple[Ask, ...], done: Ask | None) -> list[Row]:
        doubtful, end, tries = False, time.monotonic() + PATIENCE, 0
        while True:
            try:
                if doubtful and done is not None and (rows := await hand.ask((done,))):
                    return rows
                rows = await hand.ask(asks)
                if rows or not doubtful or done is None:
                    return rows
                # What was under way when the answer was lost may have come first.
                return await hand.ask((done,))
            except Unreachable as error:
                doubtful = doubtful or isinstance(error, AnswerLost)
                if self._loop is None or time.monotonic() > end:
                    raise JournalError(f"{error}; it was waited for, {PATIENCE:g} s") from error
            await asyncio.sleep(_PAUSE.delay(tries))
            tries += 1

    def _take(self) -> _Hand:
        if self._loop is None:
            raise JournalError(f"{self!r} is not open; enter what uses it")
        if not self._idle:
            hand = _Hand(LoopThread(f"{self!r}", self._loop), self._line, self._loop)
            self._hands.append(hand)
            self._idle.append(hand)
        return self._idle.pop()


def _close(made: list[Any]) -> None:
    with suppress(IndexError):
        made.pop().close()


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


class _Hand:
    """A thread with a connection."""

    def __init__(self, thread: LoopThread, line: Line, loop: asyncio.AbstractEventLoop) -> None:
        self._thread, self._line, self._loop = thread, line, loop
        # The thread's own, and how others end it; None until they are needed, and after they were lost.
        self._db: Any = None
        self._cord: Cord | None = None

    async def ask(self, asks: tuple[Ask, ...]) -> list[Row]:
        """What `Server.run` gives, tried once."""
        return await self.do(lambda db: self._line.carry_out(db, asks))

    async def do(self, use: Callable[[Any], _T]) -> _T:
        """What ``use`` makes of the connection."""
        return await self._loop.run_in_executor(self._thread, self._do, use)

    def _do(self, use: Callable[[Any], _T]) -> _T:
        if self._db is None:
            self._db = self._line.connect()
            self._cord = Cord(self._db)
        try:
            self._line.keep_time(self._db)
            return use(self._db)
        except BaseException as error:
            told = self._line.told(self._db, error)
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

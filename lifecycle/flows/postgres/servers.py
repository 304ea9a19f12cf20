"""`Server`: a PostgreSQL server, asked through a few connections, each in a thread; one that is lost is replaced.

What goes to the server in one piece is one transaction. Where its answer was lost, with the connection or with the
server, nobody knows whether it was carried out: then the server is asked for a trace of it before it is sent again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from lifecycle.backoff import Backoff
from lifecycle.errors import JournalError
from lifecycle.flows.postgres.connections import Connection
from lifecycle.flows.postgres.connectors import AnswerLost, Connector, Unreachable
from lifecycle.journal.threads import LoopThread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from typing import TypeVar

    from lifecycle.flows.postgres.connectors import Row, Statement

    _T = TypeVar("_T")

__all__ = ["Server"]

#: Seconds that a server may be away before who asks is told so.
PATIENCE = 30.0
#: Groups that are sent at the same time, and requests of one group.
_SENDERS, _GROUP = 2, 64
_PAUSE = Backoff(initial=0.02, maximum=1.0, multiplier=2.0, jitter=0.5)


class _Request:
    """Statements that somebody waits for."""

    __slots__ = ("answer", "done", "group", "sender", "statements")

    def __init__(
        self, statements: tuple[Statement, ...], done: Statement | None, answer: asyncio.Future[list[Row]]
    ) -> None:
        self.statements, self.done, self.answer = statements, done, answer
        # What it was sent along with, and the task that does so.
        self.group: list[_Request] = []
        self.sender: asyncio.Task[None] | None = None


class Server:
    """The server at ``url``, asked by at most ``connections`` at a time; to be opened."""

    def __init__(self, url: str, connections: int) -> None:
        if connections < 1:
            raise ValueError(f"connections={connections!r} cannot reach a server; give 1 or more")
        self._connector = Connector(url)
        self._most = connections
        self._loop: asyncio.AbstractEventLoop | None = None
        # Those that nobody uses, the one that was used last is the last; and all that were made.
        self._idle: list[Connection] = []
        self._connections: list[Connection] = []
        self._free = asyncio.Semaphore(connections)
        # What waits to be sent, and those who send it; what comes meanwhile goes along with the next.
        self._waiting: deque[_Request] = deque()
        self._sending: set[asyncio.Task[None]] = set()
        self._soon = False

    def __repr__(self) -> str:
        return repr(self._connector)

    def time(self) -> float:
        """Seconds since the epoch, by the clock that all have in common who have the store open."""
        return self._connector.time()

    async def read_clock(self) -> None:
        """Agree with the others on the time.

        Raises:
            JournalError: if the server is gone again.
        """
        try:
            await self.borrow(self._connector.read_clock)
        except Unreachable as error:
            raise JournalError(str(error)) from None

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
                raise JournalError(str(error)) from None
            raise

    async def close(self) -> None:
        """Let go of the server, after what was begun has ended; one that says nothing is not waited for."""
        self._loop, connections = None, self._connections
        self._connections, self._idle = [], []
        await asyncio.gather(*[connection.close() for connection in connections])
        for each in self._waiting:
            if not each.answer.done():
                each.answer.set_exception(JournalError(f"{self!r} is not open; enter what uses it"))
        self._waiting.clear()
        if self._sending:
            await asyncio.wait(self._sending)

    async def borrow(self, use: Callable[[Any], _T]) -> _T:
        """What ``use`` makes of a connection, in a thread, tried once.

        Raises:
            Unreachable: where there is none to be had, or it was lost.
        """
        async with self._lent() as connection:
            return await connection.do(use)

    @asynccontextmanager
    async def _lent(self) -> AsyncGenerator[Connection, None]:
        async with self._free:
            connection = self._take()
            try:
                yield connection
            except asyncio.CancelledError:
                # Nobody waits for the answer: the connection may be dead, and others need not wait for it either.
                connection.cut()
                self._idle.insert(0, connection)
                raise
            except BaseException:
                self._idle.append(connection)
                raise
            self._idle.append(connection)

    async def dial(self, introduce: Callable[[Any], _T]) -> tuple[Any, _T]:
        """A connection for who needs one of his own, and what ``introduce`` made of it.

        Raises:
            Unreachable: where there is none to be had.
        """
        # Whoever takes it out, the thread or the loop, closes what nobody waits for.
        made: list[Any] = []
        unwanted = threading.Event()

        def dial(_: Any) -> tuple[Any, _T]:
            db = self._connector.connect()
            try:
                result = introduce(db)
            except BaseException as error:
                told = self._connector.told(db, error)
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

    async def run(self, *statements: Statement, done: Statement | None = None) -> list[Row]:
        """The rows that the last of ``statements`` gives, once all of them are committed together.

        ``done`` gives the same rows where they were carried out before; without it, to do them twice is to do them
        once. A server that is away is waited for.

        Raises:
            JournalError: where it is away for long, or cannot do what it is asked.
        """
        if self._loop is None:
            raise JournalError(f"{self!r} is not open; enter what uses it")
        request = _Request(statements, done, self._loop.create_future())
        self._waiting.append(request)
        self._send_soon()
        try:
            return await request.answer
        except asyncio.CancelledError:
            if request.sender is not None and all(each.answer.cancelled() for each in request.group):
                # Nobody waits for the answer.
                request.sender.cancel()
            raise

    # -- in groups -------------------------------------------------------------------------------------------------

    def _send_soon(self) -> None:
        """Send what waits at the end of this turn of the loop, so that what comes in the same turn goes along."""
        if self._waiting and not self._soon and len(self._sending) < _SENDERS and self._loop is not None:
            self._soon = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._soon = False
        group = [self._waiting.popleft() for _ in range(min(_GROUP, len(self._waiting)))]
        group = [each for each in group if not each.answer.cancelled()]
        if group:
            task = asyncio.create_task(self._carry_out(group), name=f"ask {self!r}")
            for each in group:
                each.sender, each.group = task, group
            self._sending.add(task)
            task.add_done_callback(self._sent)
        self._send_soon()

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._send_soon()

    async def _carry_out(self, group: list[_Request]) -> None:
        """Have all of ``group`` answered: in one transaction, or, where that fails, each in its own."""
        try:
            doubtful = False
            if len(group) > 1:
                doubtful = await self._carry_out_together(group)
            await asyncio.gather(*[self._answer(each, doubtful=doubtful) for each in group if not each.answer.done()])
        finally:
            for each in group:
                each.answer.cancel()

    async def _carry_out_together(self, group: list[_Request]) -> bool:
        """Try it once; whether it is not known if it was carried out."""
        try:
            async with self._lent() as connection:
                answers = await connection.run_together([each.statements for each in group])
        except AnswerLost:
            return True
        except Exception:  # noqa: BLE001  # each of them meets its own error alone
            return False
        for each, rows in zip(group, answers, strict=True):
            if not each.answer.done():
                each.answer.set_result(rows)
        return False

    async def _answer(self, request: _Request, *, doubtful: bool) -> None:
        try:
            async with self._lent() as connection:
                rows = await self._see_through(connection, request.statements, request.done, doubtful=doubtful)
        except Exception as error:  # noqa: BLE001  # whoever asked gets it
            if not request.answer.done():
                request.answer.set_exception(error)
        else:
            if not request.answer.done():
                request.answer.set_result(rows)

    async def _see_through(
        self, connection: Connection, statements: tuple[Statement, ...], done: Statement | None, *, doubtful: bool
    ) -> list[Row]:
        end, tries = time.monotonic() + PATIENCE, 0
        while True:
            try:
                if doubtful and done is not None and (rows := await connection.run((done,))):
                    return rows
                rows = await connection.run(statements)
                if rows or not doubtful or done is None:
                    return rows
                # What was under way when the answer was lost may have come first.
                return await connection.run((done,))
            except Unreachable as error:
                doubtful = doubtful or isinstance(error, AnswerLost)
                if self._loop is None or time.monotonic() > end:
                    raise JournalError(f"{error}; it was waited for, {PATIENCE:g} s") from None
            await asyncio.sleep(_PAUSE.delay(tries))
            tries += 1

    def _take(self) -> Connection:
        if self._loop is None:
            raise JournalError(f"{self!r} is not open; enter what uses it")
        if not self._idle:
            connection = Connection(LoopThread(f"{self!r}", self._loop), self._connector, self._loop)
            self._connections.append(connection)
            self._idle.append(connection)
        return self._idle.pop()


def _close(made: list[Any]) -> None:
    with suppress(IndexError):
        made.pop().close()

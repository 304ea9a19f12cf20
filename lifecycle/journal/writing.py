"""`Journal`: functions that run inside transactions, in a thread that writes for all.

While one transaction is being committed, those who come meanwhile wait, and go into the next one together: one wait
for the disk serves all of them.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from lifecycle.errors import JournalError
from lifecycle.journal.databases import Database
from lifecycle.journal.threads import LoopThread, settle

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from lifecycle.journal.databases import Outcome, Work
    from lifecycle.journal.schemas import Schema

__all__ = ["Journal"]

_T = TypeVar("_T")

#: Works that may wait; those who bring more wait outside.
_ROOM = 1024

#: Seconds after which it is looked whether the file is still in place, even if nothing is written.
_LOOK = 5.0

#: Works in one transaction.
_GROUP = 256

#: Seconds that a commit takes on a disk so slow that it is worth waiting for those who may come along with the next;
#: and for which part of that time.
_SLOW, _PART = 0.004, 0.25


class Journal:
    """A SQLite file that many tasks write and read as if each were alone.

    ``await journal.run(fn)`` calls ``fn(connection)`` in the journal's own thread inside a transaction, and returns
    what it returned once that is committed. Those who wait at the same time are committed together; an error of one
    is its own and loses nothing of the others. Works are done in the order in which they were handed in.

    ``await journal.read(fn)`` does the same for what only reads, next to the writes and not in their order.

    With ``durable`` a commit survives a power failure; without, only the end of this process, whatever its cause, and
    after a power failure the last commits may be missing, never torn. ``path`` may be ``":memory:"``. The tables of
    ``schemas`` are brought up to date when the journal opens.

    Several processes may have the same file open: SQLite lets one write at a time, and the others wait up to 5 s. A
    journal belongs to the loop and the process that entered it; a fork of that cannot use it.

    The file is put into SQLite's WAL mode, so it has two more beside it while it is open, and must be on a local disk.
    """

    def __init__(self, path: str | os.PathLike[str], *schemas: Schema, durable: bool = True) -> None:
        self.path: str = os.fspath(path)
        self._database = Database(self.path, schemas, durable=durable)
        self._thread: LoopThread | None = None
        # The thread for reads, from the first read on.
        self._reader: LoopThread | None = None
        self._pid = 0
        # Who waits for the next transaction.
        self._waiting: deque[tuple[Work, asyncio.Future[Any]]] = deque()
        # Whether the thread is at work; there is at most one job, and who comes meanwhile is in the next.
        self._busy = False
        # On a slow disk: how many may come for the next transaction, and until when (by the loop) it waits for them.
        self._crowd, self._gather_until = 0, 0.0
        self._gathering: asyncio.TimerHandle | None = None
        # Set while it closes; done when it has.
        self._closing: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Journal {self.path}: {'closed' if self._thread is None else 'open'}>"

    async def __aenter__(self) -> Self:
        """Open the file.

        Raises:
            JournalError: when it cannot be opened or written, is no database, or is of a newer version.
        """
        if self._thread is not None:
            raise JournalError(f"the journal {self.path} is open already; share it, or make another")
        loop = asyncio.get_running_loop()
        thread = LoopThread(f"journal {self.path}", loop)
        try:
            await loop.run_in_executor(thread, self._database.open)
        except BaseException:
            # Also where the wait was cancelled: the thread closes what it opens, and ends.
            thread.submit(self._database.close)
            thread.shutdown(wait=False)
            raise
        self._thread, self._pid, self._closing, self._loop = thread, os.getpid(), None, loop
        self._crowd, self._gather_until = 0, 0.0
        # How many more may wait.
        self._room = asyncio.Semaphore(_ROOM)
        self._looking = loop.call_later(_LOOK, self._look)
        return self

    def _look(self) -> None:
        """Have the thread look whether the file is still in place; it says so if not."""
        if self._thread is None or self._closing is not None:
            return
        self._looking = self._loop.call_later(_LOOK, self._look)
        self._loop.run_in_executor(self._thread, self._database.check)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Carry out what was handed in, and close; cancelled, it closes all the same."""
        self._looking.cancel()
        if self._closing is None:
            self._closing = self._loop.create_future()
            self._go_on()
        await asyncio.shield(self._closing)

    async def run(self, fn: Callable[[sqlite3.Connection], _T]) -> _T:
        """What ``fn`` returns, once what it wrote is committed; what it raises comes out, and it has written nothing.

        ``fn`` must do nothing but use the connection, and return values rather than cursors: it runs in another
        thread, holds up every other work, and is called again where its transaction was lost through another's.
        It must neither begin nor end a transaction; savepoints are its own affair.

        Cancelled while it waits, it is not carried out; once begun it is, wholly, although nobody hears of it.

        Raises:
            JournalError: when the journal is closed, or the file is full, locked, damaged or not to be written; the
                next call may find it in order. Once the file was deleted or replaced, no call does.
        """
        self._check()
        await self._room.acquire()
        try:
            self._check()
        except JournalError:
            self._room.release()
            raise
        outcome: asyncio.Future[_T] = self._loop.create_future()
        self._waiting.append((fn, outcome))
        if not self._busy and len(self._waiting) in (1, self._crowd):
            # Not at once: who comes in the same turn of the loop comes along.
            self._loop.call_soon(self._go_on)
        return await outcome

    def time(self) -> float:
        """Seconds since the epoch by the `SteadyClock` of the file."""
        return self._database.clock.time()

    async def read(self, fn: Callable[[sqlite3.Connection], _T]) -> _T:
        """What ``fn`` returns, which must only read: what was committed before this was called, at one moment.

        Reads have a connection and a thread of their own, so that they neither wait for writers nor hold them up. Like
        `run`, ``fn`` must do nothing but use the connection, and return values rather than cursors.

        Raises:
            JournalError: when the journal is closed, or the file cannot be read.
        """
        self._check()
        if not self._database.can_be_read:
            return await self.run(fn)
        if self._reader is None:
            self._reader = LoopThread(f"reader of {self.path}", self._loop)
        return await self._loop.run_in_executor(self._reader, self._database.read, fn)

    def _check(self) -> None:
        if self._thread is None or self._closing is not None:
            raise JournalError(f"the journal {self.path} is not open; enter it: async with journal")
        if os.getpid() != self._pid:
            raise JournalError(f"the journal {self.path} was opened before this process was forked; open another")

    def _go_on(self) -> None:
        """Give the thread its next job, if it has none."""
        if self._busy or self._thread is None:
            return
        if self._waiting:
            if not self._gathers():
                self._commit_next()
        elif self._reader is not None and self._closing is not None:
            stopped = self._loop.run_in_executor(self._reader, self._database.stop_reading)
            stopped.add_done_callback(self._stopped_reading)
            self._busy = True
        elif self._closing is not None:
            self._loop.run_in_executor(self._thread, self._database.close).add_done_callback(self._closed)
            self._busy = True

    def _commit_next(self) -> None:
        """Let those go who wait, as many as go into a transaction."""
        group = [self._waiting.popleft() for _ in range(min(_GROUP, len(self._waiting)))]
        kept = [(work, future) for work, future in group if not future.cancelled()]
        began = self._loop.time()

        def committed(job: asyncio.Future[list[Outcome]]) -> None:
            self._expect(len(group), self._loop.time() - began)
            self._committed(len(group), [each for _, each in kept], job)

        works = [work for work, _ in kept]
        self._loop.run_in_executor(self._thread, self._database.carry_out, works).add_done_callback(committed)
        self._busy = True

    def _expect(self, served: int, duration: float) -> None:
        """Those who were served just now may come again, beside those who wait already."""
        worthwhile = served > 1 and duration >= _SLOW
        self._crowd = served + len(self._waiting)
        self._gather_until = self._loop.time() + duration * _PART if worthwhile else 0.0

    def _gathers(self) -> bool:
        """Whether the next transaction still waits for others to come along."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        left = self._gather_until - self._loop.time()
        if left <= 0 or len(self._waiting) >= self._crowd or self._closing is not None:
            return False
        self._gathering = self._loop.call_later(left, self._go_on)
        return True

    def _committed(self, places: int, futures: list[asyncio.Future[Any]], job: asyncio.Future[list[Outcome]]) -> None:
        self._busy = False
        # First of all the next job: the disk is what everybody waits for.
        self._go_on()
        failure = job.exception()
        outcomes = [(None, failure)] * len(futures) if failure is not None else job.result()
        for future, outcome in zip(futures, outcomes, strict=True):
            settle(future, outcome)
        for _ in range(places):
            self._room.release()

    def _stopped_reading(self, _: object) -> None:
        self._busy = False
        reader, self._reader = self._reader, None
        assert reader is not None
        reader.shutdown()
        self._go_on()

    def _closed(self, job: asyncio.Future[None]) -> None:
        self._busy = False
        thread, closing, self._thread = self._thread, self._closing, None
        assert thread is not None
        assert closing is not None
        # It has nothing left to do, so that this waits for no more than its last instruction.
        thread.shutdown()
        settle(closing, (None, job.exception()))

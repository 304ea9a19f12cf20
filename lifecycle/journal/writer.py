"""`Journal`: functions that run inside transactions, in one writer thread, with group commit.

Functions that arrive while a transaction is being committed run together in the next one. They share one wait for the
disk.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from lifecycle._async import shield
from lifecycle.errors import JournalError
from lifecycle.journal.database import Database
from lifecycle.journal.threads import LoopThread, settle

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from lifecycle.journal.database import Outcome, Schema, Work

__all__ = ["Journal"]

_T = TypeVar("_T")

#: Maximum number of waiting functions; further callers wait for capacity.
_CAPACITY = 1024

#: Seconds between two checks that the file still exists, even if nothing is written.
_CHECK_EVERY = 5.0

#: Maximum number of functions in one transaction.
_GROUP = 256

#: Seconds per commit from which waiting for further functions before the next commit pays, and the fraction of that
#: time to wait.
_SLOW, _PART = 0.004, 0.25


class Journal:
    """A SQLite file that many tasks can read and write in isolation.

    ``await journal.run(fn)`` calls ``fn(connection)`` in the journal's own thread inside a transaction, and returns its
    result once the transaction is committed. Functions that wait at the same time are committed together, but an error
    in one does not affect the others. They run in the order of the calls.

    ``await journal.read(fn)`` does the same for functions that only read, in parallel with the writes and not in their
    order.

    With ``durable``, a commit survives a power failure. Without it, a commit survives only the end of this process,
    whatever the cause. A power failure can then lose the last commits, but never a part of one. ``path`` may be
    ``":memory:"``. The tables of ``schemas`` are migrated when the journal opens.

    Several processes may open the same file: SQLite lets one write at a time, and the others wait up to 5 s. A journal
    belongs to the loop and the process that entered it; a fork of that process cannot use it.

    The file is in SQLite's WAL mode: it must be on a local disk, and two more files exist next to it while it is open.
    """

    def __init__(self, path: str | os.PathLike[str], *schemas: Schema, durable: bool = True) -> None:
        self.path: str = os.fspath(path)
        self._database = Database(self.path, schemas, durable=durable)
        self._thread: LoopThread | None = None
        # The thread for reads, started by the first read.
        self._reader: LoopThread | None = None
        self._pid = 0
        # The functions for the next transaction.
        self._waiting: deque[tuple[Work, asyncio.Future[Any]]] = deque()
        # Whether the thread is busy; it has at most one job at a time.
        self._busy = False
        # On a slow disk, the number of functions expected for the next transaction, and the time until which it waits
        # for them.
        self._expected, self._gather_until = 0, 0.0
        self._gathering: asyncio.TimerHandle | None = None
        # Set when closing begins, and done when closing has ended.
        self._closing: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Journal {self.path}: {'closed' if self._thread is None else 'open'}>"

    async def __aenter__(self) -> Self:
        """Open the file.

        Raises:
            JournalError: if the file cannot be opened or written, is not a database, or has a newer version.
        """
        if self._thread is not None:
            raise JournalError(f"the journal {self.path} is already open; share it, or create another")
        loop = asyncio.get_running_loop()
        thread = LoopThread(f"journal {self.path}", loop)
        try:
            await loop.run_in_executor(thread, self._database.open)
        except BaseException:
            # If the wait was cancelled, the thread still closes the file that it has opened, and ends.
            thread.submit(self._database.close)
            thread.shutdown(wait=False)
            raise
        self._thread, self._pid, self._closing, self._loop = thread, os.getpid(), None, loop
        self._expected, self._gather_until = 0, 0.0
        self._capacity = asyncio.Semaphore(_CAPACITY)
        self._checking = loop.call_later(_CHECK_EVERY, self._check_file)
        return self

    def _check_file(self) -> None:
        """Check in the thread that the file still exists; the check logs an error if not."""
        if self._thread is None or self._closing is not None:
            return
        self._checking = self._loop.call_later(_CHECK_EVERY, self._check_file)
        self._loop.run_in_executor(self._thread, self._database.check)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Run the waiting functions and close the file. A cancellation is raised afterwards."""
        self._checking.cancel()
        if self._closing is None:
            self._closing = self._loop.create_future()
            self._go_on()
        await shield(self._closing)

    async def run(self, fn: Callable[[sqlite3.Connection], _T]) -> _T:
        """Return the result of ``fn`` once its writes are committed; if ``fn`` raises, nothing is written.

        ``fn`` must only use the connection, and return values rather than cursors. It runs in another thread and blocks
        all other functions. It is called again if another function ends the transaction that they share. ``fn`` must
        not begin or end a transaction itself, but it can use savepoints.

        A call that is cancelled while it waits does not run; once it has begun, it runs to its end.

        Raises:
            JournalError: if the journal is closed, or the file is full, locked, damaged or not writable. The next call
                may succeed, unless the file was deleted or replaced.
        """
        self._check()
        await self._capacity.acquire()
        try:
            self._check()
        except JournalError:
            self._capacity.release()
            raise
        outcome: asyncio.Future[_T] = self._loop.create_future()
        self._waiting.append((fn, outcome))
        if not self._busy and len(self._waiting) in (1, self._expected):
            # The delay lets other calls of the same loop iteration join the transaction.
            self._loop.call_soon(self._go_on)
        return await outcome

    def time(self) -> float:
        """Return seconds since the epoch by the `SteadyClock` of the file."""
        return self._database.clock.time()

    async def read(self, fn: Callable[[sqlite3.Connection], _T]) -> _T:
        """Return the result of ``fn``, which must only read: it sees one snapshot, with everything committed before.

        Reads have their own connection and thread, so they neither wait for writers nor block them. As for `run`,
        ``fn`` must only use the connection, and return values rather than cursors.

        Raises:
            JournalError: if the journal is closed, or the file cannot be read.
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
        """Give the thread its next job, if it is idle."""
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
        """Run as many of the waiting functions as fit into a transaction."""
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
        """Estimate the next transaction: the callers of this one may call again, in addition to those that wait."""
        worthwhile = served > 1 and duration >= _SLOW
        self._expected = served + len(self._waiting)
        self._gather_until = self._loop.time() + duration * _PART if worthwhile else 0.0

    def _gathers(self) -> bool:
        """Return whether the next transaction still waits for further functions."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        left = self._gather_until - self._loop.time()
        if left <= 0 or len(self._waiting) >= self._expected or self._closing is not None:
            return False
        self._gathering = self._loop.call_later(left, self._go_on)
        return True

    def _committed(self, places: int, futures: list[asyncio.Future[Any]], job: asyncio.Future[list[Outcome]]) -> None:
        self._busy = False
        # The next job starts before results are passed on, because all callers wait for the disk.
        self._go_on()
        failure = job.exception()
        outcomes = [(None, failure)] * len(futures) if failure is not None else job.result()
        for future, outcome in zip(futures, outcomes, strict=True):
            settle(future, outcome)
        for _ in range(places):
            self._capacity.release()

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
        # The thread has no jobs left, so this does not wait for long.
        thread.shutdown()
        settle(closing, (None, job.exception()))

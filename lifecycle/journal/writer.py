"""`Journal`: runs functions inside transactions in a single writer thread, with group commit.

Functions that arrive while a transaction is being committed run together in the next one, so that they wait for the
disk only once.
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

#: The maximum number of queued functions. Any further callers wait until there is space.
_CAPACITY = 1024

#: Seconds between checks that the file still exists while nothing is being written.
_CHECK_EVERY = 5.0

#: The maximum number of functions in one transaction.
_GROUP = 256

#: If a commit takes at least this many seconds, the next commit waits for further functions.
_SLOW = 0.004
#: How long to wait for further functions, as a fraction of the last commit's duration.
_PART = 0.25


class Journal:
    """An SQLite file that many tasks can read and write in isolation from each other.

    ``await journal.run(fn)`` calls ``fn(connection)`` inside a transaction in the journal's own thread. It returns the
    result once the transaction has been committed. Functions run in the order in which they were submitted. Functions
    that are queued at the same time are committed together, but an error in one of them does not affect the others.

    ``await journal.read(fn)`` does the same for read-only functions, which run in parallel with writes and in no
    particular order.

    If ``durable`` is true, commits survive a power failure. Otherwise, commits survive if this process is killed, but a
    power failure can lose the last ones. A commit is either kept or lost as a whole. ``path`` may be ``":memory:"``.
    The tables in ``schemas`` are created or migrated when the journal opens.

    Several processes may open the same file. Only one of them can write at a time, and the others wait for up to 5 s. A
    journal belongs to the loop and the process that entered it, so forked processes cannot use it.

    The file uses SQLite's WAL mode, so it must be on a local disk. While it is open, SQLite keeps two more files next
    to it.
    """

    def __init__(self, path: str | os.PathLike[str], *schemas: Schema, durable: bool = True) -> None:
        self.path: str = os.fspath(path)
        self._database = Database(self.path, schemas, durable=durable)
        self._thread: LoopThread | None = None
        # The thread for reads, which is started by the first read.
        self._reader: LoopThread | None = None
        self._pid = 0
        # The functions for the next transaction.
        self._waiting: deque[tuple[Work, asyncio.Future[Any]]] = deque()
        # True while the thread has a job. The thread has at most one job at a time.
        self._busy = False
        # How many functions we expect in the next transaction.
        self._expected = 0
        # How long, in loop time, the next transaction waits for these functions on a slow disk.
        self._gather_until = 0.0
        # The timer that ends the wait.
        self._gathering: asyncio.TimerHandle | None = None
        # None until closing begins, then a future that is done once closing has finished.
        self._closing: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Journal {self.path}: {'closed' if self._thread is None else 'open'}>"

    async def __aenter__(self) -> Self:
        """Open the file.

        Raises:
            JournalError: if the file cannot be opened or written to, is not a database, or was created by a newer
                version.
        """
        if self._thread is not None:
            raise JournalError(f"the journal {self.path} is already open; share it, or create a separate one")
        loop = asyncio.get_running_loop()
        thread = LoopThread(f"journal {self.path}", loop)
        try:
            await loop.run_in_executor(thread, self._database.open)
        except BaseException:
            # Even if the wait was cancelled, the thread closes the file that it has opened, and then stops.
            thread.submit(self._database.close)
            thread.shutdown(wait=False)
            raise
        self._thread, self._pid, self._closing, self._loop = thread, os.getpid(), None, loop
        self._expected, self._gather_until = 0, 0.0
        self._capacity = asyncio.Semaphore(_CAPACITY)
        self._checking = loop.call_later(_CHECK_EVERY, self._check_file)
        return self

    def _check_file(self) -> None:
        """Have the thread check that the file still exists, and log an error if it does not."""
        if self._thread is None or self._closing is not None:
            return
        self._checking = self._loop.call_later(_CHECK_EVERY, self._check_file)
        self._loop.run_in_executor(self._thread, self._database.check)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Run the queued functions, and close the file.

        If this is cancelled, it finishes before it raises `CancelledError`.
        """
        self._checking.cancel()
        if self._closing is None:
            self._closing = self._loop.create_future()
            self._go_on()
        await shield(self._closing)

    async def run(self, fn: Callable[[sqlite3.Connection], _T]) -> _T:
        """Call ``fn``, commit its writes, and return its result. If ``fn`` raises an error, nothing is written.

        ``fn`` runs in a different thread and blocks all other functions. It must only use the connection, and must
        return values rather than cursors. It must not begin or end a transaction, but it can use savepoints. If a
        transaction that several functions share fails, ``fn`` is called again.

        If the call is cancelled before ``fn`` has started, ``fn`` does not run. Once it has started, it runs to
        completion.

        Raises:
            JournalError: if the journal is closed, if the disk is full, or if the file is locked, damaged or not
                writable. The next call may succeed, unless the file was deleted or replaced.
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
            # Waiting lets other calls in the same loop iteration join the transaction.
            self._loop.call_soon(self._go_on)
        return await outcome

    def time(self) -> float:
        """Return the time in seconds since the epoch, by the file's `SteadyClock`."""
        return self._database.clock.time()

    async def read(self, fn: Callable[[sqlite3.Connection], _T]) -> _T:
        """Call the read-only function ``fn`` on a snapshot that includes all earlier commits, and return its result.

        Reads have their own connection and thread, so they neither wait for writers nor block them. As with `run`,
        ``fn`` must only use the connection, and must return values rather than cursors.

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
            raise JournalError(
                f"the journal {self.path} was opened before this process was forked; open a separate one"
            )

    def _go_on(self) -> None:
        """If the thread is idle, start its next job."""
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
        """Run queued functions, up to the limit for one transaction."""
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
        """Estimate the next transaction's size, assuming that the callers of the last one call again."""
        worthwhile = served > 1 and duration >= _SLOW
        self._expected = served + len(self._waiting)
        self._gather_until = self._loop.time() + duration * _PART if worthwhile else 0.0

    def _gathers(self) -> bool:
        """Return True if the next transaction is still waiting for further functions."""
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
        # The next job's callers are waiting for the disk, so start it before passing on the results.
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
        # The thread has no jobs left, so this returns quickly.
        thread.shutdown()
        settle(closing, (None, job.exception()))

"""The file behind an event log: one JSON object per line, rotated by size and written in a thread."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lifecycle._async import start_task
from lifecycle.journal.threads import LoopThread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lifecycle.observe.eventlog.recorder import Record

__all__ = ["LineFile", "Writer"]

_log = logging.getLogger("lifecycle.observe")

#: The maximum number of entries waiting to be written. If the disk cannot keep up, the oldest ones are lost.
_WAITING = 10_000
#: The maximum number of entries written at a time.
_BATCH = 1000
#: How many seconds closing the log may take to write the remaining entries.
_CLOSING = 2.0


class LineFile:
    """A file to which lines are appended. It is rotated before a line would make it larger than ``max_bytes``.

    At most ``backups`` older files are kept; ``path.1`` is the newest. The files are readable only by their owner.
    """

    def __init__(self, path: Path, max_bytes: int, backups: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._backups = backups
        self._fd: int | None = None
        # The file's size; None unless it is a regular file. A pipe, for example, has no size.
        self._size: int | None = None
        # True if the last line is incomplete because a write was interrupted.
        self._torn = False
        #: The number of lines written.
        self.written: int = 0

    def open(self) -> None:
        """Open the file for appending.

        Raises:
            OSError: if the file cannot be opened for writing.
        """
        # O_NONBLOCK prevents us from hanging on a pipe that has no reader. Opening it fails immediately instead.
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0), 0o600)
        status = os.fstat(self._fd)
        self._size = status.st_size if stat.S_ISREG(status.st_mode) else None
        self._torn = bool(self._size) and _last_byte(self.path) != b"\n"

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def write(self, lines: Iterable[bytes]) -> None:
        """Append ``lines``, each of which must include its line ending.

        Raises:
            OSError: if a line cannot be written. `written` includes the lines written before it.
        """
        gathered: list[bytes] = []
        length = 0
        for line in lines:
            if self._size is not None and 0 < self._size + length > self._max_bytes - len(line):
                self._append(gathered)
                self._rotate()
                gathered, length = [], 0
            gathered.append(line)
            length += len(line)
        self._append(gathered)

    def _append(self, lines: list[bytes]) -> None:
        if not lines:
            return
        if self._fd is None:
            self.open()
        assert self._fd is not None, "it was just opened"
        left = b"\n" * self._torn + b"".join(lines)
        self._torn = True
        while left:
            done = os.write(self._fd, left)
            left = left[done:]
            self._size = None if self._size is None else self._size + done
        self._torn = False
        self.written += len(lines)

    def _rotate(self) -> None:
        self.close()
        if self._backups:
            names = [self.path, *(Path(f"{self.path}.{number}") for number in range(1, self._backups + 1))]
            for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
                with suppress(FileNotFoundError):
                    newer.replace(older)
        else:
            self.path.unlink(missing_ok=True)
        self._torn = False
        self.open()


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1)


class Writer:
    """Writes finished events to a file in a thread.

    A slow disk therefore delays neither the event loop nor the program's exit. Events that cannot be written in time
    are lost and counted. Only the first loss is logged.
    """

    def __init__(self, file: LineFile) -> None:
        """Open the file and start the thread.

        Raises:
            OSError: if the file cannot be opened for writing.
        """
        self._file = file
        self._waiting: deque[Record] = deque()
        self._arrived = asyncio.Event()
        self._closing = False
        # The number of entries that are being written right now.
        self._writing = 0
        #: The number of events that could not be written.
        self.lost: int = 0
        self._logged = False
        file.open()
        self._loop = asyncio.get_running_loop()
        self._thread = LoopThread(f"event log {file.path}", self._loop)
        self._task = start_task(self._write(), name=f"event log {file.path}")

    async def aclose(self) -> None:
        """Write as many of the remaining entries as the time limit allows, and close the file."""
        self._closing = True
        self._arrived.set()
        try:
            await asyncio.wait({self._task}, timeout=_CLOSING)
        finally:
            in_time = self._task.done()
            if not in_time:
                self._lose(len(self._waiting) + self._writing, "the disk is too slow")
                self._thread.submit(self._file.close)
                self._task.cancel()
                await asyncio.wait({self._task})
            self._thread.shutdown(wait=in_time)

    def put(self, record: Record) -> None:
        """Queue the finished ``record``."""
        if len(self._waiting) >= _WAITING:
            self._waiting.popleft()
            self._lose(1, "the disk is too slow")
        self._waiting.append(record)
        self._arrived.set()

    async def _write(self) -> None:
        while not self._closing or self._waiting:
            await self._arrived.wait()
            if not self._closing:
                self._arrived.clear()
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _BATCH))]
            before, self._writing = self._file.written, len(batch)
            try:
                await self._loop.run_in_executor(self._thread, self._keep, batch)
            except OSError as error:
                self._lose(len(batch) - (self._file.written - before), str(error))
            self._writing = 0
        await self._loop.run_in_executor(self._thread, self._file.close)

    def _keep(self, batch: list[Record]) -> None:
        self._file.write(_line(record) for record in batch)

    def _lose(self, count: int, why: str) -> None:
        self.lost += count
        if count and not self._logged:
            self._logged = True
            _log.error("events are missing from %s: %s; the program continues (logged once)", self._file.path, why)


def _line(record: Record) -> bytes:
    return json.dumps(record.entry().to_dict(), separators=(",", ":")).encode() + b"\n"

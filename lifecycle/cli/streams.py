"""Standard output and standard error for commands that must keep running while nothing reads their output.

A terminal or a pipe blocks a write while it is full: after Ctrl+S, in `less`, or if the reader is stopped. `up` and
`watch` therefore write in a thread. The text waits in a bounded queue, which drops its oldest lines when it is full.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["Output", "settle", "threaded_output"]

#: The maximum number of bytes in a queue.
_LIMIT: Final = 1024 * 1024
#: Bytes per write.
_PIECE: Final = 16 * 1024
#: The time, in seconds, to wait for space in a full queue. If there is none, the reader has stopped reading.
_PATIENCE: Final = 0.1
#: The time, in seconds, to write the rest of the output once a stop was requested.
_LAST: Final = 1.0


class Output:
    """Standard output and standard error, each written in a thread."""

    def __init__(self) -> None:
        self._writers: dict[tuple[int, int], _Writer] = {}
        #: True if a stop was requested, so that the exit does not wait until the output has been read.
        self.is_stopped: bool = False

    def stream(self, stream: TextIO | None, note: Callable[[int], str], on_gone: Callable[[], object]) -> TextIO | None:
        """Return a stream that writes to ``stream`` in a thread, or ``stream`` itself if a write cannot block."""
        try:
            assert stream is not None
            stream.flush()
            status = os.fstat(fd := stream.fileno())
        except (AssertionError, OSError, ValueError):  # there is no descriptor
            return stream
        if stat.S_ISREG(status.st_mode):
            return stream
        # Text on the same terminal or pipe must stay in order, so its streams share a thread.
        identity = status.st_dev, status.st_ino
        if identity not in self._writers:
            self._writers[identity] = _Writer(fd, note, on_gone)
        return cast("TextIO", _Stream(stream, self._writers[identity]))

    def settle(self) -> None:
        """Wait briefly until all text has been written."""
        for writer in self._writers.values():
            writer.settle()

    def close(self) -> None:
        """Write the rest. If a stop was requested, give up after a second. Ctrl+C gives up at once."""
        with suppress(KeyboardInterrupt):
            for writer in self._writers.values():
                writer.close(_LAST if self.is_stopped else None)


@contextmanager
def threaded_output(
    note: Callable[[int], str], on_reader_gone: Callable[[], object] = lambda: None
) -> Generator[Output]:
    """Within the block, write the text for `sys.stdout` and `sys.stderr` in a thread.

    Args:
        note: returns the text to print in place of a number of lines that were dropped.
        on_reader_gone: called, in the thread, when the reader has closed standard output.
    """
    global _current  # noqa: PLW0603  # a process has one standard output
    output, before = Output(), (sys.stdout, sys.stderr)
    sys.stdout = cast("TextIO", output.stream(sys.stdout, note, on_reader_gone))
    sys.stderr = cast("TextIO", output.stream(sys.stderr, note, lambda: None))
    outer, _current = _current, output
    try:
        yield output
    finally:
        _current = outer
        sys.stdout, sys.stderr = before
        output.close()


_current: Output | None = None


def settle() -> None:
    """Wait briefly until the text so far has been written, because a child process is about to use the terminal."""
    if _current is not None:
        _current.settle()


class _Stream:
    """A text file that queues everything written to it."""

    def __init__(self, file: TextIO, writer: _Writer) -> None:
        self._file = file
        self._writer = writer

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the file, apart from the buffer, which would write past the queue."""
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        """Queue ``text``.

        Raises:
            OSError: if an earlier write has failed, usually because the reader has closed the stream.
            UnicodeEncodeError: if the encoding has no such character.
        """
        self._writer.add(text.encode(self._file.encoding, self._file.errors or "strict"))
        return len(text)

    def flush(self) -> None:
        """Do nothing, because the thread writes the text at once."""


class _Writer:
    """Writes to the descriptor ``fd`` in a thread.

    If the queue is full, `add` waits briefly. If there is still no space, the reader has stopped reading. From then on,
    the oldest lines are dropped, until everything in the queue has been written.
    """

    def __init__(self, fd: int, note: Callable[[int], str], on_gone: Callable[[], object]) -> None:
        self._fd = fd
        self._note = note
        self._on_gone = on_gone
        # The lock is reentrant, because a signal handler may print while its thread holds the lock.
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._size = 0
        # The number of lines that were dropped.
        self._dropped = 0
        self._is_stalled = False
        # True while the thread has nothing to write.
        self._is_idle = False
        self._is_closing = False
        # The error that `add` has to raise, and whether the reader has closed the stream.
        self._error: OSError | None = None
        self._is_gone = False
        # A blocked write must not keep the process from exiting.
        self._thread = threading.Thread(target=self._run, name=f"output to descriptor {fd}", daemon=True)
        self._thread.start()

    def add(self, data: bytes) -> None:
        """Queue ``data``. Once a write has failed, raise its OSError, and discard later data."""
        with self._changed:
            error, self._error = self._error, None
            if error is not None:
                raise error
            if self._is_gone:
                return
            if not self._has_space(data) and not self._is_stalled:
                self._is_stalled = not self._changed.wait_for(lambda: self._has_space(data), _PATIENCE)
            self._queue.append(data)
            self._size += len(data)
            while self._size > _LIMIT and len(self._queue) > 1:
                oldest = self._queue.popleft()
                self._size -= len(oldest)
                self._dropped += oldest.count(b"\n")
            self._changed.notify_all()

    def _has_space(self, data: bytes) -> bool:
        return not self._queue or self._size + len(data) <= _LIMIT

    def settle(self) -> None:
        """Wait briefly until everything has been written."""
        with self._changed:
            if not self._is_stalled:
                self._changed.wait_for(lambda: self._is_idle and not self._queue, _PATIENCE)

    def close(self, limit: float | None) -> None:
        """Write the rest, for at most ``limit`` seconds."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(limit)

    def _run(self) -> None:
        try:
            while (data := self._take()) is not None:
                for at in range(0, len(data), _PIECE):
                    self._write(data[at : at + _PIECE])
        except OSError as error:
            self._fail(error)

    def _take(self) -> bytes | None:
        """Wait for data, and return all of it. Returns None after `close`."""
        with self._changed:
            self._is_stalled = False
            self._is_idle = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._queue or self._is_closing)
            self._is_idle = False
            if not self._queue:
                return None
            dropped, self._dropped = self._dropped, 0
            data = b"".join(self._queue)
            self._queue.clear()
            self._size = 0
            self._changed.notify_all()
        return self._note(dropped).encode() + data if dropped else data

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                # Another program has set the terminal that we share to non-blocking mode.
                select.select((), (self._fd,), ())

    def _fail(self, error: OSError) -> None:
        with self._changed:
            self._error = error
            self._is_gone = self._is_idle = True
            self._queue.clear()
            self._size = 0
            self._changed.notify_all()
        # The program may not be running yet, or no longer.
        with suppress(LookupError):
            self._on_gone()

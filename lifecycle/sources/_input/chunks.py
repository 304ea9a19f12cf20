"""Reading a file without blocking the loop, whatever it is: terminal, pipe, socket, file on disk, object in memory.

The traps: ``O_NONBLOCK`` belongs to the open file, which a terminal's shell and its other children share, so it is
never set on what we were given; epoll refuses files on disk; and a thread that sits in a read holds the process back
at its exit, unless it is a daemon and holds no lock of Python's own file objects.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import select
import stat
import sys
import threading
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Chunks", "Stream", "is_terminal", "open_chunks"]

_log = logging.getLogger("lifecycle.sources")

#: A text or binary file.
Stream: TypeAlias = IO[str] | IO[bytes]

#: Bytes that are read at once.
_CHUNK = 65_536


class Chunks(Protocol):
    """Reads what there is."""

    async def read(self) -> bytes:
        """What has come, at least one byte; nothing at the end. When cancelled, nothing has been read."""
        ...

    def read_nowait(self) -> bytes:
        """What has come by now, which may be nothing."""
        ...

    def close(self) -> None:
        """Let go of the file, which stays open for others."""
        ...


def is_terminal(stream: Stream | None) -> bool:
    """Whether a person may be typing there."""
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError):  # closed
        return False


def open_chunks(stream: Stream | None) -> Chunks:
    """The way to read ``stream`` without blocking; None stands for stdin, which may be missing.

    Bytes that Python's file object has already read ahead are not seen.
    """
    stream = sys.stdin if stream is None else stream  # pyright: ignore[reportUnnecessaryComparison]
    if stream is None or getattr(stream, "closed", False):
        return _Inline(lambda: b"")
    try:
        fd = stream.fileno()
    except (OSError, AttributeError):  # io.UnsupportedOperation is an OSError
        in_memory = isinstance(stream, io.StringIO | io.BytesIO)
        return _Inline(lambda: stream.read(_CHUNK)) if in_memory else _Threaded(lambda: stream.readline(_CHUNK))
    return _open_descriptor(fd)


def _open_descriptor(fd: int) -> Chunks:
    try:
        kind = os.fstat(fd).st_mode
    except OSError:  # it was closed below Python
        return _Inline(lambda: b"")
    if stat.S_ISREG(kind):
        return _Inline(lambda: os.read(fd, _CHUNK))
    own = _own(fd, kind)
    loop = asyncio.get_running_loop()
    try:
        loop.add_reader(own, lambda: None)
    except (OSError, NotImplementedError):
        return _Threaded(lambda: os.read(own, _CHUNK), lambda: os.close(own))
    loop.remove_reader(own)
    return _Ready(own)


def _own(fd: int, kind: int) -> int:
    """A descriptor of our own, where possible of an opening of our own, so that no read of ours can ever wait."""
    if stat.S_ISFIFO(kind) or os.isatty(fd):
        with suppress(OSError):
            return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    return os.dup(fd)


class _Ready:
    """Read when the system says that there is something."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()

    async def read(self) -> bytes:
        while True:
            await self._readable()
            with suppress(BlockingIOError, InterruptedError):  # somebody else was faster
                return self._read()

    def read_nowait(self) -> bytes:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        with suppress(BlockingIOError, InterruptedError):
            return self._read() if poll.poll(0) else b""
        return b""

    def close(self) -> None:
        os.close(self._fd)

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, _CHUNK)
        except (BlockingIOError, InterruptedError):
            raise
        except OSError as error:  # a terminal that was hung up, a peer that reset the connection
            _warn(error)
            return b""

    async def _readable(self) -> None:
        """Wait until a read would not; the loop looks only while somebody wants to know."""
        ready = self._loop.create_future()
        self._loop.add_reader(self._fd, _settle, ready)
        try:
            await ready
        finally:
            self._loop.remove_reader(self._fd)


class _Inline:
    """Read where we are: a file on disk or in memory does not wait for anybody."""

    def __init__(self, read: Callable[[], str | bytes]) -> None:
        self._read = read

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        return _as_bytes(self._read())

    def read_nowait(self) -> bytes:
        return b""

    def close(self) -> None:
        pass


class _Threaded:
    """Read in a thread that nobody waits for, one chunk each time somebody wants one.

    A thread that sits in a read when it is closed stays there until that returns.
    """

    def __init__(self, read: Callable[[], str | bytes], close: Callable[[], None] = lambda: None) -> None:
        self._read, self._close_file = read, close
        self._loop = asyncio.get_running_loop()
        self._wanted = threading.Semaphore(0)
        self._closed = False
        self._waiting: asyncio.Future[bytes] | None = None
        self._thread = threading.Thread(target=self._work, name="lifecycle input", daemon=True)

    async def read(self) -> bytes:
        if self._waiting is None:
            if not self._thread.ident:
                self._thread.start()
            self._waiting = self._loop.create_future()
            self._wanted.release()
        # Cancelled, the read goes on: the next call gets what it brings.
        chunk = await asyncio.shield(self._waiting)
        self._waiting = None
        return chunk

    def read_nowait(self) -> bytes:
        waiting = self._waiting
        return waiting.result() if waiting is not None and waiting.done() else b""

    def close(self) -> None:
        self._closed = True
        self._wanted.release()
        if not self._thread.ident:
            self._close_file()
        elif self._waiting is not None:
            self._waiting.cancel()

    def _work(self) -> None:
        more = True
        while more:
            self._wanted.acquire()
            if self._closed:
                break
            outcome = self._outcome()
            more = isinstance(outcome, bytes) and outcome != b""
            with suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                self._loop.call_soon_threadsafe(self._bring, outcome)
        self._close_file()

    def _outcome(self) -> bytes | Exception:
        try:
            return _as_bytes(self._read())
        except OSError as error:
            _warn(error)
            return b""
        except ValueError as error:
            _log.debug("the input was closed while it was read: %s", error)
            return b""
        except Exception as error:  # noqa: BLE001  # whoever waits is told
            return error

    def _bring(self, outcome: bytes | Exception) -> None:
        waiting = self._waiting
        if waiting is None or waiting.done():
            return
        if isinstance(outcome, Exception):
            waiting.set_exception(outcome)
        else:
            waiting.set_result(outcome)


def _warn(error: OSError) -> None:
    _log.warning("reading the input failed, so it ends here and lines may be missing: %s", error)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _as_bytes(chunk: str | bytes) -> bytes:
    return chunk.encode("utf-8", "replace") if isinstance(chunk, str) else chunk

r"""A pseudo-terminal for a child, for programs that check whether they are running in a terminal.

The child leads a new session, with the pseudo-terminal as its controlling terminal. Colours, ``/dev/tty``, the window
size and job control work as they do in a real terminal. Output is passed on as bytes, because full-screen programs do
not write lines::

    terminal = Terminal(sys.stdout.buffer.write, rows=24, columns=80)
    worker = ProcessWorker("app", "python", "app.py", stdio=terminal)
    ...
    terminal.resize(*os.get_terminal_size()[::-1])   # on SIGWINCH
    await terminal.write(b"\x03")                    # Ctrl+C, as typed
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import termios
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lifecycle.workers.stdio import DRAIN, Lines, Reader, Tail, find_program

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.workers.stdio import Command

__all__ = ["Terminal"]

_log = logging.getLogger("lifecycle.workers")
#: Signals that Python ignores. We reset these signals so that the child does not also ignore them.
_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)


class Terminal:
    """A pseudo-terminal for one process.

    ``output`` is called in the event loop with the bytes that the process writes, as they arrive. If it raises an
    exception, the exception is logged. If it is slow, it slows down the process.
    """

    def __init__(self, output: Callable[[bytes], object], *, rows: int = 24, columns: int = 80) -> None:
        self._output = output
        self._size = (rows, columns)
        self._has_failed = False
        self._tail = Tail()
        self._listener: Callable[[str], object] | None = None
        self._lines = Lines()
        # Our side of the terminal while the process is running. The reader owns this descriptor.
        self._ours: int | None = None
        self._reader: Reader | None = None
        # Only one caller may write at a time. Otherwise, bytes from different callers would be mixed up. Also, the loop
        # allows only one callback per descriptor.
        self._writing = asyncio.Lock()
        self._room: asyncio.Future[None] | None = None

    def resize(self, rows: int, columns: int) -> None:
        """Set the terminal's size. If the process is running, it receives SIGWINCH."""
        self._size = (rows, columns)
        if self._ours is not None:
            termios.tcsetwinsize(self._ours, self._size)

    async def write(self, data: bytes) -> None:
        """Write ``data`` as terminal input. Wait while the process is not reading.

        If the process has not started yet or has exited, the data is discarded.
        """
        async with self._writing:
            while data and self._ours is not None:
                try:
                    data = data[os.write(self._ours, data) :]
                except BlockingIOError:
                    await self._wait_for_room(self._ours)
                except OSError:
                    return  # the process has closed the terminal

    def listen(self, listener: Callable[[str], object]) -> None:
        """Also call ``listener`` with each line, from the start of the process."""
        self._listener = listener

    # -- as a Stdio -----------------------------------------------------------------------------------------------

    def spawn(self, command: Command) -> int:
        """Start the process as the leader of a session on this terminal."""
        ours, theirs = os.openpty()
        try:
            termios.tcsetwinsize(ours, self._size)
            pid = _spawn(command, os.ttyname(theirs))
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._ours, self._reader = ours, Reader(ours, self._take)
        return pid

    async def drain(self) -> None:
        """Read the rest of the output."""
        if self._reader is not None:
            await self._reader.drain(asyncio.get_running_loop().time() + DRAIN)

    def close(self) -> None:
        """Stop reading, and wake any callers blocked on a write."""
        if self._reader is not None:
            self._reader.close()

    def tail(self) -> str:
        """Return the last part of the output. On a terminal, stderr is not separate."""
        return str(self._tail)

    def _take(self, data: bytes) -> None:
        if self._listener is not None:
            for line in self._lines.feed(data) if data else self._lines.flush():
                self._listener(line)
        if not data:
            self._hang_up()
            return
        self._tail.feed(data)
        try:
            self._output(data)
        except Exception:  # noqa: BLE001  # logged
            if not self._has_failed:
                _log.exception(
                    "the output function %r failed, so %d bytes were lost (logged only once)", self._output, len(data)
                )
            self._has_failed = True

    def _hang_up(self) -> None:
        """Forget the descriptor before the reader closes it, because its number may be reused after that."""
        if self._room is not None and self._ours is not None:
            asyncio.get_running_loop().remove_writer(self._ours)
            self._room.cancel()
        self._ours = None

    async def _wait_for_room(self, fd: int) -> None:
        loop = asyncio.get_running_loop()
        self._room = loop.create_future()
        loop.add_writer(fd, _resolve, self._room)
        try:
            await asyncio.wait({self._room})
        finally:
            if self._ours is not None:
                loop.remove_writer(fd)
            self._room = None


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _spawn(command: Command, terminal: str) -> int:
    """Start ``command`` as the leader of a new session with ``terminal``.

    The first terminal that a session leader opens becomes its controlling terminal, so the child must open it after
    calling setsid. Unlike Popen, posix_spawn can do this, and it is just as fast. However, it cannot change the working
    directory, so we use ``env -C`` for that.
    """
    argv = list(command.argv)
    if command.cwd is not None:
        if not os.access(command.cwd, os.X_OK) or not Path(command.cwd).is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), command.cwd)
        find_program(argv[0], command)
        argv = ["env", "-C", command.cwd, "--", *argv]
    return os.posix_spawn(
        find_program(argv[0], command),
        argv,
        dict(command.env),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, terminal, os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, 0, 1),
            (os.POSIX_SPAWN_DUP2, 0, 2),
            *((os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable() if fd not in command.inherit),
            # Duplicating a descriptor onto itself makes it inheritable.
            *((os.POSIX_SPAWN_DUP2, fd, fd) for fd in command.inherit),
        ],
        setsid=True,
        setsigdef=_IGNORED_BY_PYTHON,
    )


def _inheritable() -> list[int]:
    """Return the descriptors, other than the standard streams, that a child would inherit."""
    found: list[int] = []
    for entry in os.listdir("/dev/fd"):  # noqa: PTH208  # only names are needed
        fd = int(entry)
        try:
            if fd > 2 and os.get_inheritable(fd):  # noqa: PLR2004  # above stderr
                found.append(fd)
        except OSError:
            continue  # listdir() has closed its own descriptor
    return found

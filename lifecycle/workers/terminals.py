r"""A terminal of the child's own: a `Stdio` for programs that check whether they have one.

The child leads a new session with this controlling terminal: colours, ``/dev/tty``, window size and job
control work as in a real one. Its output is passed on as bytes, since a screen is not made of lines::

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
#: Python ignores these, and a child would inherit that.
_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)


class Terminal:
    """A pseudo-terminal for one process.

    ``output`` gets what the process writes, as it comes; it is called in the loop, and if it raises, that is logged.
    A reader that is slow holds the process back.
    """

    def __init__(self, output: Callable[[bytes], object], *, rows: int = 24, columns: int = 80) -> None:
        self._output = output
        self._size = (rows, columns)
        self._has_failed = False
        self._tail = Tail()
        self._listener: Callable[[str], object] | None = None
        self._lines = Lines()
        # Our side of it, and its reader, while the process lives. The reader owns the descriptor.
        self._ours: int | None = None
        self._reader: Reader | None = None
        # One writer at a time: the bytes of two must not mix, and a descriptor has one callback.
        self._writing = asyncio.Lock()
        self._room: asyncio.Future[None] | None = None

    def resize(self, rows: int, columns: int) -> None:
        """Set the size; a process that runs gets SIGWINCH."""
        self._size = (rows, columns)
        if self._ours is not None:
            termios.tcsetwinsize(self._ours, self._size)

    async def write(self, data: bytes) -> None:
        """Type ``data`` into it; waits while the process does not read.

        Data for a process that has not started, or has ended, is lost.
        """
        async with self._writing:
            while data and self._ours is not None:
                try:
                    data = data[os.write(self._ours, data) :]
                except BlockingIOError:
                    await self._wait_for_room(self._ours)
                except OSError:
                    return  # the process has hung up

    def listen(self, listener: Callable[[str], object]) -> None:
        """Call ``listener`` with each line, too, from the start on."""
        self._listener = listener

    # -- as a Stdio -----------------------------------------------------------------------------------------------

    def spawn(self, command: Command) -> int:
        """Start it as the leader of a session on this terminal."""
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
        """Read on to the end."""
        if self._reader is not None:
            await self._reader.drain(asyncio.get_running_loop().time() + DRAIN)

    def close(self) -> None:
        """Stop reading, and release callers that write."""
        if self._reader is not None:
            self._reader.close()

    def tail(self) -> str:
        """Return the end of all output: on a terminal, errors are not separate."""
        return str(self._tail)

    def _take(self, data: bytes) -> None:
        if not data:
            self._hang_up()
            return
        self._tail.feed(data)
        if self._listener is not None:
            for line in self._lines.feed(data):
                self._listener(line)
        try:
            self._output(data)
        except Exception:  # noqa: BLE001  # logged
            if not self._has_failed:
                _log.exception("%r cannot take output; %d bytes are lost (logged once)", self._output, len(data))
            self._has_failed = True

    def _hang_up(self) -> None:
        """Drop the descriptor, which the reader is about to close: its number may be reused then."""
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

    The first terminal that a session's leader opens becomes the session's own. Popen can open nothing in the child;
    posix_spawn can, after setsid, at the same price. It cannot change the directory, which ``env -C`` does.
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
            # To itself: it is inherited from then on.
            *((os.POSIX_SPAWN_DUP2, fd, fd) for fd in command.inherit),
        ],
        setsid=True,
        setsigdef=_IGNORED_BY_PYTHON,
    )


def _inheritable() -> list[int]:
    """Return the descriptors that a child would inherit besides the standard streams."""
    found: list[int] = []
    for entry in os.listdir("/dev/fd"):  # noqa: PTH208  # names are all that is wanted
        fd = int(entry)
        try:
            if fd > 2 and os.get_inheritable(fd):  # noqa: PLR2004  # above stderr
                found.append(fd)
        except OSError:
            continue  # the descriptor of the listing itself
    return found

"""`ControlSocket`: where a running program can be asked and told over HTTP, by its own user and nobody else."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
from contextlib import AsyncExitStack, contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from lifecycle._net import SocketFile, clear, has_ended
from lifecycle._util import program_name
from lifecycle.observe.console import Console
from lifecycle.observe.sockets import addressed, check_directory, directory, reserve
from lifecycle.runtime.mains import Auxiliary

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path
    from socket import socket

__all__ = ["ControlSocket"]

_log = logging.getLogger("lifecycle.observe")

#: Bytes of a name: the address of a socket has about a hundred, with what is added to it.
_LONGEST = 64

#: That of a process, in the name of a socket.
_NUMBER = re.compile("[1-9][0-9]{0,8}", re.ASCII)


class ControlSocket(Auxiliary):
    """Lets ``lifecycle ctl`` ask and steer this program, for as long as it lives; a main for `run`, best the first.

    It answers HTTP at the Unix socket ``NAME.sock`` in ``$XDG_RUNTIME_DIR/lifecycle``, else in
    ``$RUNTIME_DIRECTORY/lifecycle``, else in ``/tmp/lifecycle-UID``: a directory of mode 0700 with a socket of mode
    0600, and a client must be our own user or root. If another user owns the directory in ``/tmp``, a warning is logged
    and ``~/.local/state/lifecycle`` is used. ``name`` is
    that of the program where none is given: its file or module. Where another program that lives has it, the number
    of the process is added. What a program that was killed left behind is replaced, and removed where it
    had a number.

    As a main it is up before the next one starts, and the last to stop; a program whose other mains have ended does
    not go on for its sake. Without a place for the socket it logs a warning, and the program runs without it.
    ``async with`` opens it inside a lifetime; it raises `OSError` where a main warns, and `LookupError` outside of one.

    Raises:
        ValueError: for a name that no file could have.
    """

    _taken: ClassVar[str] = "listens already; make another for another name"

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        #: What it is found by; a number may be added to it when it opens.
        self.name: str = _tidy(program_name()) if name is None else _checked(name)
        self._wanted = self.name
        self._path: Path | None = None

    def __repr__(self) -> str:
        return f"<ControlSocket {self.name!r}>"

    @property
    def path(self) -> Path | None:
        """The socket; None while it is closed."""
        return self._path

    async def run(self) -> None:
        """Be open until cancelled; without a socket if there is no place for one."""
        async with AsyncExitStack() as held:
            try:
                await held.enter_async_context(self)
            except OSError as error:
                _log.warning("%s; lifecycle ctl will not find this program", error.strerror or error)
                self._up.set()
                held.callback(self._up.clear)
            await asyncio.Event().wait()

    async def _open(self, held: AsyncExitStack) -> None:
        console = await held.enter_async_context(Console())
        file = self._opened(held)
        held.push_async_callback(_ended, asyncio.create_task(_serve(console, file.socket), name=repr(self)))
        # First of all nobody finds it any more.
        held.callback(file.remove)

    def _opened(self, held: AsyncExitStack) -> SocketFile:
        """The socket under the name that was wanted, or under one with a number."""
        where = _made_directory()
        with _alone(where):
            _sweep(where)
            for name in (self._wanted, f"{self._wanted}-{os.getpid()}"):
                path = where / f"{name}.sock"
                try:
                    # For as long as the socket: its removal needs the address too.
                    file = SocketFile(held.enter_context(addressed(path)))
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:
                        raise
                    taken = error
                else:
                    held.callback(self._forget)
                    held.callback(file.socket.close)
                    self.name, self._path = name, path
                    return file
        raise taken

    def _forget(self) -> None:
        self.name, self._path = self._wanted, None


async def _serve(console: Console, at: socket) -> None:
    """Answer until cancelled; where that fails, the program goes on, and whoever asks is refused."""
    try:
        await _answer(console, at)
    except Exception:  # noqa: BLE001  # whatever it is, the program has other things to do
        _log.exception("the control socket cannot be served; lifecycle ctl does not find this program")
        at.close()


async def _answer(console: Console, at: socket) -> None:
    """Answer, from when somebody first asks: what serves takes longer to import than many a program runs."""
    await _readable(at)
    # In a thread, so that the program goes on meanwhile; the connection waits in the system's queue.
    await asyncio.to_thread(import_module, "lifecycle.observe.http.api")
    from lifecycle.observe.http.api import control_app
    from lifecycle.observe.http.server import serving

    async with serving(control_app(console), console, at):
        await asyncio.Event().wait()


async def _readable(at: socket) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(at, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(at)


async def _ended(serving: asyncio.Task[None]) -> None:
    serving.cancel()
    await asyncio.wait({serving})


def _made_directory() -> Path:
    """The directory for the socket: the usual one, or the one in reserve."""
    where = directory()
    try:
        _make(where)
    except OSError as error:
        spare = reserve()
        if spare is None:
            raise
        with suppress(OSError):
            spare.parent.mkdir(parents=True, exist_ok=True)
            _make(spare)
            _log.warning("%s; using %s", error.strerror, spare)
            return spare
        raise
    return where


def _make(where: Path) -> None:
    """Make the directory, for us alone.

    Raises:
        OSError: saying why it cannot be used, and that XDG_RUNTIME_DIR says where it is.
    """
    try:
        where.mkdir(mode=0o700, exist_ok=True)
        check_directory(where)
    except OSError as error:
        told = f"no control socket in {where}: {error.strerror}; XDG_RUNTIME_DIR may name another directory"
        raise type(error)(error.errno, told) from error


@contextmanager
def _alone(where: Path) -> Generator[None]:
    """No other program looks whether a name is free, or takes one, within the block; those take a moment."""
    import fcntl  # not everywhere

    descriptor = os.open(where, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sweep(where: Path) -> None:
    """Remove what programs left behind that were killed under a name with their number: nobody else takes that."""
    for path in where.glob("*-*.sock"):
        number = path.stem.rpartition("-")[2]
        if _NUMBER.fullmatch(number) and has_ended(int(number)):
            # It stays where somebody listens, as from another namespace, in which the number is another's.
            with suppress(OSError), addressed(path) as address:
                clear(address)


def _checked(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is no name; give text such as 'api'")
    if name != _tidy(name):
        raise ValueError(f"{name!r} cannot name a socket; give printable text without slashes, such as {_tidy(name)!r}")
    return name


def _tidy(name: str) -> str:
    """``name`` as a file may be called, and be typed."""
    plain = "".join(each if each.isprintable() and each != "/" else "_" for each in name).lstrip(".- ")
    return plain.encode()[:_LONGEST].decode(errors="ignore") or "python"

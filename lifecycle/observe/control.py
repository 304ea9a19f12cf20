"""`ControlSocket`: the Unix socket through which `lifecycle ctl` queries and controls a program of the same user."""

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
from lifecycle.observe.sockets import addressed, check_directory, directory, fallback
from lifecycle.runtime.mains import Auxiliary

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path
    from socket import socket

__all__ = ["ControlSocket"]

_log = logging.getLogger("lifecycle.observe")

#: Maximum number of bytes in a name. The whole socket address, with directory and suffix, is limited to about a
#: hundred.
_LONGEST = 64

#: A process id in a socket's file name.
_PID = re.compile("[1-9][0-9]{0,8}", re.ASCII)


class ControlSocket(Auxiliary):
    """Server through which ``lifecycle ctl`` queries and controls this program. Pass it to `run`, preferably first.

    The server accepts HTTP requests on the Unix socket ``NAME.sock`` in the first of these directories that is
    available: ``$XDG_RUNTIME_DIR/lifecycle``, ``$RUNTIME_DIRECTORY/lifecycle``, ``/tmp/lifecycle-UID``. The directory
    has mode 0700 and the socket mode 0600. Only our own user and root may connect. If another user owns the directory
    in ``/tmp``, a warning is logged and ``~/.local/state/lifecycle`` is used.

    ``name`` defaults to the program's name: its file or module. If another running program uses that name, the process
    id is added. If a killed program left a socket with this name, the socket is replaced. Leftover sockets with a
    process id in their names are removed.

    With `run`, the socket opens before the next main starts, and closes last. It does not keep the program running when
    the other mains have ended. If the socket cannot be opened, a warning is logged, and the program runs without it.
    Inside a lifetime, you can use ``async with`` instead. It raises `OSError` if the socket cannot be opened, and
    `LookupError` outside a lifetime.

    Raises:
        ValueError: if ``name`` is not a valid file name.
    """

    _taken: ClassVar[str] = "is already listening; create a second one with a different name"

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        #: The name that clients use. When the socket opens, a process id may be added.
        self.name: str = _tidy(program_name()) if name is None else _checked(name)
        self._wanted = self.name
        self._path: Path | None = None

    def __repr__(self) -> str:
        return f"<ControlSocket {self.name!r}>"

    @property
    def path(self) -> Path | None:
        """The socket's path; None while the socket is closed."""
        return self._path

    async def run(self) -> None:
        """Keep the socket open until cancelled, or run without one if it cannot be opened."""
        async with AsyncExitStack() as held:
            try:
                await held.enter_async_context(self)
            except OSError as error:
                _log.warning("%s; lifecycle ctl cannot find this program", error.strerror or error)
                self._up.set()
                held.callback(self._up.clear)
            await asyncio.Event().wait()

    async def _open(self, held: AsyncExitStack) -> None:
        console = await held.enter_async_context(Console())
        file = self._listen(held)
        held.push_async_callback(_ended, asyncio.create_task(_serve(console, file.socket), name=repr(self)))
        # The file is removed first, so that no new client can connect.
        held.callback(file.remove)

    def _listen(self, held: AsyncExitStack) -> SocketFile:
        """Listen under the requested name, or under that name with the process id."""
        where = _make_directory()
        with _locked(where):
            _remove_stale(where)
            for name in (self._wanted, f"{self._wanted}-{os.getpid()}"):
                path = where / f"{name}.sock"
                try:
                    # This context must outlive the socket, because removing the socket also needs the address.
                    file = SocketFile(held.enter_context(addressed(path)))
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:
                        raise
                    in_use = error
                else:
                    held.callback(self._reset)
                    held.callback(file.socket.close)
                    self.name, self._path = name, path
                    return file
        raise in_use

    def _reset(self) -> None:
        self.name, self._path = self._wanted, None


async def _serve(console: Console, at: socket) -> None:
    """Serve until cancelled. After an error, the program continues, but clients are rejected."""
    try:
        await _answer(console, at)
    except Exception:  # noqa: BLE001  # an error here must not end the program
        _log.exception("the control socket failed; lifecycle ctl will not find this program")
        at.close()


async def _answer(console: Console, at: socket) -> None:
    """Serve the API. The server module is slow to import, so it is imported at the first connection."""
    await _wait_readable(at)
    # The import runs in a thread, so that it does not block the loop. The connection waits in the backlog.
    await asyncio.to_thread(import_module, "lifecycle.observe.http.api")
    from lifecycle.observe.http.api import control_app
    from lifecycle.observe.http.server import serving

    async with serving(control_app(console), console, at):
        await asyncio.Event().wait()


async def _wait_readable(at: socket) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(at, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(at)


async def _ended(serving: asyncio.Task[None]) -> None:
    serving.cancel()
    await asyncio.wait({serving})


def _make_directory() -> Path:
    """Create the directory for the socket, and return it: the usual one, or the fallback."""
    where = directory()
    try:
        _make(where)
    except OSError as error:
        fallback_path = fallback()
        if fallback_path is None:
            raise
        with suppress(OSError):
            fallback_path.parent.mkdir(parents=True, exist_ok=True)
            _make(fallback_path)
            _log.warning("%s; using %s", error.strerror, fallback_path)
            return fallback_path
        raise
    return where


def _make(where: Path) -> None:
    """Create the directory, and allow access to our user only.

    Raises:
        OSError: if the directory cannot be used. The message contains the reason and suggests setting XDG_RUNTIME_DIR.
    """
    try:
        where.mkdir(mode=0o700, exist_ok=True)
        check_directory(where)
    except OSError as error:
        message = f"no control socket in {where}: {error.strerror}; set XDG_RUNTIME_DIR to a different directory"
        raise type(error)(error.errno, message) from error


@contextmanager
def _locked(where: Path) -> Generator[None]:
    """Within the context, prevent other programs from looking for a free name or taking one."""
    import fcntl  # not available on all systems

    descriptor = os.open(where, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_stale(where: Path) -> None:
    """Remove sockets that killed programs left with a pid in their names. No other program would reuse them."""
    for path in where.glob("*-*.sock"):
        pid = path.stem.rpartition("-")[2]
        if _PID.fullmatch(pid) and has_ended(int(pid)):
            # The socket is kept if a process is listening on it, for example in a different pid namespace.
            with suppress(OSError), addressed(path) as address:
                clear(address)


def _checked(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name must be a string such as 'api', got {name!r}")
    if name != _tidy(name):
        raise ValueError(f"{name!r} cannot name a socket; use printable text without slashes, such as {_tidy(name)!r}")
    return name


def _tidy(name: str) -> str:
    """Return ``name`` as a file name that is easy to type."""
    plain = "".join(each if each.isprintable() and each != "/" else "_" for each in name).lstrip(".- ")
    return plain.encode()[:_LONGEST].decode(errors="ignore") or "python"

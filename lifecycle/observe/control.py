"""`ControlSocket`: a Unix socket through which `lifecycle ctl` queries and controls programs run by the same user."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
from contextlib import AsyncExitStack, contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from lifecycle._async import start_task
from lifecycle._net import SocketFile, clear, has_ended
from lifecycle._util import program_name
from lifecycle.observe.auxiliary import Auxiliary
from lifecycle.observe.console import Console
from lifecycle.observe.sockets import addressed, check_directory, directory, fallback

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path
    from socket import socket

__all__ = ["ControlSocket"]

_log = logging.getLogger("lifecycle.observe")

#: The maximum length of a name, in bytes. The whole socket address, including its directory and suffix, is limited to
#: about 100 bytes.
_LONGEST = 64

#: Matches a process id in a socket's file name.
_PID = re.compile("[1-9][0-9]{0,8}", re.ASCII)


class ControlSocket(Auxiliary):
    """A server through which ``lifecycle ctl`` queries and controls this program. Pass it to `run`, preferably first.

    The server accepts HTTP requests on the Unix socket ``NAME.sock`` in the first of these directories that is
    available: ``$XDG_RUNTIME_DIR/lifecycle``, ``$RUNTIME_DIRECTORY/lifecycle``, ``/tmp/lifecycle-UID``. Only the user
    running the program and root can connect: the directory has mode 0700, and the socket has mode 0600. If another user
    owns the directory in ``/tmp``, the server logs a warning and uses ``~/.local/state/lifecycle``.

    ``name`` defaults to the program's file or module name. If another running program already uses that name, the
    server appends the process id. It replaces a socket with the same name that a killed program left behind, and
    removes leftover sockets with a process id in their names.

    When passed to `run`, the server opens before the mains that follow it start, and closes last. It does not keep the
    program running once the other mains have finished. If the socket cannot be opened, the server logs a warning, and
    the program runs without it. Inside a lifetime, you can use ``async with`` instead, which raises `OSError` if the
    socket cannot be opened and `LookupError` outside a lifetime.

    ``console=True`` allows ``lifecycle ctl console``, a Python prompt in the program: everyone who can open the socket
    can then run any code as the program.

    Raises:
        ValueError: if ``name`` is not a valid file name.
    """

    _taken: ClassVar[str] = "is already listening; create a second one with a different name"

    def __init__(self, name: str | None = None, *, console: bool = False) -> None:
        super().__init__()
        #: The name that clients use. A process id may be appended when the socket opens.
        self.name: str = _tidy(program_name()) if name is None else _checked(name)
        self._wanted = self.name
        self._python = console
        self._path: Path | None = None

    def __repr__(self) -> str:
        return f"<ControlSocket {self.name!r}>"

    @property
    def path(self) -> Path | None:
        """The socket's path, or None while the socket is closed."""
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
        serving = _serve(console, file.socket, python=self._python)
        held.push_async_callback(_ended, start_task(serving, name=repr(self)))
        # Remove the file first, so that no new client can connect.
        held.callback(file.remove)

    def _listen(self, held: AsyncExitStack) -> SocketFile:
        """Listen under the requested name or, if it is taken, under the name with the process id appended."""
        where = _make_directory()
        with _locked(where):
            _remove_stale(where)
            for name in (self._wanted, f"{self._wanted}-{os.getpid()}"):
                path = where / f"{name}.sock"
                try:
                    # This context must outlive the socket, because removing the socket also requires its address.
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


async def _serve(console: Console, at: socket, *, python: bool) -> None:
    """Serve until cancelled. If serving fails, the program keeps running, but clients can no longer connect."""
    try:
        await _answer(console, at, python=python)
    except Exception:  # noqa: BLE001  # an error here must not end the program
        _log.exception("the control socket failed; lifecycle ctl can no longer find this program")
        at.close()


async def _answer(console: Console, at: socket, *, python: bool) -> None:
    """Serve the API. We import the server module only when a client connects, because the import is slow."""
    await _wait_readable(at)
    # The import runs in a thread to avoid blocking the loop. Meanwhile, the connection waits in the backlog.
    await asyncio.to_thread(import_module, "lifecycle.observe.http.api")
    from lifecycle.observe.http.api import control_app
    from lifecycle.observe.http.server import serving

    async with serving(control_app(console, python=python), console, at):
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
    """Create and return the directory for the socket: the usual one, or the fallback."""
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
    """Create the directory, accessible only to our user.

    Raises:
        OSError: if the directory cannot be used. The message gives the reason and suggests setting XDG_RUNTIME_DIR.
    """
    try:
        where.mkdir(mode=0o700, exist_ok=True)
        check_directory(where)
    except OSError as error:
        message = f"no control socket in {where}: {error.strerror}; set XDG_RUNTIME_DIR to a different directory"
        raise type(error)(error.errno, message) from error


@contextmanager
def _locked(where: Path) -> Generator[None]:
    """Hold a lock on the directory, so that no other program can choose a socket name at the same time."""
    import fcntl  # not available on all systems

    descriptor = os.open(where, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_stale(where: Path) -> None:
    """Remove leftover sockets with a process id in their names, because no other program would ever reuse them."""
    for path in where.glob("*-*.sock"):
        pid = path.stem.rpartition("-")[2]
        if _PID.fullmatch(pid) and has_ended(int(pid)):
            # Keep the socket if a process is listening on it. The process may be in a different pid namespace.
            with suppress(OSError), addressed(path) as address:
                clear(address)


def _checked(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name must be a string such as 'api', got {name!r}")
    if name != _tidy(name):
        raise ValueError(
            f"{name!r} is not a valid socket name; use printable text without slashes, such as {_tidy(name)!r}"
        )
    return name


def _tidy(name: str) -> str:
    """Turn ``name`` into a file name that is easy to type."""
    plain = "".join(each if each.isprintable() and each != "/" else "_" for each in name).lstrip(".- ")
    return plain.encode()[:_LONGEST].decode(errors="ignore") or "python"

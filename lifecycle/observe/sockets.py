"""The control sockets of running programs. Clients need to start quickly, so this module avoids slow imports.

A socket is in ``$XDG_RUNTIME_DIR/lifecycle`` if that variable is set. Otherwise, it is in
``$RUNTIME_DIRECTORY/lifecycle`` (a variable set by systemd) or in ``/tmp/lifecycle-UID``. Another user could create
that directory in ``/tmp`` first, so the fallback is a directory in the user's home. Each directory must be accessible
only to its owner.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lifecycle._net import is_forsaken, peer

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = ["Program", "addressed", "check_directory", "directory", "fallback", "find"]

_SUFFIX = ".sock"

#: The maximum length of a Unix socket's address, in bytes.
_LONGEST = 107 if hasattr(socket, "SO_PEERCRED") else 103

#: The permission bits for the group and for others.
_OTHERS = 0o077


@dataclass(frozen=True, slots=True)
class Program:
    """A running program with a control socket."""

    name: str
    #: The path of the program's control socket.
    path: Path
    #: The program's process id; None if the system does not report it.
    pid: int | None

    def connect(self, timeout: float | None = None) -> socket.socket:
        """Connect to the program, with ``timeout`` as the time limit in seconds for each operation on the connection.

        Raises:
            OSError: if no process is listening.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout)
            with addressed(self.path) as address:
                connection.connect(address)
        except BaseException:
            connection.close()
            raise
        return connection


def directory() -> Path:
    """Return the directory that contains the sockets of this user's programs."""
    return _configured() or Path(f"/tmp/lifecycle-{os.geteuid()}")  # noqa: S108  # its owner and mode are checked


def fallback() -> Path | None:
    """Return the directory to use if another user owns the usual one, or None if the environment specifies one."""
    if _configured() is not None:
        return None
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    with suppress(RuntimeError):  # the user has no home directory
        state = state if state.is_absolute() else Path.home() / ".local" / "state"
    return state / "lifecycle" if state.is_absolute() else None


def _configured() -> Path | None:
    """Return the directory specified by the environment of the login session or the systemd service."""
    own = os.geteuid()
    # systemd separates multiple directories with colons.
    for runtime in (os.environ.get("XDG_RUNTIME_DIR", ""), *os.environ.get("RUNTIME_DIRECTORY", "").split(":")):
        with suppress(OSError):
            # A process that has switched to a different user may still have the previous user's variables.
            if Path(runtime).is_absolute() and os.stat(runtime).st_uid == own:  # noqa: PTH116  # runtime may be ""
                return Path(runtime, "lifecycle")
    return None


def _directories() -> Iterator[Path]:
    """Yield the directories that may contain sockets of this user's programs."""
    yield directory()
    if (home := fallback()) is not None:
        yield home
        # RUNTIME_DIRECTORY is not set in this process, so we look for the directories of the user's systemd services.
        with suppress(OSError):
            yield from (path for path in Path("/run").glob("*/lifecycle") if path.stat().st_uid == os.geteuid())


def check_directory(path: Path) -> None:
    """Check that a directory is owned by our user and that no other user has access to it.

    Raises:
        PermissionError: if the check fails. The message gives the reason.
        FileNotFoundError: if the directory does not exist.
    """
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(errno.EPERM, "it is not a directory; remove it", str(path))
    if found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"it belongs to another user (uid {found.st_uid})", str(path))
    if found.st_mode & _OTHERS:
        mode = stat.S_IMODE(found.st_mode)
        raise PermissionError(
            errno.EPERM, f"other users have access to it (mode {mode:o}); chmod 700 makes it private", str(path)
        )


def find(name: str | None = None) -> list[Program]:
    """Return the programs that are listening on their control sockets, sorted by name.

    If you pass ``name``, return only the program with that name. If there is none, return the programs called
    ``NAME-PID``, which were started while another program was using the name.
    """
    programs = (each for where in dict.fromkeys(_directories()) for each in _programs(where))
    found = sorted(programs, key=lambda each: each.name)
    if name is None:
        return found
    exact = [each for each in found if each.name == name]
    numbered = re.compile(rf"{re.escape(name)}-\d+")
    return exact[:1] or [each for each in found if numbered.fullmatch(each.name)]


def _programs(where: Path) -> Iterator[Program]:
    try:
        check_directory(where)
        paths = [path for path in where.iterdir() if path.suffix == _SUFFIX]
    except FileNotFoundError:
        return
    except OSError as error:
        import logging  # imported here because it is slow to import and rarely needed

        logging.getLogger("lifecycle.observe").warning("cannot search %s for programs: %s", where, error.strerror)
        return
    for path in paths:
        try:
            with Program(path.stem, path, None).connect(0) as connection:
                if not is_forsaken(connection):
                    yield Program(path.stem, path, getattr(peer(connection), "pid", None))
        except BlockingIOError:  # the program's backlog is full
            yield Program(path.stem, path, None)
        except OSError:  # the program has exited
            continue


@contextmanager
def addressed(path: Path) -> Generator[str]:
    """Yield ``path`` as a socket address. A path that is too long is shortened by opening its directory."""
    if len(os.fsencode(path)) <= _LONGEST or not Path("/proc/self/fd").is_dir():
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)

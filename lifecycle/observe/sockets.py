"""Where the control sockets of programs are, and which programs listen at theirs.

For the side that asks: nothing heavy is imported. A socket lies in ``$XDG_RUNTIME_DIR/lifecycle``, else in
``$RUNTIME_DIRECTORY/lifecycle`` (which systemd sets), else in ``/tmp/lifecycle-UID``. Another user can take the last
name first, so there is a directory below the home of the user in reserve. Other users may use none of them.
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

__all__ = ["Program", "addressed", "check_directory", "directory", "find", "reserve"]

_SUFFIX = ".sock"

#: What the system takes as the address of a Unix socket, in bytes.
_LONGEST = 107 if hasattr(socket, "SO_PEERCRED") else 103

#: What others than the owner may do with the directory: nothing.
_OTHERS = 0o077


@dataclass(frozen=True, slots=True)
class Program:
    """A program that can be asked and told."""

    name: str
    #: Its control socket.
    path: Path
    #: None where the system does not tell.
    pid: int | None

    def connect(self, timeout: float | None = None) -> socket.socket:
        """A connection to it; each operation on it has ``timeout`` seconds.

        Raises:
            OSError: when nobody listens any more.
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
    """Where the sockets of this user's programs are."""
    return _given() or _shared()


def reserve() -> Path | None:
    """Where they are if another user owns that directory, or it cannot be made; None for a directory that was given."""
    if _given() is not None:
        return None
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    with suppress(RuntimeError):  # the user has no home
        state = state if state.is_absolute() else Path.home() / ".local" / "state"
    return state / "lifecycle" if state.is_absolute() else None


def _given() -> Path | None:
    """The directory that the environment names: of the session, or of the service that systemd runs."""
    own = os.geteuid()
    # systemd separates several by colons.
    for runtime in (os.environ.get("XDG_RUNTIME_DIR", ""), *os.environ.get("RUNTIME_DIRECTORY", "").split(":")):
        with suppress(OSError):
            # A process that changed its user may still have the variables of before.
            if Path(runtime).is_absolute() and os.stat(runtime).st_uid == own:  # noqa: PTH116  # it may be ""
                return Path(runtime, "lifecycle")
    return None


def _shared() -> Path:
    return Path(f"/tmp/lifecycle-{os.geteuid()}")  # noqa: S108  # its owner and mode are checked


def _places() -> Iterator[Path]:
    """Where a program of this user may have its socket."""
    yield directory()
    if (spare := reserve()) is not None:
        yield spare
        # Those of services of this user, of which this process does not have the variable.
        with suppress(OSError):
            yield from (path for path in Path("/run").glob("*/lifecycle") if path.stat().st_uid == os.geteuid())


def check_directory(path: Path) -> None:
    """Refuse a directory that others own or may use.

    Raises:
        PermissionError: saying what is wrong with it.
        FileNotFoundError: when there is none.
    """
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(errno.EPERM, "it is no directory; remove it", str(path))
    if found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"it belongs to another user (uid {found.st_uid})", str(path))
    if found.st_mode & _OTHERS:
        mode = stat.S_IMODE(found.st_mode)
        raise PermissionError(errno.EPERM, f"others may use it (mode {mode:o}); chmod 700 makes it private", str(path))


def find(name: str | None = None) -> list[Program]:
    """The programs that listen at their control sockets, sorted by name.

    With ``name``, the one that has it; where none does, those that were started while another had it, whose names
    end in their numbers: ``NAME-PID``.
    """
    programs = (each for place in dict.fromkeys(_places()) for each in _programs(place))
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
        import logging  # as long to import as all else here, and hardly ever needed

        logging.getLogger("lifecycle.observe").warning("%s is not searched for programs: %s", where, error.strerror)
        return
    for path in paths:
        try:
            with Program(path.stem, path, None).connect(0) as connection:
                if not is_forsaken(connection):
                    yield Program(path.stem, path, getattr(peer(connection), "pid", None))
        except BlockingIOError:  # so many ask it that there is a queue
            yield Program(path.stem, path, None)
        except OSError:  # its program has ended
            continue


@contextmanager
def addressed(path: Path) -> Generator[str]:
    """``path`` as an address that the system takes, for a block: one that is too long is reached past its directory."""
    if len(os.fsencode(path)) <= _LONGEST or not Path("/proc/self/fd").is_dir():
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)

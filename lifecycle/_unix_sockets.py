"""Unix sockets: the file that is their address, from its making to its removal, and who is at the other end."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["Peer", "SocketFile", "clear", "has_ended", "is_forsaken", "peer"]

#: Who may wait to be accepted; the system may allow less.
_QUEUE = 4096

#: Whoever may connect may send, so nobody else may.
_MODE = 0o600


class SocketFile:
    """A socket that listens at ``path``, where only our user may connect.

    Raises:
        OSError: saying why the path is not to be had, such as that somebody listens there.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            clear(path)
            self.socket.bind(path)
            # Nobody can connect before it listens.
            os.chmod(path, _MODE)  # noqa: PTH101  # a path of the system's, as bind has it
            self.socket.listen(_QUEUE)
            self._identity = _identity(path)
        except BaseException as error:
            self.socket.close()
            if isinstance(error, OSError):
                raise _explained(error, path) from error
            raise

    def remove(self) -> None:
        """Remove the file, unless another has taken its place; the socket must be open, or its number may be reused."""
        with suppress(OSError):
            if _identity(self._path) == self._identity:
                os.unlink(self._path)  # noqa: PTH108  # as above


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a Unix socket."""

    pid: int
    uid: int


def peer(connection: socket.socket) -> Peer | None:
    """Who is at the other end; None where the system does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return Peer(pid, uid)


def is_forsaken(connection: socket.socket) -> bool:
    """Whether the process that listened has ended: one that it forked holds the socket, and will never answer."""
    listener = peer(connection)
    # One of another namespace has no number here.
    return listener is not None and listener.pid > 0 and has_ended(listener.pid)


def has_ended(pid: int) -> bool:
    """Whether there is no process of that number."""
    try:
        with suppress(PermissionError):  # it lives, as somebody else
            os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def clear(path: str) -> None:
    """Remove the socket of a process that has ended without doing so; nothing where there is none.

    Raises:
        OSError: where somebody listens, or it is no socket.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "there is a file that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        answer = probe.connect_ex(path)
        if answer == 0 and is_forsaken(probe):
            answer = errno.ECONNREFUSED
    if answer in {0, errno.EAGAIN}:
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    if answer != errno.ECONNREFUSED:
        raise OSError(answer, os.strerror(answer))
    os.unlink(path)  # noqa: PTH108  # as above


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _explained(error: OSError, path: str) -> OSError:
    """The same error, for somebody who has to do something about it."""
    number = error.errno or errno.EINVAL
    if number == errno.EADDRINUSE:
        told = f"another program listens at {path}; stop that, or give another path"
    elif number == errno.EEXIST:
        told = f"{path} is there and no socket; remove it, or give another path"
    else:
        told = f"cannot listen at {path}: {error.strerror or error}"
    return OSError(number, told)

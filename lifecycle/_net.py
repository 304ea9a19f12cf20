"""Server addresses (ports, hosts and URLs), and Unix sockets with their files and peers."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote

__all__ = [
    "OwnNames",
    "Peer",
    "SocketFile",
    "check_port",
    "clear",
    "has_ended",
    "is_forsaken",
    "is_local",
    "is_loopback",
    "peer",
    "share_of_descriptors",
    "unix_path",
    "url_of",
]

_LAST_PORT = 65_535
#: The maximum number of connections waiting to be accepted. The system may impose a lower limit.
_QUEUE = 4096

#: The mode of socket files. Any process that connects can send commands, so only our user may connect.
_MODE = 0o600


def check_port(port: int) -> None:
    """Check that ``port`` is between 0 and 65535.

    Raises:
        ValueError: if ``port`` is outside this range.
    """
    if not 0 <= port <= _LAST_PORT:
        raise ValueError(f"port={port!r} is out of range; use 1 to {_LAST_PORT}, or 0 for any free port")


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is ``localhost`` or a loopback address.

    We return False for all other names, because they may resolve to any address.
    """
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    # Python versions differ in how they classify an IPv4 address inside an IPv6 address.
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


#: Matches a host name or address with an optional port. User names, zone IDs and other extra text are rejected.
_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[^\s\[\]:/@%]+))(?::[0-9]{0,5})?", re.IGNORECASE)


class OwnNames:
    """The names by which clients may address a server that listens on ``host``.

    Any other name that resolves to this machine is a sign of DNS rebinding: a web page can then send requests as if the
    server belonged to the page's site. Addresses are safe, because rebinding only affects names. The port is ignored,
    because a tunnel may use any port.
    """

    def __init__(self, host: str) -> None:
        self._on_loopback = is_loopback(host)
        self._names = {"localhost", host.lower()}
        if not self._on_loopback:
            self._names.add(socket.gethostname().lower())

    def include(self, given: str) -> bool:
        """Return whether the ``Host`` header ``given`` refers to the server."""
        found = _HOST.fullmatch(given)
        name = (found["six"] or found["name"]).lower() if found else ""
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._on_loopback


def unix_path(host: str) -> str | None:
    """Return the path in ``unix:/run/app.sock``, or None for any other host.

    Raises:
        ValueError: if the path is not absolute.
    """
    if not host.startswith("unix:"):
        return None
    path = host.removeprefix("unix:")
    if not path.startswith("/") or "\0" in path:
        raise ValueError(f"host={host!r} must contain an absolute path, such as unix:/run/app.sock")
    return path


def is_local(host: str) -> bool:
    """Return whether ``host`` is unreachable from other machines."""
    return unix_path(host) is not None or is_loopback(host)


def url_of(scheme: str, host: str, port: int) -> str:
    """Return the URL of an address, without a trailing slash."""
    if (path := unix_path(host)) is not None:
        return f"{scheme}+unix://{quote(path, safe='')}"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def share_of_descriptors(part: int, *, least: int, most: int) -> int:
    """Return the number of file descriptors that this process may open, divided by ``part``, within bounds."""
    try:
        import resource  # not available on every system
    except ImportError:
        return least
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, max(least, soft // part))


class SocketFile:
    """A socket that listens at ``path``. Only our user can connect.

    Raises:
        OSError: if the path is in use, for example because another process is listening there.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            clear(path)
            self.socket.bind(path)
            # No clients can connect yet, because the socket is not listening.
            os.chmod(path, _MODE)  # noqa: PTH101  # a string, as bind takes it
            self.socket.listen(_QUEUE)
            self._identity = _identity(path)
        except BaseException as error:
            self.socket.close()
            if isinstance(error, OSError):
                raise _explained(error, path) from error
            raise

    def remove(self) -> None:
        """Remove the file, unless a different one has replaced it.

        The socket must be open, or its inode may be reused.
        """
        with suppress(OSError):
            if _identity(self._path) == self._identity:
                os.unlink(self._path)  # noqa: PTH108  # as above


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end of a Unix socket."""

    pid: int
    uid: int


def peer(connection: socket.socket) -> Peer | None:
    """Return the process at the other end, or None if the system does not provide it."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return Peer(pid, uid)


def is_forsaken(connection: socket.socket) -> bool:
    """Return whether the listening process has exited while a forked child still holds its socket."""
    listener = peer(connection)
    # A process in another PID namespace has no PID here.
    return listener is not None and listener.pid > 0 and has_ended(listener.pid)


def has_ended(pid: int) -> bool:
    """Return True if no process has this PID."""
    try:
        with suppress(PermissionError):  # the process belongs to another user
            os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def clear(path: str) -> None:
    """Remove the socket file if the process that created it has exited without removing it.

    Raises:
        OSError: if a process is listening there, or if the file is not a socket.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "the file is not a socket")
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
    """Return the same error with a message that includes a remedy."""
    number = error.errno or errno.EINVAL
    if number == errno.EADDRINUSE:
        message = f"another program is listening at {path}; stop it, or use a different path"
    elif number == errno.EEXIST:
        message = f"{path} exists and is not a socket; remove it, or use a different path"
    else:
        message = f"cannot listen at {path}: {error.strerror or error}"
    return OSError(number, message)

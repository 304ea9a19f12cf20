"""Listening sockets for an address: new ones, those of a Unix socket, and sockets inherited from systemd.

Inherited sockets follow sd_listen_fds(3): ``LISTEN_FDS`` is the number of descriptors, starting at 3. ``LISTEN_PID`` is
the pid of the process that they are intended for.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lifecycle._net import SocketFile, unix_path

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["Listening", "listen"]

#: The number of the first inherited descriptor.
_FIRST: Final = 3

#: The maximum number of digits in ``LISTEN_FDS``. Real values are less than 1,000.
_MOST_DIGITS: Final = 3

#: Maps each descriptor to the socket that uses it. A closed socket no longer uses its descriptor. This dictionary is
#: global, because descriptors belong to the process.
_users: Final[dict[int, socket.socket]] = {}


@dataclass
class Listening:
    """Open sockets, one for each address of a host."""

    sockets: list[socket.socket]
    #: The actual host and port.
    address: tuple[str, int] = ("", 0)
    #: True if another process may take over the socket.
    inherited: bool = False
    file: SocketFile | None = None

    def close(self) -> None:
        """Close the sockets, and remove the file of a Unix socket that this process has opened."""
        if self.file is not None:
            self.file.remove()
            self.file = None
        for each in self.sockets:
            each.close()


async def listen(host: str, port: int) -> Listening:
    """Listen on every address of ``host``. If this process has inherited a socket for this address, use it.

    Raises:
        OSError: if the address cannot be used. The message names the address and the reason.
    """
    path = unix_path(host)
    found = _take(await _addresses(host, port) if path is None else (path,))
    if found is not None:
        return Listening([found], (host, port), inherited=True)
    if path is not None:
        file = SocketFile(path)
        return Listening([file.socket], (host, port), file=file)
    with ExitStack() as held:
        try:
            # Let asyncio resolve the name and bind the sockets.
            server = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port, start_serving=False)
            sockets = [held.enter_context(each.dup()) for each in server.sockets]
            server.close()
            for each in sockets:
                each.listen()
        except OSError as error:
            raise _explained(error, host, port) from error
        held.pop_all()
    # Port 0 opens a different port for each address of the host, and we return the first.
    address = sockets[0].getsockname()
    return Listening(sockets, (host, port) if port else (address[0], address[1]))


def _explained(error: OSError, host: str, port: int) -> OSError:
    """Return the error with a message that suggests a remedy."""
    # Since Python 3.12, asyncio raises an error without an errno if the address does not exist.
    number = error.errno or errno.EADDRNOTAVAIL
    if number == errno.EADDRINUSE:
        text = (
            f"port {port} on {host} is in use by another program; stop it, or use a different port (0 for a free one)"
        )
    elif number == errno.EACCES:
        text = f"port {port} on {host} requires privileges that this process does not have; use a port above 1023"
    elif number == errno.EADDRNOTAVAIL:
        text = f"{host} is not an address of this machine; use a local address, such as 127.0.0.1"
    else:
        text = f"cannot listen on {host}, port {port}: {error.strerror or error}"
    return OSError(number, text)


# -- inherited sockets -----------------------------------------------------------------------------------------


async def _addresses(host: str, port: int) -> Collection[object]:
    """Return the addresses that an inherited socket for this host and port may have. No socket fits port 0."""
    if port == 0 or not _inherited():
        return ()
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        # Opening a socket will also fail, and the error will explain the reason.
        return ()
    return {where[:2] for *_, where in found}


def _take(wanted: Collection[object]) -> socket.socket | None:
    """Return an unused inherited socket that is bound to one of ``wanted``, or None.

    The returned socket is a duplicate, so that the descriptor stays open for its next owner. Closing the socket makes
    the descriptor available again. Child processes inherit neither of them.
    """
    for number in _inherited() if wanted else ():
        if number in _users and _users[number].fileno() != -1:
            continue
        # Whatever else was passed to this process is not a socket.
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            found = socket.socket(fileno=os.dup(number))
            name = found.getsockname()
            address = name if found.family == socket.AF_UNIX else name[:2]
            listens = found.type == socket.SOCK_STREAM and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listens and address in wanted:
                os.set_inheritable(number, False)
                _users[number] = found
                return found
            found.close()
    return None


def _inherited() -> range:
    """Return the descriptors passed to this process.

    The range is empty if they were passed to a parent with the same environment.
    """
    number = os.environ.get("LISTEN_FDS", "")
    ours = os.environ.get("LISTEN_PID") == str(os.getpid())
    usable = ours and number.isascii() and number.isdecimal() and len(number) <= _MOST_DIGITS
    return range(_FIRST, _FIRST + int(number)) if usable else range(0)

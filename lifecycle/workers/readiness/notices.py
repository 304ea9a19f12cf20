"""Ready when it says so, in the words of systemd's sd_notify(3).

The process is given a socket as NOTIFY_SOCKET, and sends ``READY=1`` to it. The socket's name is abstract: nothing is
left of it however this program ends, and a process that has changed its user, its root or its mounts reaches it.
Since anybody may send to it, the system is asked who did, and only the worker's own processes are heard. Linux only.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
import socket
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.workers.stdio import Command

__all__ = ["Notice"]

_VARIABLE: Final = "NOTIFY_SOCKET"
#: Bytes of a notice; systemd, too, ignores what is longer.
_SIZE: Final = 4096
#: Notices at a time, so that a flood of them does not hold the loop.
_AT_ONCE: Final = 32
#: Characters of a status that are told.
_TOLD: Final = 200
#: Number, user and group of the sender.
_SENDER: Final = struct.Struct("3i")


class Notice:
    """Ready when one of the worker's processes sends ``READY=1`` to NOTIFY_SOCKET; its last ``STATUS=`` is its news.

    The rest of the protocol is read, to the end of the process, and ignored. As with systemd, who sends and is gone
    before it is read cannot be known and is not heard; the leader always is, and `systemd-notify` waits.
    """

    def __init__(self) -> None:
        self.news: str = ""
        self._socket: socket.socket | None = None
        self._ready: asyncio.Future[None] | None = None
        self._ours: Callable[[int], bool] = _nobody

    def __str__(self) -> str:
        return f"send READY=1 to ${_VARIABLE}"

    def prepare(self, command: Command) -> Command:
        """Open the socket, and put it into the environment."""
        if not hasattr(socket, "SO_PASSCRED"):
            raise OSError(errno.ENOTSUP, f"this system does not tell who sends to a {_VARIABLE}, only Linux does")
        name = f"lifecycle-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        # Before there is a name to send to: who sends earlier would be without credentials.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(f"\0{name}")
        return replace(command, env={**command.env, _VARIABLE: f"@{name}"})

    def reached(self, ours: Callable[[int], bool]) -> asyncio.Future[None]:
        """Done when that has come; what comes later is read as well, since senders would wait for that."""
        assert self._socket is not None, "it was prepared"
        loop = asyncio.get_running_loop()
        self._ours = ours
        self._ready = loop.create_future()
        loop.add_reader(self._socket, self._read)
        return self._ready

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            if self._ready is not None:
                asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _read(self) -> None:
        for _ in range(_AT_ONCE):
            if self._socket is None:
                return
            try:
                # Descriptors that are sent along find no room in here, and the system closes them.
                data, more, flags, _ = self._socket.recvmsg(_SIZE, socket.CMSG_SPACE(_SENDER.size))
            except BlockingIOError:
                return
            if not flags & socket.MSG_TRUNC:
                self._take(data, _sender(more))

    def _take(self, notice: bytes, sender: int) -> None:
        if self._ready is None or self._ready.done():
            return
        said = dict(line.split(b"=", 1) for line in notice.removesuffix(b"\0").split(b"\n") if b"=" in line)
        is_ready, status = said.get(b"READY") == b"1", said.get(b"STATUS")
        if not is_ready and status is None:
            return
        if not (sender and self._ours(sender)):
            self.news = f"process {sender}, which is gone or not its own, sent one; that is ignored"
        elif is_ready:
            self._ready.set_result(None)
        elif status is not None:
            self.news = f"it said {status.decode(errors='replace')[:_TOLD]!r}"


def _nobody(_: int) -> bool:
    return False


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The number of the process that sent; the system vouches for it. 0 if it is none that we can see."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            return int(_SENDER.unpack(data)[0])
    return 0

"""The conditions for the ``ready=`` setting of `ProcessWorker`, which defines when a process is ready.

Each condition is a class that waits for one of the following: a line of output, a port that accepts connections, a URL
that responds, or a notification in systemd's format.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import re
import secrets
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from lifecycle._util import reason_of
from lifecycle.errors import WorkerFailed
from lifecycle.workers.model import End

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    import aiohttp

    from lifecycle.workers.stdio import Command

__all__ = ["Line", "Port", "Readiness", "Url", "not_ready", "parse_ready"]


class Readiness:
    """A readiness condition for one run of a process. Its ``str()`` completes the sentence "it did not …"."""

    #: Why the process is not ready yet, if known.
    reason: str = ""
    #: The port that must accept connections, if any.
    port: int | None = None

    def prepare(self, command: Command) -> Command:
        """Prepare to start ``command``, and return the modified command to start. Raises OSError."""
        return command

    def reached(self, is_ours: Callable[[int], bool]) -> Awaitable[object]:
        """Wait until the process is ready. ``is_ours`` recognizes the worker's pids. Callers may cancel the wait."""
        raise NotImplementedError

    def close(self) -> None:
        """Close all descriptors once the process has exited or failed to start. Further calls do nothing."""


def parse_ready(text: str) -> Readiness:
    """Return the condition that ``text`` describes, for one process.

    Raises:
        ValueError: if ``text`` does not describe a condition.
    """
    try:
        return _read(text)
    except ValueError as error:
        raise ValueError(
            f"ready must be 'port:N', 'line:REGEX', 'http://…', 'https://…' or 'notify', got {text!r} ({error})"
        ) from None


def _read(text: object) -> Readiness:
    match text.split(":", 1) if isinstance(text, str) else None:
        case ["notify"]:
            return Notice()
        case ["port", number]:
            return Port(number)
        case ["line", pattern]:
            return Line(pattern)
        case ["http" | "https", _]:
            return Url(str(text))
        case _:
            raise ValueError("unknown kind")


def not_ready(name: str, ready: Readiness, life: asyncio.Future[End | None], timeout: float) -> WorkerFailed:
    """Return the error for the worker ``name``, which exited early or was not ready after ``timeout`` seconds."""
    reason = f"; {ready.reason}" if ready.reason else ""
    if not life.done():
        return WorkerFailed(
            f"{name!r} did not {ready} within {timeout:g} s and was stopped{reason}; "
            "if it starts slowly, set a longer start_timeout"
        )
    end = End.of(life)
    how = "exited with status 0" if end.error is None else str(end.error).removeprefix(f"{name!r} ")
    failed = WorkerFailed(f"{name!r} ended before it was ready: it {how}, and did not {ready}{reason}")
    failed.__cause__ = end.error
    return failed


# -- a line of output --------------------------------------------------------------------------------------------------

#: The maximum number of characters to search per line. There is a limit because search time can grow quadratically.
_SEARCHED: Final = 4096


class Line(Readiness):
    """Ready when the process writes a line to stdout or stderr that matches the regular expression ``pattern``.

    Raises:
        ValueError: if ``pattern`` is not a regular expression.
    """

    def __init__(self, pattern: str) -> None:
        if not pattern:
            raise ValueError("the expression is empty")
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        self._found: asyncio.Future[None] | None = None

    def __str__(self) -> str:
        return f"write a line that matches {self._pattern.pattern!r}"

    def search(self, line: str) -> None:
        """Search one line of output. Lines after the first match are ignored."""
        if self._found is None or self._found.done():
            return
        if self._pattern.search(line, 0, _SEARCHED):
            self._found.set_result(None)

    def prepare(self, command: Command) -> Command:
        """Start searching the output."""
        self._found = asyncio.get_running_loop().create_future()
        return command

    def reached(self, is_ours: Any) -> asyncio.Future[None]:  # noqa: ARG002  # only this process writes to the pipe
        """Wait until a line has matched."""
        assert self._found is not None, "prepare() sets it"
        return self._found


# -- a port ------------------------------------------------------------------------------------------------------------

_MAX_PORT: Final = 65_535


class Port(Readiness):
    """Ready when a new listener accepts TCP connections on port ``number`` of 127.0.0.1 or ::1.

    Raises:
        ValueError: if ``number`` is not a port number.
    """

    reason: str = ""

    def __init__(self, number: str) -> None:
        if not (number.isascii() and number.isdigit()) or not 0 < int(number) <= _MAX_PORT:
            raise ValueError(f"N must be a number from 1 to {_MAX_PORT}")
        self.port: int | None = int(number)
        self._listeners = _Listeners(self.port)

    def __str__(self) -> str:
        return f"accept connections on 127.0.0.1:{self.port}"

    def prepare(self, command: Command) -> Command:
        """Remember which sockets are already listening on the port."""
        self._listeners.remember()
        return command

    async def reached(self, is_ours: Any) -> None:  # noqa: ARG002  # another process may legitimately be listening
        """Poll the port until it accepts connections."""
        await _poll(self.check)

    async def check(self, _: object = None, /) -> bool:
        """Return whether the port accepts connections now."""
        if not (await self._accepts(socket.AF_INET, "127.0.0.1") or await self._accepts(socket.AF_INET6, "::1")):
            self.reason = ""
            return False
        self.reason = self._listeners.objection()
        return not self.reason

    async def _accepts(self, family: socket.AddressFamily, host: str) -> bool:
        try:
            with socket.socket(family) as probe:
                probe.setblocking(False)
                await asyncio.get_running_loop().sock_connect(probe, (host, self.port))
                # If nothing is listening, the system may pick this very port as the source port, and the socket
                # connects to itself.
                return bool(probe.getsockname() != probe.getpeername())
        except OSError:
            return False


# -- a URL -------------------------------------------------------------------------------------------------------------

#: The time limit per request, in seconds. A server that accepts connections before it is ready might never respond to
#: the first request.
_ANSWER_TIMEOUT: Final = 5.0
_PORTS: Final = {"http": 80, "https": 443}


class Url(Readiness):
    """Ready when a GET request to ``url`` returns a status below 400. Redirects are not followed.

    Raises:
        ValueError: if ``url`` is not a URL.
    """

    reason: str = ""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if not parts.hostname or any(each.isspace() for each in url):
            raise ValueError("a URL must have a host and no spaces")
        self._url = url
        # The URL as shown in messages, without the user name and password.
        self._shown = url.replace(f"{parts.netloc}", parts.netloc.rpartition("@")[2], 1)
        self.port: int | None = parts.port or _PORTS[parts.scheme]
        self._listeners = _Listeners(self.port) if _is_here(parts.hostname) else None

    def __str__(self) -> str:
        return f"respond at {self._shown} with a status below 400"

    def prepare(self, command: Command) -> Command:
        """If the URL is on this machine, remember which sockets are already listening on the port."""
        if self._listeners is not None:
            self._listeners.remember()
        return command

    async def reached(self, is_ours: Any) -> None:  # noqa: ARG002  # as for a port
        """Poll the URL until it responds with a status below 400."""
        async with _session() as session:
            await _poll(lambda: self._answers(session))

    async def check(self, _: object = None, /) -> bool:
        """Return whether the URL currently responds with a status below 400."""
        async with _session() as session:
            return await self._answers(session)

    async def _answers(self, session: aiohttp.ClientSession) -> bool:
        import aiohttp

        try:
            async with session.get(self._url, allow_redirects=False) as response:
                self.reason = self._objection(response.status)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self.reason = f"the last attempt failed: {reason_of(error)}"
        return not self.reason

    def _objection(self, status: int) -> str:
        from http import HTTPStatus

        if status >= HTTPStatus.BAD_REQUEST:
            return f"the last response had the status {status}"
        return self._listeners.objection() if self._listeners is not None else ""


def _session() -> aiohttp.ClientSession:
    import aiohttp

    connector = aiohttp.TCPConnector(force_close=True)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=_ANSWER_TIMEOUT))


def _is_here(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified


# -- a notification ----------------------------------------------------------------------------------------------------

_VARIABLE: Final = "NOTIFY_SOCKET"
#: The maximum size of a notification in bytes. Like systemd, we ignore longer ones.
_SIZE: Final = 4096
#: The maximum number of notifications to read per loop iteration, so that a flood of them does not block the loop.
_AT_ONCE: Final = 32
#: The maximum number of characters of a status to show in a message.
_STATUS_SHOWN: Final = 200
#: The sender's pid, user and group.
_SENDER: Final = struct.Struct("3i")


class Notice(Readiness):
    """Ready when one of the worker's processes sends ``READY=1`` to NOTIFY_SOCKET. Linux only.

    NOTIFY_SOCKET contains the address of a socket, as described in sd_notify(3). The address is abstract. It leaves no
    file behind, and a process that has changed its user, root or mounts can still reach it. Any process can send to the
    socket. Therefore, we check the sender's pid, which the kernel provides, and only accept messages from the worker's
    own processes.

    Other messages are read and ignored until the process exits. As with systemd, a message is also ignored if its
    sender has exited by the time we read it, because we can no longer identify the sender. This does not affect the
    leader, which we have not reaped yet, or `systemd-notify`, which waits for us.
    """

    reason: str = ""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._ready: asyncio.Future[None] | None = None
        self._is_ours: Callable[[int], bool] = _none

    def __str__(self) -> str:
        return f"send READY=1 to ${_VARIABLE}"

    def prepare(self, command: Command) -> Command:
        """Open the socket, and put its address in the environment."""
        if not hasattr(socket, "SO_PASSCRED"):
            raise OSError(errno.ENOTSUP, f"{_VARIABLE} works only on Linux, where the kernel identifies senders")
        name = f"lifecycle-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        # Set this option before binding the socket, because messages that arrive before it is set have no credentials.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(f"\0{name}")
        return replace(command, env={**command.env, _VARIABLE: f"@{name}"})

    def reached(self, is_ours: Callable[[int], bool]) -> asyncio.Future[None]:
        """Wait for ``READY=1``.

        We keep reading after that, because senders may be waiting for their messages to be read.
        """
        assert self._socket is not None, "prepare() sets it"
        loop = asyncio.get_running_loop()
        self._is_ours = is_ours
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
                # The buffer has no space for descriptors, so the kernel closes any that were sent with the message.
                data, more, flags, _ = self._socket.recvmsg(_SIZE, socket.CMSG_SPACE(_SENDER.size))
            except BlockingIOError:
                return
            if not flags & socket.MSG_TRUNC:
                self._take(data, _sender(more))

    def _take(self, notice: bytes, sender: int) -> None:
        if self._ready is None or self._ready.done():
            return
        fields = dict(line.split(b"=", 1) for line in notice.removesuffix(b"\0").split(b"\n") if b"=" in line)
        is_ready, status = fields.get(b"READY") == b"1", fields.get(b"STATUS")
        if not is_ready and status is None:
            return
        if not (sender and self._is_ours(sender)):
            self.reason = f"a message was ignored because its sender {sender} has exited or is not the worker's"
        elif is_ready:
            self._ready.set_result(None)
        elif status is not None:
            self.reason = f"its status was {status.decode(errors='replace')[:_STATUS_SHOWN]!r}"


def _none(_: int) -> bool:
    return False


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Return the sender's pid as provided by the kernel, or 0 if we cannot see that process."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            return int(_SENDER.unpack(data)[0])
    return 0


# -- polling, and listeners on a port ------------------------------------------------------------------------------

#: Seconds to wait between the first two checks.
_FIRST_PAUSE: Final = 0.01
#: The maximum number of seconds to wait between checks.
_LONGEST_PAUSE: Final = 0.2


async def _poll(check: Callable[[], Awaitable[bool]]) -> None:
    """Call ``check`` at increasing intervals until it returns True."""
    pause = _FIRST_PAUSE
    while not await check():
        await asyncio.sleep(pause)
        pause = min(_LONGEST_PAUSE, pause * 1.5)


_SOCKET_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENING: Final = "0A"
_MAPPED: Final = bytes(10) + b"\xff\xff"
#: The addresses of listeners that accept connections to 127.0.0.1 or ::1.
_LOCAL: Final = {
    address
    for four in (bytes(4), bytes([127, 0, 0, 1]))
    for address in (four, _MAPPED + four, bytes(12) + four, bytes(15) + b"\x01")
}


class _Listeners:
    """The sockets listening on ``port``, and which of them existed before the process was started.

    If there are no new sockets, a connection must have reached a process that was already running. Sockets are
    identified by their inodes, which Linux lists in /proc. We don't check their owners, because another process, such
    as a container engine publishing the port, may legitimately be listening.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._before: set[str] = set()

    def remember(self) -> None:
        """Remember the current sockets, which cannot belong to the process that is about to start."""
        self._before = set(_listening(self._port))

    def objection(self) -> str:
        """Return why a response from the port must be ignored, or an empty string if it is valid.

        If the system lists no listeners at all, for example with port forwarding or on systems other than Linux, the
        response is considered valid.
        """
        now = set(_listening(self._port))
        if now and now <= self._before:
            return f"another process already listens on port {self._port}"
        return ""


def _listening(port: int) -> Iterator[str]:
    """Yield the inodes of sockets that are listening on ``port`` for connections from this machine."""
    for path in _SOCKET_TABLES:
        with suppress(OSError), Path(path).open() as table:
            next(table, None)
            for _, local, _, state, *more in map(str.split, table):
                if state != _LISTENING:
                    break  # listening sockets come first, and there may be many others
                address, _, at = local.partition(":")
                if int(at, 16) == port and _packed(address) in _LOCAL:
                    yield more[5]


def _packed(address: str) -> bytes:
    """Return an address in network byte order. In /proc, each word of the address is in this machine's byte order."""
    words = (int(address[start : start + 8], 16) for start in range(0, len(address), 8))
    return b"".join(word.to_bytes(4, sys.byteorder) for word in words)

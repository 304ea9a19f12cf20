"""When a process counts as ready: the ``ready=`` of `ProcessWorker`, and the wait for it.

There is a class for each way: a line of output, a port that accepts, a URL that answers, a notice in systemd's form.
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
from http import HTTPStatus
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

__all__ = ["Line", "Readiness", "not_ready", "parse_ready"]


#: Characters of its stderr that are shown; its `Exit` has more.
_STDERR_SHOWN: Final = 1000


class Readiness:
    """When one process counts as ready; it serves one life. As text it completes "it did not …"."""

    #: Why it is not ready yet, if that is known.
    reason: str = ""

    def prepare(self, command: Command) -> Command:
        """Prepare for the start of ``command``, and return what is to be started. Raises OSError."""
        return command

    def reached(self, is_ours: Callable[[int], bool]) -> Awaitable[object]:
        """Complete when it is ready; ``is_ours`` recognises the worker's processes. The caller may cancel it."""
        raise NotImplementedError

    def close(self) -> None:
        """Close what it holds open, once the process has ended or was not started; any number of times."""


def parse_ready(text: str) -> Readiness:
    """Return the condition that ``text`` describes, for one process.

    Raises:
        ValueError: for anything else.
    """
    try:
        return _read(text)
    except ValueError as error:
        raise ValueError(
            f"ready={text!r} is not a condition ({error}); "
            "give 'port:N', 'line:REGEX', 'http://…', 'https://…' or 'notify'"
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
            raise ValueError("its kind is unknown")


def not_ready(name: str, ready: Readiness, life: asyncio.Future[End | None], timeout: float) -> WorkerFailed:
    """Return the error for the worker ``name``, which is not ready after ``timeout`` seconds, or has ended before."""
    reason = f"; {ready.reason}" if ready.reason else ""
    if not life.done():
        return WorkerFailed(
            f"{name!r} did not {ready} within {timeout:g} s and was stopped{reason}; "
            "give it a longer start timeout if it is slow"
        )
    end = End.of(life)
    how = "exited with status 0" if end.error is None else str(end.error).removeprefix(f"{name!r} ")
    stderr = f"; its last words:\n{_last(end.stderr)}" if end.stderr.strip() else ""
    failed = WorkerFailed(f"{name!r} ended before it was ready: it {how}, and did not {ready}{reason}{stderr}")
    failed.__cause__ = end.error
    return failed


def _last(text: str) -> str:
    """Return the end of ``text``, from the beginning of a line on if possible."""
    end = text[-_STDERR_SHOWN:]
    whole = end.partition("\n")[2].strip()
    return whole if len(text) > _STDERR_SHOWN and whole else end.strip()


# -- a line of output --------------------------------------------------------------------------------------------------

#: Characters of a line that are searched: an expression may take a time that grows with their square.
_SEARCHED: Final = 4096


class Line(Readiness):
    """Ready when a line that it writes, to either stream, matches the regular expression ``pattern``.

    Raises:
        ValueError: for a pattern that is not a regular expression.
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
        """Search one line of output; once a line has matched, later ones cost nothing."""
        if self._found is None or self._found.done():
            return
        if self._pattern.search(line, 0, _SEARCHED):
            self._found.set_result(None)

    def prepare(self, command: Command) -> Command:
        """Search from the first line on."""
        self._found = asyncio.get_running_loop().create_future()
        return command

    def reached(self, is_ours: Any) -> asyncio.Future[None]:  # noqa: ARG002  # a line came through its own pipe
        """Complete when a line has matched."""
        assert self._found is not None, "it was prepared"
        return self._found


# -- a port ------------------------------------------------------------------------------------------------------------

_MAX_PORT: Final = 65_535


class Port(Readiness):
    """Ready when something that was not there before accepts TCP connections on port ``number`` of 127.0.0.1 or ::1.

    Raises:
        ValueError: for a text that is not the number of a port.
    """

    reason: str = ""

    def __init__(self, number: str) -> None:
        if not (number.isascii() and number.isdigit()) or not 0 < int(number) <= _MAX_PORT:
            raise ValueError(f"N is a number from 1 to {_MAX_PORT}")
        self.number: int = int(number)
        self._listeners = _Listeners(self.number)

    def __str__(self) -> str:
        return f"accept connections on 127.0.0.1:{self.number}"

    def prepare(self, command: Command) -> Command:
        """Remember the sockets that listen there already."""
        self._listeners.remember()
        return command

    async def reached(self, is_ours: Any) -> None:  # noqa: ARG002  # another process may rightly listen for it
        """Poll it."""
        await _poll(self._answers)

    async def _answers(self) -> bool:
        if not (await self._accepts(socket.AF_INET, "127.0.0.1") or await self._accepts(socket.AF_INET6, "::1")):
            self.reason = ""
            return False
        self.reason = self._listeners.objection()
        return not self.reason

    async def _accepts(self, family: socket.AddressFamily, host: str) -> bool:
        try:
            with socket.socket(family) as probe:
                probe.setblocking(False)
                await asyncio.get_running_loop().sock_connect(probe, (host, self.number))
                # If nothing listens, the system may give the probe this very port, and it connects to itself.
                return bool(probe.getsockname() != probe.getpeername())
        except OSError:
            return False


# -- a URL -------------------------------------------------------------------------------------------------------------

#: Seconds for one answer: a server that accepts connections before it can serve may have lost one.
_ANSWER_TIMEOUT: Final = 5.0
_PORTS: Final = {"http": 80, "https": 443}


class Url(Readiness):
    """Ready when a GET of ``url`` is answered with a status of 200 to 399; a redirection is not followed.

    Raises:
        ValueError: for a text that is not a URL.
    """

    reason: str = ""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if not parts.hostname or any(each.isspace() for each in url):
            raise ValueError("a URL has a host, and no spaces")
        self._url = url
        # Without a password, for messages.
        self._shown = url.replace(f"{parts.netloc}", parts.netloc.rpartition("@")[2], 1)
        port = parts.port or _PORTS[parts.scheme]
        self._listeners = _Listeners(port) if _is_here(parts.hostname) else None

    def __str__(self) -> str:
        return f"answer {self._shown} with a status below 400"

    def prepare(self, command: Command) -> Command:
        """Remember the sockets that listen there already, if it is on this machine."""
        if self._listeners is not None:
            self._listeners.remember()
        return command

    async def reached(self, is_ours: Any) -> None:  # noqa: ARG002  # as for a port
        """Poll it."""
        import aiohttp

        connector = aiohttp.TCPConnector(force_close=True)
        timeout = aiohttp.ClientTimeout(total=_ANSWER_TIMEOUT)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            await _poll(lambda: self._answers(session))

    async def _answers(self, session: aiohttp.ClientSession) -> bool:
        import aiohttp

        try:
            async with session.get(self._url, allow_redirects=False) as response:
                self.reason = self._objection(response.status)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self.reason = f"the last attempt failed: {reason_of(error)}"
        return not self.reason

    def _objection(self, status: int) -> str:
        if status >= HTTPStatus.BAD_REQUEST:
            return f"the last answer had the status {status}"
        return self._listeners.objection() if self._listeners is not None else ""


def _is_here(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified


# -- a notice ----------------------------------------------------------------------------------------------------------

_VARIABLE: Final = "NOTIFY_SOCKET"
#: Bytes of a notice; systemd, too, ignores what is longer.
_SIZE: Final = 4096
#: Notices that are read in one turn of the loop, so that a flood of them does not block it.
_AT_ONCE: Final = 32
#: Characters of a status that are shown.
_STATUS_SHOWN: Final = 200
#: Pid, user and group of the sender.
_SENDER: Final = struct.Struct("3i")


class Notice(Readiness):
    """Ready when one of the worker's processes sends ``READY=1`` to NOTIFY_SOCKET.

    The process is given a socket as NOTIFY_SOCKET, by sd_notify(3). Its name is abstract: nothing is left of it however
    this program ends, and a process that has changed its user, its root or its mounts reaches it. Any process may send
    to it, so the system is asked for the sender, and only the worker's own processes count. Linux only.

    The rest of the protocol is read, to the end of the process, and ignored. As with systemd, a sender that has ended
    before its notice is read cannot be identified, and is ignored; the leader always is there, and `systemd-notify`
    waits.
    """

    reason: str = ""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._ready: asyncio.Future[None] | None = None
        self._is_ours: Callable[[int], bool] = _none

    def __str__(self) -> str:
        return f"send READY=1 to ${_VARIABLE}"

    def prepare(self, command: Command) -> Command:
        """Open the socket, and set it in the environment."""
        if not hasattr(socket, "SO_PASSCRED"):
            raise OSError(errno.ENOTSUP, f"only Linux identifies the sender to a {_VARIABLE}")
        name = f"lifecycle-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        # Before it has a name: what is sent earlier would be without credentials.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(f"\0{name}")
        return replace(command, env={**command.env, _VARIABLE: f"@{name}"})

    def reached(self, is_ours: Callable[[int], bool]) -> asyncio.Future[None]:
        """Complete when ``READY=1`` has come; later notices are read as well, since their senders wait for that."""
        assert self._socket is not None, "it was prepared"
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
                # There is no space for descriptors that are sent along, so the system closes them.
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
            self.reason = f"process {sender}, which is gone or not its own, sent one; that is ignored"
        elif is_ready:
            self._ready.set_result(None)
        elif status is not None:
            self.reason = f"it said {status.decode(errors='replace')[:_STATUS_SHOWN]!r}"


def _none(_: int) -> bool:
    return False


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Return the pid of the sender, as the kernel tells it; 0 if it is not visible here."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            return int(_SENDER.unpack(data)[0])
    return 0


# -- polling, and who listens on a port --------------------------------------------------------------------------------

#: Seconds between the first two checks, and at most between two.
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.2


async def _poll(check: Callable[[], Awaitable[bool]]) -> None:
    """Call ``check``, at growing intervals, until it returns True."""
    pause = _FIRST_PAUSE
    while not await check():
        await asyncio.sleep(pause)
        pause = min(_LONGEST_PAUSE, pause * 1.5)


_SOCKET_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENING: Final = "0A"
_MAPPED: Final = bytes(10) + b"\xff\xff"
#: The addresses that are reached at 127.0.0.1 or ::1.
_LOCAL: Final = {
    address
    for four in (bytes(4), bytes([127, 0, 0, 1]))
    for address in (four, _MAPPED + four, bytes(12) + four, bytes(15) + b"\x01")
}


class _Listeners:
    """The sockets that listen on ``port``, and those of them that did so before a start.

    They tell apart another process that answers on the port. Sockets are identified by their inodes, as Linux shows
    them. Their owners are not compared: another process may rightly listen, such as a container engine that publishes
    the port.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._before: set[str] = set()

    def remember(self) -> None:
        """Remember the sockets of now: they do not belong to what is started next."""
        self._before = set(_listening(self._port))

    def objection(self) -> str:
        """Return why an answer from the port does not count, or an empty string if it does.

        It counts if the system shows no listener at all, as outside Linux, or behind a redirection.
        """
        now = set(_listening(self._port))
        if now and now <= self._before:
            return "what answers there has listened since before the start"
        return ""


def _listening(port: int) -> Iterator[str]:
    """Yield the inodes of the sockets that listen on ``port`` for connections from this machine."""
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
    """Return an address in network order; /proc shows each of its words in the byte order of this machine."""
    words = (int(address[start : start + 8], 16) for start in range(0, len(address), 8))
    return b"".join(word.to_bytes(4, sys.byteorder) for word in words)

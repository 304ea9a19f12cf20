"""A client for a program's control socket. It finds the program, sends requests, and reads server-sent events.

Each HTTP/1.0 request uses its own connection, which closes after the response. Responses are never chunked, so `select`
can wait for several responses without threads. `http.client` is not used because it reads ahead, and because importing
it takes as long as everything else in `lifecycle ctl ps`.
"""

from __future__ import annotations

import json
import select
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TextIO

from lifecycle._text import printable
from lifecycle.cli.output import CliError, UsageError, columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Self, TypeAlias

    from _typeshed import HasFileno

    from lifecycle.observe.sockets import Program

    #: A descriptor, or an object that has one.
    Readable: TypeAlias = int | HasFileno

__all__ = [
    "Client",
    "Exchange",
    "GoneError",
    "Messages",
    "NoProgramError",
    "SilentError",
    "Stream",
    "choose",
    "choose_to_stop",
    "decoded",
    "is_readable",
]

#: The exit status when no matching program is running.
_NO_PROGRAM: Final = 4
#: The timeout, in seconds, for a query that a program normally answers immediately.
TIMEOUT: Final = 10.0
_END_OF_HEAD: Final = b"\r\n\r\n"
_CHUNK: Final = 65_536
_OK: Final = 200
#: The maximum size of the headers, in bytes.
_LONGEST_HEAD: Final = 65_536
#: The maximum size, in bytes, of a response or of a message in a stream. This is ten times the size of the state of
#: 10,000 workers.
_LARGEST: Final = 64 * 1024 * 1024
#: The timeout, in seconds, for reading bytes that have already been received.
_AT_ONCE: Final = 0.01


class NoProgramError(CliError):
    """No program, or none with the given name, is running."""

    status = _NO_PROGRAM


class GoneError(CliError):
    """The program exited, possibly before its response was complete."""


class SilentError(GoneError):
    """The program did not respond within the timeout."""


# -- programs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Client:
    """Sends requests to a single program."""

    program: Program

    @property
    def name(self) -> str:
        """The program's name, without control characters."""
        return printable(self.program.name)

    def get(self, target: str, **query: object) -> Any:
        """Return the JSON at ``target``.

        Raises:
            CliError: if the program rejects the request or does not respond.
        """
        return decoded(self._get(target, query))

    def text(self, target: str, **query: object) -> str:
        """Return the text at ``target``."""
        return self._get(target, query).decode(errors="replace")

    def post(self, target: str, body: object) -> Any:
        """Send ``body`` as JSON, and wait for the response without a timeout."""
        with self.send(target, body) as exchange:
            return decoded(exchange.body())

    def send(self, target: str, body: object) -> Exchange:
        """Send ``body`` as JSON, and leave the response for the caller to read."""
        return Exchange(self.program, target, body)

    def stream(self, target: str, shown: TextIO | None = None, **query: object) -> Stream:
        """Open a stream of events. The stream also ends when the reader closes the output ``shown``."""
        exchange = Exchange(self.program, _with_query(target, query), timeout=TIMEOUT)
        try:
            return Stream(exchange, shown, timeout=TIMEOUT)
        except BaseException:
            exchange.__exit__(None, None, None)
            raise

    def _get(self, target: str, query: dict[str, object]) -> bytes:
        with Exchange(self.program, _with_query(target, query), timeout=TIMEOUT) as exchange:
            return exchange.body(until=monotonic() + TIMEOUT)


def choose(name: str | None) -> Client:
    """Return a client for the program called ``name``. The name can be omitted if only one program is running.

    If several programs match, the program running in our working directory is selected.

    Raises:
        NoProgramError: if no such program is running.
        UsageError: if the selection is ambiguous.
    """
    from lifecycle.observe.sockets import find

    programs = find(name)
    if len(programs) == 1:
        return Client(programs[0])
    here = [each for each in programs if _is_here(each)]
    if len(here) == 1:
        return Client(here[0])
    if programs:
        which = "are running" if name is None else f"are called {name!r}"
        where = "" if here else ", but none in this directory"
        raise UsageError(f"several programs {which}{where}; select one with -p:\n{_list_names(programs)}")
    if name is None:
        raise NoProgramError(
            "no program with a control socket is running; start one with `lifecycle run`, or add a ControlSocket"
        )
    others = find()
    known = f"; running programs:\n{_list_names(others)}" if others else ", and no other programs are running"
    raise NoProgramError(f"no program called {name!r} is running{known}")


def choose_to_stop(name: str | None) -> Client:
    """Return a client for the program called ``name`` or, without a name, for the one in our working directory.

    Raises:
        NoProgramError, UsageError: as `choose` does, or if the only program runs in another directory.
    """
    client = choose(name)
    if name is None and not _is_here(client.program):
        where = printable(_directory(client.program)) or "another directory"
        raise UsageError(f"{client.name} runs in {where}, not here; to stop it, use -p {client.name}")
    return client


def _is_here(program: Program) -> bool:
    """Return whether the program runs in our working directory. This cannot be determined on systems without /proc."""
    try:
        return Path(f"/proc/{program.pid}/cwd").samefile(".")
    except OSError:
        return False


def _list_names(programs: Sequence[Program]) -> str:
    rows = [(f"  {printable(each.name)}", printable(_directory(each))) for each in programs]
    return columns(rows).rstrip("\n")


def _directory(program: Program) -> str:
    try:
        return str(Path(f"/proc/{program.pid}/cwd").readlink())
    except OSError:
        return ""


def _with_query(target: str, query: dict[str, object]) -> str:
    if not query:
        return target
    from urllib.parse import urlencode

    return f"{target}?{urlencode(query, doseq=True)}"


def is_readable(sources: Sequence[Readable], timeout: float | None) -> bool:
    """Wait up to ``timeout`` seconds, and return whether any of ``sources`` is readable or closed."""
    poll = select.poll()
    for each in sources:
        poll.register(each, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))


# -- requests ------------------------------------------------------------------------------------------------------


class Exchange:
    """A request to ``program``, and its response. As a context manager, it closes the connection.

    ``timeout`` is in seconds, and applies to connecting and to each chunk of the response. None means no limit.

    Raises:
        GoneError: if the program does not accept the connection.
    """

    def __init__(self, program: Program, target: str, body: object = None, *, timeout: float | None = None) -> None:
        self._program = program
        self._until: float | None = None
        try:
            self._socket = program.connect(timeout)
        except OSError as error:
            raise _gone(program, error) from error
        try:
            self._socket.sendall(_encode(target, body))
        except OSError as error:
            self._socket.close()
            raise _gone(program, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """Return the socket's descriptor, for `select`."""
        return self._socket.fileno()

    def set_timeout(self, seconds: float | None) -> None:
        """Set the timeout for each chunk of the response."""
        self._until = None
        # A timeout of zero would make the socket non-blocking, so that bytes already received could not be read.
        self._socket.settimeout(None if seconds is None else max(seconds, _AT_ONCE))

    def is_answered(self) -> bool:
        """Return whether part of the response has arrived or the connection is closed."""
        return is_readable((self._socket,), 0)

    def body(self, *, until: float | None = None, most: int = _LARGEST) -> bytes:
        """Return the complete response, up to ``most`` bytes. ``until`` is a deadline on the monotonic clock.

        Raises:
            CliError: if the program rejects the request (with its message), or the response is too long.
            GoneError: if no response arrives, or it is incomplete.
        """
        length, begun = self.head(until=until)
        whole = self._rest(begun, most)
        if length is not None and len(whole) < length:
            raise GoneError("the program exited before it responded")
        return whole

    def head(self, *, until: float | None = None) -> tuple[int | None, bytes]:
        """Return the length of the body, if known, and its first bytes. Raises the same errors as `body`."""
        self._until = until
        received = b""
        while _END_OF_HEAD not in received:
            piece = self.receive()
            if not piece or len(received) > _LONGEST_HEAD:
                raise GoneError("the program exited before it responded")
            received += piece
        head, _, begun = received.partition(_END_OF_HEAD)
        status, length = _read_head(head)
        if status != _OK:
            raise CliError(_refusal(status, self._rest(begun, _LARGEST)))
        return length, begun

    def receive(self) -> bytes:
        """Return the next chunk of the response, or empty bytes at its end.

        Raises:
            GoneError: if no chunk arrives within the timeout, or the connection is lost.
        """
        try:
            if self._until is not None and monotonic() > self._until:
                self._socket.settimeout(0)
            return self._socket.recv(_CHUNK)
        except OSError as error:
            raise _gone(self._program, error) from error

    def silent(self) -> SilentError:
        """Return the error for a program that does not respond in time."""
        return _silent(self._program)

    def _rest(self, begun: bytes, most: int) -> bytes:
        whole = bytearray(begun)
        while piece := self.receive():
            whole += piece
            if len(whole) > most:
                raise CliError(f"the response from {printable(self._program.name)} exceeds {most} bytes")
        return bytes(whole)


def decoded(body: bytes) -> Any:
    """Decode the JSON of a response.

    Raises:
        CliError: if it is not JSON.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise CliError(f"the program's response is not JSON: {body[:80]!r}") from None


def _encode(target: str, body: object) -> bytes:
    lines = [f"{'GET' if body is None else 'POST'} {target} HTTP/1.0", "Host: localhost"]
    data = b""
    if body is not None:
        data = json.dumps(body).encode()
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode() + data


def _read_head(head: bytes) -> tuple[int, int | None]:
    """Return the response's status and, if known, the length of its body."""
    first, *lines = head.decode("latin-1").split("\r\n")
    status = first.split()[1:2]
    if not first.startswith("HTTP/1.") or not status or not status[0].isdecimal():
        raise CliError(f"the listening program does not use this library; it responded {first[:80]!r}")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = fields.get("content-length", "")
    return int(status[0]), int(length) if length.isdecimal() else None


def _refusal(status: int, body: bytes) -> str:
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict) and isinstance(text := answer.get("error"), str):  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # JSON
        return printable(text, "\n")
    return f"the program refused the request with status {status}"


def _gone(program: Program, error: OSError) -> GoneError:
    if isinstance(error, (TimeoutError, BlockingIOError)):
        return _silent(program)
    return GoneError(f"cannot reach {printable(program.name)}, which may have exited ({error.strerror or error})")


def _silent(program: Program) -> SilentError:
    name = printable(program.name)
    if program.pid is not None:
        name = f"{name} (pid {program.pid})"
    return SilentError(f"{name} does not respond: its event loop is blocked, or the process is stopped")


# -- streams -------------------------------------------------------------------------------------------------------


class Messages:
    """A decoder for server-sent events that each contain a JSON object. Chunks can have any size."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[Any]:
        """Add the chunk ``piece``, and return the objects that it completes.

        Raises:
            CliError: if a message is not JSON, or is too long.
        """
        *whole, self._rest = (self._rest + piece.replace(b"\r", b"")).split(b"\n\n")
        if len(self._rest) > _LARGEST:
            raise CliError(f"the program sent a message larger than {_LARGEST} bytes")
        return [decoded(data) for message in whole if (data := _message_data(message))]


def _message_data(message: bytes) -> bytes:
    """Return the data of a message, or an empty result for a comment, which only keeps the connection alive."""
    lines = [line for line in message.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(line.removeprefix(b"data:") for line in lines)


class Stream:
    """A stream of objects, which ends when the program exits or the reader closes the output ``shown``.

    As a context manager, it closes the exchange.

    Args:
        exchange: the request.
        shown: the output on which the objects are printed.
        timeout: the maximum number of seconds to wait for the start of the response, and for the object in `first`.

    Raises:
        CliError: if the program rejects the request.
    """

    def __init__(self, exchange: Exchange, shown: TextIO | None = None, *, timeout: float) -> None:
        self._exchange = exchange
        self._messages = Messages()
        self._shown = shown
        self._timeout = timeout
        _, begun = exchange.head(until=monotonic() + timeout)
        # After the headers, a stream may be silent for a long time.
        exchange.set_timeout(None)
        self._received = deque(self._messages.feed(begun))
        #: True if the stream has ended or the reader has closed the output.
        self.ended: bool = False
        #: True if the reader has closed the output.
        self.unread: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exchange.__exit__(kind, error, traceback)

    def first(self) -> Any:
        """Wait for the first object.

        Raises:
            GoneError: if no object arrives within the timeout.
        """
        until = monotonic() + self._timeout
        while not self._received and not self.ended:
            if (left := until - monotonic()) <= 0:
                raise self._exchange.silent()
            self._received.extend(self.take(left))
        if not self._received:
            raise GoneError("the program exited before it responded")
        return self._received.popleft()

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the objects as they arrive."""
        while self._received or not self.ended:
            if self._received:
                yield self._received.popleft()
            else:
                self._received.extend(self.take())

    def fileno(self) -> int:
        """Return the descriptor for `select`. Call `take` first, because objects may already have been received."""
        return self._exchange.fileno()

    def take(self, timeout: float | None = None, *others: Readable) -> list[Any]:
        """Wait up to ``timeout`` seconds for objects and return them. Stop waiting if one of ``others`` is readable."""
        if not self._received and self._wait(timeout, others):
            try:
                piece = self._exchange.receive()
            except GoneError:
                piece = b""
            self.ended = not piece
            self._received.extend(self._messages.feed(piece))
        received = list(self._received)
        self._received.clear()
        return received

    def _wait(self, timeout: float | None, others: tuple[Readable, ...]) -> bool:
        """Return whether the stream can be read without waiting."""
        poll = select.poll()
        for each in (self._exchange, *others):
            poll.register(each, select.POLLIN)
        if (shown := _descriptor(self._shown)) is not None:
            # No events are requested: poll always reports the error that occurs when the reader closes the output.
            poll.register(shown, 0)
        ready = dict(poll.poll(None if timeout is None else max(0.0, timeout) * 1000))
        if shown is not None and ready.get(shown, 0) & (select.POLLERR | select.POLLHUP):
            self.ended = self.unread = True
            return False
        return self._exchange.fileno() in ready


def _descriptor(shown: TextIO | None) -> int | None:
    try:
        return None if shown is None else shown.fileno()
    except (OSError, ValueError):
        return None

"""The client of a program's control socket: finding the program, requests, and streams of server-sent events.

Requests are HTTP/1.0, one connection for each: the response is what comes until the end, never cut into chunks, so that
`select` can wait for several responses at once without threads. `http.client` reads ahead, and importing it takes as
long as everything else that `lifecycle ctl ps` does.
"""

from __future__ import annotations

import json
import select
from collections import deque
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TextIO

from lifecycle._text import printable
from lifecycle.cli.output import CliError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from lifecycle.observe.sockets import Program

__all__ = [
    "Client",
    "Exchange",
    "GoneError",
    "Messages",
    "NoProgramError",
    "SilentError",
    "Stream",
    "choose",
    "decoded",
]

#: The exit status if there is no such program.
_NO_PROGRAM: Final = 4
#: Seconds for a question that a program answers at once.
TIMEOUT: Final = 10.0
_END_OF_HEAD: Final = b"\r\n\r\n"
_CHUNK: Final = 65_536
_OK: Final = 200
#: Bytes of a head.
_LONGEST_HEAD: Final = 65_536
#: Bytes of a response, or of a message of a stream. A state with ten thousand workers has a tenth of it.
_LARGEST: Final = 64 * 1024 * 1024
#: Seconds for bytes that have been received already.
_AT_ONCE: Final = 0.01


class NoProgramError(CliError):
    """No program of that name runs here, or none at all."""

    status = _NO_PROGRAM


class GoneError(CliError):
    """The program has ended, or ended before its response was complete."""


class SilentError(GoneError):
    """The program does not respond in time."""


# -- programs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Client:
    """Sends requests to one program."""

    program: Program

    @property
    def name(self) -> str:
        """The name of the program, safe for a terminal."""
        return printable(self.program.name)

    def get(self, target: str, **query: object) -> Any:
        """Return the JSON at ``target``.

        Raises:
            CliError: if the program refuses, or does not respond.
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
        """Send ``body`` as JSON; the caller waits for the response."""
        return Exchange(self.program, target, body)

    def stream(self, target: str, shown: TextIO | None = None, **query: object) -> Stream:
        """Open a stream of events, which ends when the reader of ``shown`` has gone."""
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
    """Return the client of the program called ``name``, or of the only one.

    Raises:
        NoProgramError: if there is none.
        UsageError: if there are several, and none was named.
    """
    from lifecycle.observe.sockets import find

    programs = find(name)
    if len(programs) == 1:
        return Client(programs[0])
    if programs:
        which = "run here" if name is None else f"are called {name!r}"
        raise UsageError(f"several programs {which}; name one with -p:\n{_list_names(programs)}")
    if name is None:
        raise NoProgramError(
            "no program with a control socket is running; start one with `lifecycle run`, or add a ControlSocket"
        )
    others = find()
    known = f"; there {'is' if len(others) == 1 else 'are'}\n{_list_names(others)}" if others else ", nor any other"
    raise NoProgramError(f"no program called {name!r} runs here{known}")


def _list_names(programs: Sequence[Program]) -> str:
    return "\n".join(f"  {printable(each.name)}" for each in programs)


def _with_query(target: str, query: dict[str, object]) -> str:
    if not query:
        return target
    from urllib.parse import urlencode

    return f"{target}?{urlencode(query)}"


# -- requests ------------------------------------------------------------------------------------------------------


class Exchange:
    """A request to ``program`` and its response; closed at the end of its block.

    ``timeout`` is in seconds, for connecting and for each piece of the response. None: no limit.

    Raises:
        GoneError: if the program does not listen.
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
        """For `select`."""
        return self._socket.fileno()

    def set_timeout(self, seconds: float | None) -> None:
        """Replace the timeout."""
        self._until = None
        # Zero would make the socket non-blocking, and received bytes could not be read.
        self._socket.settimeout(None if seconds is None else max(seconds, _AT_ONCE))

    def is_answered(self) -> bool:
        """Whether part of the response has come, or none will."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def body(self, *, until: float | None = None, most: int = _LARGEST) -> bytes:
        """Return the whole response, of at most ``most`` bytes, waiting until ``until`` by the monotonic clock.

        Raises:
            CliError: if the program refuses (with its text), or the response is too long.
            GoneError: if the response does not come, or is not complete.
        """
        length, begun = self.head(until=until)
        whole = self._rest(begun, most)
        if length is not None and len(whole) < length:
            raise GoneError("the program ended before it had answered")
        return whole

    def head(self, *, until: float | None = None) -> tuple[int | None, bytes]:
        """Return the length of the response, if known, and what has been received of it; else as `body`."""
        self._until = until
        received = b""
        while _END_OF_HEAD not in received:
            piece = self.receive()
            if not piece or len(received) > _LONGEST_HEAD:
                raise GoneError("the program ended before it had answered")
            received += piece
        head, _, begun = received.partition(_END_OF_HEAD)
        status, length = _read_head(head)
        if status != _OK:
            raise CliError(_refusal(status, self._rest(begun, _LARGEST)))
        return length, begun

    def receive(self) -> bytes:
        """Return the next piece of the response; empty at its end.

        Raises:
            GoneError: if it does not come in time, or the connection was cut.
        """
        try:
            if self._until is not None and monotonic() > self._until:
                self._socket.settimeout(0)
            return self._socket.recv(_CHUNK)
        except OSError as error:
            raise _gone(self._program, error) from error

    def silent(self) -> SilentError:
        """The error for a response that does not come in time."""
        return _silent(self._program)

    def _rest(self, begun: bytes, most: int) -> bytes:
        whole = bytearray(begun)
        while piece := self.receive():
            whole += piece
            if len(whole) > most:
                raise CliError(f"{printable(self._program.name)} answers more than {most} bytes")
        return bytes(whole)


def decoded(body: bytes) -> Any:
    """Decode the JSON of a program.

    Raises:
        CliError: if it is not JSON.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise CliError(f"the program answered something that is not JSON: {body[:80]!r}") from None


def _encode(target: str, body: object) -> bytes:
    lines = [f"{'GET' if body is None else 'POST'} {target} HTTP/1.0", "Host: localhost"]
    data = b""
    if body is not None:
        data = json.dumps(body).encode()
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode() + data


def _read_head(head: bytes) -> tuple[int, int | None]:
    """Return the status and the length of the response."""
    first, *lines = head.decode("latin-1").split("\r\n")
    status = first.split()[1:2]
    if not first.startswith("HTTP/1.") or not status or not status[0].isdecimal():
        raise CliError(f"the listener is not a program of this library: it answered {first[:80]!r}")
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
    return f"the program refused, with status {status}"


def _gone(program: Program, error: OSError) -> GoneError:
    if isinstance(error, (TimeoutError, BlockingIOError)):
        return _silent(program)
    return GoneError(f"{printable(program.name)} is not there any more ({error.strerror or error})")


def _silent(program: Program) -> SilentError:
    name = printable(program.name)
    if program.pid is not None:
        name = f"{name} (pid {program.pid})"
    return SilentError(f"{name} does not answer: its event loop is blocked, or the process is stopped")


# -- streams -------------------------------------------------------------------------------------------------------


class Messages:
    """Decodes server-sent events with a JSON object each, from pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[Any]:
        """Return the objects that end in ``piece``.

        Raises:
            CliError: if one is not JSON, or too long.
        """
        *whole, self._rest = (self._rest + piece.replace(b"\r", b"")).split(b"\n\n")
        if len(self._rest) > _LARGEST:
            raise CliError(f"the program sends a message of more than {_LARGEST} bytes")
        return [decoded(data) for message in whole if (data := _message_data(message))]


def _message_data(message: bytes) -> bytes:
    """Return the data of a message; nothing for a comment, which keeps the connection alive."""
    lines = [line for line in message.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(line.removeprefix(b"data:") for line in lines)


class Stream:
    """The objects of a stream, until the program ends or the reader of ``shown`` has gone.

    As a context manager it closes the exchange.

    Args:
        exchange: the request.
        shown: where the objects are printed.
        timeout: seconds until the response begins, and seconds that `first` waits.

    Raises:
        CliError: if the program refuses.
    """

    def __init__(self, exchange: Exchange, shown: TextIO | None = None, *, timeout: float) -> None:
        self._exchange = exchange
        self._messages = Messages()
        self._shown = shown
        self._timeout = timeout
        _, begun = exchange.head(until=monotonic() + timeout)
        # From now on there may be nothing to send for long.
        exchange.set_timeout(None)
        self._received = deque(self._messages.feed(begun))
        #: Whether all objects have come, or the reader has gone.
        self.ended: bool = False
        #: Whether the reader has gone.
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
            GoneError: if none comes.
        """
        until = monotonic() + self._timeout
        while not self._received and not self.ended:
            if (left := until - monotonic()) <= 0:
                raise self._exchange.silent()
            self._received.extend(self.take(left))
        if not self._received:
            raise GoneError("the program ended before it had answered")
        return self._received.popleft()

    def __iter__(self) -> Iterator[Any]:
        """Each object as it comes."""
        while self._received or not self.ended:
            if self._received:
                yield self._received.popleft()
            else:
                self._received.extend(self.take())

    def fileno(self) -> int:
        """For `select`, after `take` has returned what was received already."""
        return self._exchange.fileno()

    def take(self, timeout: float | None = None, *others: Exchange) -> list[Any]:
        """Wait for objects, at most ``timeout`` seconds or until one of ``others`` is answered, and return them."""
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

    def _wait(self, timeout: float | None, others: tuple[Exchange, ...]) -> bool:
        """Return whether there is something to receive."""
        poll = select.poll()
        for each in (self._exchange, *others):
            poll.register(each, select.POLLIN)
        if (shown := _descriptor(self._shown)) is not None:
            # No event: only errors, which come when the reader has gone.
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

"""Client of a program's control socket: finding the program, requests, and streams of server-sent events."""

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

#: There is no such program.
NOWHERE: Final = 4
#: Seconds for a question that a program answers without doing anything.
_TIMEOUT: Final = 10.0

_END_OF_HEAD: Final = b"\r\n\r\n"
_CHUNK: Final = 65_536
_OK: Final = 200
#: Bytes of a head: what is longer comes from no program of ours.
_LONGEST_HEAD: Final = 65_536
#: Bytes of an answer; a state with ten thousand workers has a tenth of it.
_LARGEST: Final = 64 * 1024 * 1024
#: Seconds for what has come already.
_AT_ONCE: Final = 0.01

#: Bytes of a message.
_LARGEST_MESSAGE: Final = 64 * 1024 * 1024


class NoProgramError(CliError):
    """No program of that name runs here, or none at all."""

    status = NOWHERE


@dataclass(frozen=True, slots=True)
class Client:
    """Asks one program."""

    program: Program

    @property
    def name(self) -> str:
        """Of the program, as it may be printed."""
        return printable(self.program.name)

    def get(self, target: str, **query: object) -> Any:
        """What it answers, of JSON.

        Raises:
            CliError: when it refuses, or does not answer.
        """
        return decoded(self._ask(target, query))

    def text(self, target: str, **query: object) -> str:
        """What it answers, as text."""
        return self._ask(target, query).decode(errors="replace")

    def post(self, target: str, body: object) -> Any:
        """Tell it something, and wait until it has answered, however long that takes."""
        with self.tell(target, body) as exchange:
            return decoded(exchange.body())

    def tell(self, target: str, body: object) -> Exchange:
        """Tell it something; the answer is the caller's to wait for."""
        return Exchange(self.program, target, body)

    def stream(self, target: str, shown: TextIO | None = None, **query: object) -> Stream:
        """What it tells as it happens, for as long as somebody reads ``shown``."""
        exchange = Exchange(self.program, _with_query(target, query), timeout=_TIMEOUT)
        try:
            return Stream(exchange, shown, patience=_TIMEOUT)
        except BaseException:
            exchange.__exit__(None, None, None)
            raise

    def _ask(self, target: str, query: dict[str, object]) -> bytes:
        with Exchange(self.program, _with_query(target, query), timeout=_TIMEOUT) as exchange:
            return exchange.body(until=monotonic() + _TIMEOUT)


def choose(name: str | None) -> Client:
    """The program called ``name``, or the only one.

    Raises:
        NoProgramError: where there is none.
        UsageError: where there are several, and none was named.
    """
    from lifecycle.observe.sockets import find

    programs = find(name)
    if len(programs) == 1:
        return Client(programs[0])
    if programs:
        which = "run here" if name is None else f"are called {name!r}"
        raise UsageError(f"several programs {which}; name one with -p:\n{_listed(programs)}")
    if name is None:
        raise NoProgramError("no program runs here that could be asked; `lifecycle run`, or a ControlSocket, makes one")
    others = find()
    known = f"; there {'is' if len(others) == 1 else 'are'}\n{_listed(others)}" if others else ", nor any other"
    raise NoProgramError(f"no program called {name!r} runs here{known}")


def _listed(programs: Sequence[Program]) -> str:
    return "\n".join(f"  {printable(each.name)}" for each in programs)


def _with_query(target: str, query: dict[str, object]) -> str:
    if not query:
        return target
    from urllib.parse import urlencode

    return f"{target}?{urlencode(query)}"


class GoneError(CliError):
    """The program is not there any more, or has not said all that it wanted to."""


class SilentError(GoneError):
    """The program is there, and its answer is not, or not whole, in time."""


class Exchange:
    """A question that was put to ``program``; closed at the end of its block.

    ``timeout`` is in seconds, for each step: connecting, and each piece of the answer; None waits for ever.

    Raises:
        GoneError: when nobody listens there.
    """

    def __init__(self, program: Program, target: str, body: object = None, *, timeout: float | None = None) -> None:
        self._program = program
        self._until: float | None = None
        try:
            self._socket = program.connect(timeout)
        except OSError as error:
            raise _gone(program, error) from error
        try:
            self._socket.sendall(_request(target, body))
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

    def wait_for(self, seconds: float | None) -> None:
        """Have another time-out from now on."""
        self._until = None
        # Zero would be none at all: what is there already is to be had.
        self._socket.settimeout(None if seconds is None else max(seconds, _AT_ONCE))

    def is_answered(self) -> bool:
        """Whether something of the answer has come, or nothing will."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def body(self, *, until: float | None = None, most: int = _LARGEST) -> bytes:
        """The whole answer, of at most ``most`` bytes; after ``until``, by the monotonic clock, nothing is waited for.

        Raises:
            CliError: for one that refuses, with the program's text, or that is too long.
            GoneError: when it does not come, or not whole.
        """
        length, begun = self.head(until=until)
        whole = self._rest(begun, most)
        if length is not None and len(whole) < length:
            raise GoneError("the program ended before it had answered")
        return whole

    def _rest(self, begun: bytes, most: int) -> bytes:
        whole = bytearray(begun)
        while piece := self.receive():
            whole += piece
            if len(whole) > most:
                raise CliError(f"{printable(self._program.name)} answers more than {most} bytes")
        return bytes(whole)

    def head(self, *, until: float | None = None) -> tuple[int | None, bytes]:
        """How long the answer will be, if that was said, and what has come of it already; ``until`` as in `body`.

        Raises:
            CliError: for an answer that refuses; the text is the program's.
            GoneError: when it does not come.
        """
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

    def silent(self) -> SilentError:
        """The error for an answer that does not come in time."""
        return _silent(self._program)

    def receive(self) -> bytes:
        """The next piece of the answer; empty at its end.

        Raises:
            GoneError: when it is not there in time, or the connection was cut.
        """
        try:
            if self._until is not None and monotonic() > self._until:
                self._socket.settimeout(0)
            return self._socket.recv(_CHUNK)
        except OSError as error:
            raise _gone(self._program, error) from error


def decoded(body: bytes) -> Any:
    """What a program said, of JSON.

    Raises:
        CliError: for what is none.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise CliError(f"the program answered what is no JSON: {body[:80]!r}") from None


def _request(target: str, body: object) -> bytes:
    lines = [f"{'GET' if body is None else 'POST'} {target} HTTP/1.0", "Host: localhost"]
    data = b""
    if body is not None:
        data = json.dumps(body).encode()
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode() + data


def _read_head(head: bytes) -> tuple[int, int | None]:
    """The status, and how long the answer will be."""
    first, *lines = head.decode("latin-1").split("\r\n")
    status = first.split()[1:2]
    if not first.startswith("HTTP/1.") or not status or not status[0].isdecimal():
        raise CliError(f"what listens there is no program of this library: it answered {first[:80]!r}")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = fields.get("content-length", "")
    return int(status[0]), int(length) if length.isdecimal() else None


def _refusal(status: int, body: bytes) -> str:
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict) and isinstance(text := answer.get("error"), str):  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # what JSON has
        return printable(text, "\n")
    return f"the program refused, with status {status}"


def _gone(program: Program, error: OSError) -> GoneError:
    if isinstance(error, (TimeoutError, BlockingIOError)):
        return _silent(program)
    return GoneError(f"{printable(program.name)} is not there any more ({error.strerror or error})")


def _silent(program: Program) -> SilentError:
    name = printable(program.name)
    who = name if program.pid is None else f"{name} (pid {program.pid})"
    return SilentError(f"{who} does not answer: its event loop is blocked, or the process is stopped")


class Messages:
    """Takes bytes in pieces of any size, and gives the objects that have come whole."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[Any]:
        """The objects that end in ``piece``.

        Raises:
            CliError: for what is no JSON, and for one without end.
        """
        *whole, self._rest = (self._rest + piece.replace(b"\r", b"")).split(b"\n\n")
        if len(self._rest) > _LARGEST_MESSAGE:
            raise CliError(f"the program sends a message of more than {_LARGEST_MESSAGE} bytes")
        return [decoded(data) for message in whole if (data := _message_data(message))]


def _message_data(message: bytes) -> bytes:
    """What it carries; nothing for a comment, which keeps the connection alive."""
    lines = [line for line in message.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(line.removeprefix(b"data:") for line in lines)


class Stream:
    """The objects that come as the answer to ``exchange``, until the program ends or nobody reads ``shown`` any more.

    As a context manager it closes the exchange.

    Args:
        exchange: the question.
        shown: where the objects are shown.
        patience: seconds until the answer has begun, and seconds that `first` waits.

    Raises:
        CliError: for an answer that refuses.
    """

    def __init__(self, exchange: Exchange, shown: TextIO | None = None, *, patience: float) -> None:
        self._exchange = exchange
        self._messages = Messages()
        self._shown = shown
        self._patience = patience
        _, begun = exchange.head(until=monotonic() + patience)
        # That it has begun tells that somebody is there; then there may be nothing to say for long.
        exchange.wait_for(None)
        #: What has come and was not taken yet.
        self._waiting = deque(self._messages.feed(begun))
        #: Whether all has come, or nobody reads it any more.
        self.ended: bool = False
        #: Whether the latter.
        self.unread: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exchange.__exit__(kind, error, traceback)

    def first(self) -> Any:
        """What comes first.

        Raises:
            GoneError: when nothing does.
        """
        until = monotonic() + self._patience
        while not self._waiting and not self.ended:
            if (left := until - monotonic()) <= 0:
                raise self._exchange.silent()
            self._waiting.extend(self.take(left))
        if not self._waiting:
            raise GoneError("the program ended before it had answered")
        return self._waiting.popleft()

    def __iter__(self) -> Iterator[Any]:
        """Each as it comes."""
        while self._waiting or not self.ended:
            if self._waiting:
                yield self._waiting.popleft()
            else:
                self._waiting.extend(self.take())

    def fileno(self) -> int:
        """For whoever waits for more; what `take` gives without waiting comes first."""
        return self._exchange.fileno()

    def take(self, within: float | None = None, *besides: Exchange) -> list[Any]:
        """What has come; waits for something, for ``within`` seconds at most, or until one of ``besides`` answers."""
        if not self._waiting and self._wait(within, besides):
            self._receive()
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    def _receive(self) -> None:
        try:
            piece = self._exchange.receive()
        except GoneError:
            piece = b""
        self.ended = not piece
        self._waiting.extend(self._messages.feed(piece))

    def _wait(self, within: float | None, besides: tuple[Exchange, ...]) -> bool:
        """Whether there is something to receive."""
        poll = select.poll()
        for each in (self._exchange, *besides):
            poll.register(each, select.POLLIN)
        if (shown := _descriptor(self._shown)) is not None:
            # For nothing but to be told that its reader has gone.
            poll.register(shown, 0)
        ready = dict(poll.poll(None if within is None else max(0.0, within) * 1000))
        if shown is not None and ready.get(shown, 0) & (select.POLLERR | select.POLLHUP):
            self.ended = self.unread = True
            return False
        return self._exchange.fileno() in ready


def _descriptor(shown: TextIO | None) -> int | None:
    try:
        return None if shown is None else shown.fileno()
    except (OSError, ValueError):
        return None

"""One question to a program over its control socket, and the answer: HTTP/1.0, a connection for each.

With HTTP/1.0 the answer is what comes until the end, never cut into chunks: `select` tells the truth about what is
there, so that two answers can be awaited at once without threads. `http.client` reads ahead; and to import it takes as
long as everything else that `lifecycle ctl ps` does.
"""

from __future__ import annotations

import json
import select
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from lifecycle.cli.failures import CliError
from lifecycle.cli.listing import harmless

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from lifecycle.observe.sockets import Program

__all__ = ["Exchange", "GoneError", "SilentError", "decoded"]

_END_OF_HEAD: Final = b"\r\n\r\n"
_PIECE: Final = 65_536
_OK: Final = 200
#: Bytes of a head: what is longer comes from no program of ours.
_LONGEST_HEAD: Final = 65_536
#: Bytes of an answer; a state with ten thousand workers has a tenth of it.
_LARGEST: Final = 64 * 1024 * 1024
#: Seconds for what has come already.
_AT_ONCE: Final = 0.01


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
                raise CliError(f"{harmless(self._program.name)} answers more than {most} bytes")
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
            return self._socket.recv(_PIECE)
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
        return harmless(text, "\n")
    return f"the program refused, with status {status}"


def _gone(program: Program, error: OSError) -> GoneError:
    if isinstance(error, (TimeoutError, BlockingIOError)):
        return _silent(program)
    return GoneError(f"{harmless(program.name)} is not there any more ({error.strerror or error})")


def _silent(program: Program) -> SilentError:
    name = harmless(program.name)
    who = name if program.pid is None else f"{name} (pid {program.pid})"
    return SilentError(f"{who} does not answer: its event loop is blocked, or the process is stopped")

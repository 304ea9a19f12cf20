"""What a program tells as it happens: server-sent events with a JSON object each."""

from __future__ import annotations

import select
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TextIO

from lifecycle.cli.ctl.exchanges import GoneError, decoded
from lifecycle.cli.failures import CliError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from lifecycle.cli.ctl.exchanges import Exchange

__all__ = ["Messages", "Stream"]

#: Bytes of a message.
_LONGEST: Final = 64 * 1024 * 1024


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
        if len(self._rest) > _LONGEST:
            raise CliError(f"the program sends a message of more than {_LONGEST} bytes")
        return [decoded(data) for message in whole if (data := _data(message))]


def _data(message: bytes) -> bytes:
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

"""Where what a child writes ends up: bytes become lines, which go to whoever takes them.

There is no descriptor and no loop in here: the bytes come from pipes, a terminal or an engine of containers.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

__all__ = ["LIMIT", "Lines", "Output", "Receiver", "Stream", "Tail"]

#: Bytes after which a line without an end is given out in pieces.
LIMIT: Final = 4 * 1024 * 1024

Stream: TypeAlias = Literal["stdout", "stderr"]


class Output(Protocol):
    """Takes a line, without its end, that a process wrote to ``stream``; called in the loop, so it must be quick."""

    def __call__(self, line: str, stream: Stream, /) -> object:
        """Take one line."""
        ...


class Receiver:
    """Cuts the two streams into lines and gives them to ``output``, or without one to ``log`` at level INFO.

    Of stderr the last 4 KiB are kept.

    Raises:
        TypeError: for an ``output`` that cannot be called or is async.
    """

    def __init__(self, output: Output | None, log: logging.Logger) -> None:
        if output is not None and not _is_plain(output):
            raise TypeError(f"output={output!r} is no plain function of (line, stream); give one, or None for the log")
        self._log = log
        self._output: Output = self._to_log if output is None else output
        self._onlooker: Callable[[str], object] | None = None
        self._complained = False
        self._lines: dict[Stream, Lines] = {"stdout": Lines(), "stderr": Lines()}
        self._tail = Tail()

    def hear(self, onlooker: Callable[[str], object]) -> None:
        """Have each line go to ``onlooker``, too; it MUST NOT raise."""
        self._onlooker = onlooker

    def feed(self, data: bytes, stream: Stream) -> None:
        """Take what came on ``stream``; nothing, at its end."""
        if data and stream == "stderr":
            self._tail.feed(data)
        lines = self._lines[stream]
        for line in lines.feed(data) if data else lines.flush():
            self._give(line, stream)

    def tail(self) -> str:
        """The end of stderr."""
        return str(self._tail)

    def _give(self, line: str, stream: Stream) -> None:
        try:
            self._output(line, stream)
        except Exception:  # noqa: BLE001  # logged
            # Once: a receiver that is broken is so for each of a million lines.
            if not self._complained:
                self._log.exception("%r cannot take output; the line is lost (said once): %.200r", self._output, line)
            self._complained = True
        if self._onlooker is not None:
            self._onlooker(line)

    def _to_log(self, line: str, stream: Stream) -> None:
        self._log.info("%s", line, extra={"stream": stream})


class Lines:
    """Cuts a stream of bytes into lines of text, without their ends.

    What is no UTF-8 is replaced; a line longer than `LIMIT` bytes comes in pieces.
    """

    def __init__(self) -> None:
        # The beginning of the line whose end has not come yet; joined only once, so that long lines stay linear.
        self._begun: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[str]:
        """The lines that ``data`` completes."""
        first, *more = data.split(b"\n")
        self._begun.append(first)
        self._size += len(first)
        if not more:
            return self.flush() if self._size >= LIMIT else []
        *whole, rest = more
        lines = [_text(self._take()), *map(_text, whole)]
        if rest:
            self._begun, self._size = [rest], len(rest)
        return lines

    def flush(self) -> list[str]:
        """What there is of a line that will not be completed, if anything."""
        return [_text(rest)] if (rest := self._take()) else []

    def _take(self) -> bytes:
        whole = b"".join(self._begun)
        self._begun, self._size = [], 0
        return whole


class Tail:
    """The last ``size`` bytes of what it was fed."""

    def __init__(self, size: int = 4096) -> None:
        self._size = size
        self._kept = b""

    def feed(self, data: bytes) -> None:
        """Take in more, and forget the oldest."""
        self._kept = (self._kept + data)[-self._size :]

    def __str__(self) -> str:
        return self._kept.decode(errors="replace")


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode(errors="replace")


def _is_plain(function: object) -> bool:
    return callable(function) and not inspect.iscoroutinefunction(function)

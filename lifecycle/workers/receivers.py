"""Where what a child writes ends up: in lines, with whoever takes them, whichever way the bytes came."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from lifecycle.workers.lines import Lines, Tail

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

__all__ = ["Output", "Receiver", "Stream"]

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


def _is_plain(function: object) -> bool:
    return callable(function) and not inspect.iscoroutinefunction(function)

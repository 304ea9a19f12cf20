"""From bytes as they come to lines of text, with a bound on what one line may hold."""

from __future__ import annotations

import logging

__all__ = ["MAX_LINE", "Lines"]

_log = logging.getLogger("lifecycle.sources")

#: The longest line, in bytes.
MAX_LINE = 1_048_576


class Lines:
    """Cuts chunks into lines; LF ends a line and a CR before it is dropped.

    What is no UTF-8 is replaced. A line of more than `MAX_LINE` bytes is discarded to its end, and logged: half a
    command is worse than none.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._too_long = False

    def feed(self, chunk: bytes) -> list[str]:
        """The lines that ``chunk`` completes."""
        *ended, rest = chunk.split(b"\n")
        lines = [line for piece in ended if (line := self._end(piece)) is not None]
        self._hold(rest)
        return lines

    def finish(self) -> list[str]:
        """The last line, where it has no ending."""
        line = self._end(b"") if self._held or self._too_long else None
        return [] if line is None else [line]

    def _hold(self, piece: bytes) -> None:
        if not self._too_long and len(self._held) + len(piece) > MAX_LINE:
            self._too_long = True
            self._held.clear()
            _log.error("a line of input has more than %d bytes and is discarded; give shorter ones", MAX_LINE)
        if not self._too_long:
            self._held += piece

    def _end(self, piece: bytes) -> str | None:
        self._hold(piece)
        line = None if self._too_long else self._held.decode("utf-8", "replace").removesuffix("\r")
        self._held.clear()
        self._too_long = False
        return line

"""Bytes in, lines out; no descriptor and no loop in here."""

from __future__ import annotations

from typing import Final

__all__ = ["LIMIT", "Lines", "Tail"]

#: Bytes after which a line without an end is given out in pieces.
LIMIT: Final = 4 * 1024 * 1024


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

"""Who listens on a port of this machine, so that a stranger who answers there is not taken for the process.

Listeners are told apart by their sockets' numbers (inodes), as Linux shows them. Whose process it is that listens is
not asked: it may rightly be another, as with a container whose engine publishes the port.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Listeners"]

_FILES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENING: Final = "0A"
_MAPPED: Final = bytes(10) + b"\xff\xff"
#: Where one has to listen to be reached at 127.0.0.1 or ::1.
_LOCAL: Final = {
    address
    for four in (bytes(4), bytes([127, 0, 0, 1]))
    for address in (four, _MAPPED + four, bytes(12) + four, bytes(15) + b"\x01")
}


class Listeners:
    """Those on ``port``, and which of them have been there from before a start."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._before: set[str] = set()

    def remember(self) -> None:
        """Those who are there now have nothing to do with what is started next."""
        self._before = set(_listening(self._port))

    def objection(self) -> str:
        """Why an answer from there says nothing; empty if it may be believed.

        It is where the system shows no listener at all: that is so outside Linux, or behind a redirection.
        """
        now = set(_listening(self._port))
        if now and now <= self._before:
            return "what answers there has listened since before the start"
        return ""


def _listening(port: int) -> Iterator[str]:
    """The numbers of the sockets that listen on ``port`` for connections from this machine."""
    for path in _FILES:
        with suppress(OSError), Path(path).open() as table:
            next(table, None)
            for _, local, _, state, *more in map(str.split, table):
                if state != _LISTENING:
                    break  # the listening ones come first, and of the others there may be many
                address, _, at = local.partition(":")
                if int(at, 16) == port and _packed(address) in _LOCAL:
                    yield more[5]


def _packed(address: str) -> bytes:
    """An address in the order of the network; each word of it is written as this machine has it in memory."""
    words = (int(address[start : start + 8], 16) for start in range(0, len(address), 8))
    return b"".join(word.to_bytes(4, sys.byteorder) for word in words)

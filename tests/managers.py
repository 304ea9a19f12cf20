"""A replacement for systemd: a socket that receives programs' notifications."""

from __future__ import annotations

import secrets
import select
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import pytest

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Manager"]

_LIMIT = 30.0  # the time limit in seconds, which a working program never approaches


class Manager:
    """Receives notifications at its `address`, and stores the fields of each in order."""

    def __init__(self, directory: Path | None = None) -> None:
        #: The value for NOTIFY_SOCKET: a path, or an abstract name if no directory is given.
        self.address = f"@lifecycle-test-{secrets.token_hex(8)}" if directory is None else str(directory / "notify")
        self.received: list[dict[str, str]] = []
        # The number of notifications that `until` has consumed.
        self._at = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self._name)
        self._socket.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _name(self) -> str:
        return self.address.replace("@", "\0", 1) if self.address.startswith("@") else self.address

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def fill(self) -> None:
        """Fill the socket's queue, so that senders block until the next `read`."""
        # systemd sets a long queue, which the send buffer of one socket does not fill.
        while self._fill_from_one_socket():
            pass

    def _fill_from_one_socket(self) -> bool:
        """Return whether the socket's queue had space for a message."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.connect(self._name)
            sent = 0
            with suppress(BlockingIOError):
                while True:
                    sender.send(b"FILLED=1")
                    sent += 1
        return sent > 0

    def read(self) -> list[dict[str, str]]:
        """Return all notifications so far."""
        while True:
            try:
                data = self._socket.recv(4096)
            except BlockingIOError:
                return self.received
            self.received.append(dict(line.split("=", 1) for line in data.decode().split("\n")))

    def until(self, field: str, value: str) -> dict[str, str]:
        """Return the next notification with ``field=value`` that has not been consumed yet."""
        end = time.monotonic() + _LIMIT
        while True:
            while self._at < len(self.read()):
                notice = self.received[self._at]
                self._at += 1
                if notice.get(field) == value:
                    return notice
            if not select.select([self._socket], [], [], max(0, end - time.monotonic()))[0]:
                pytest.fail(f"{field}={value} was not sent; received: {self.received}")

"""Ready when a TCP port of this machine accepts connections."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, Final

from lifecycle.workers.readiness.listeners import Listeners
from lifecycle.workers.readiness.polling import poll

if TYPE_CHECKING:
    from lifecycle.workers.stdio import Command

__all__ = ["Port"]

_HIGHEST: Final = 65_535


class Port:
    """Ready when something that was not there before accepts TCP connections on port ``number`` of 127.0.0.1 or ::1.

    Raises:
        ValueError: for what is no number of a port.
    """

    def __init__(self, number: str) -> None:
        if not (number.isascii() and number.isdigit()) or not 0 < int(number) <= _HIGHEST:
            raise ValueError(f"N is a number from 1 to {_HIGHEST}")
        self.number: int = int(number)
        self.news: str = ""
        self._listeners = Listeners(self.number)

    def __str__(self) -> str:
        return f"accept connections on 127.0.0.1:{self.number}"

    def prepare(self, command: Command) -> Command:
        """Take note of who listens there already."""
        self._listeners.remember()
        return command

    async def reached(self, ours: Any) -> None:  # noqa: ARG002  # a listener may be somebody whom it asked to be
        """Nothing tells us, so it is asked."""
        await poll(self._answers)

    def close(self) -> None:
        """Nothing is held."""

    async def _answers(self) -> bool:
        if not (await self._accepts(socket.AF_INET, "127.0.0.1") or await self._accepts(socket.AF_INET6, "::1")):
            self.news = ""
            return False
        self.news = self._listeners.objection()
        return not self.news

    async def _accepts(self, family: socket.AddressFamily, host: str) -> bool:
        try:
            with socket.socket(family) as probe:
                probe.setblocking(False)
                await asyncio.get_running_loop().sock_connect(probe, (host, self.number))
                # Where nobody listens, the system may give the probe this very port: it has reached itself.
                return bool(probe.getsockname() != probe.getpeername())
        except OSError:
            return False

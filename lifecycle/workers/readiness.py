"""When a process counts as ready: the condition that is given as text, and the wait for it."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Port"]

_HIGHEST = 65_535


@dataclass(frozen=True, slots=True)
class Port:
    """Ready when something accepts TCP connections on ``number`` at 127.0.0.1."""

    number: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``port:N``.

        Raises:
            ValueError: for anything else.
        """
        kind, _, number = text.partition(":")
        if kind != "port" or not (number.isascii() and number.isdigit()) or not 0 < int(number) <= _HIGHEST:
            raise ValueError(f"ready={text!r} is no condition; give 'port:N' with N from 1 to {_HIGHEST}")
        return cls(int(number))

    def __str__(self) -> str:
        return f"accept connections on 127.0.0.1:{self.number}"

    async def reached(self, life: asyncio.Future[Any]) -> bool:
        """Wait until it is; False once ``life`` has ended. Nothing tells us, so it is asked at growing intervals."""
        pause = 0.01
        while not life.done():
            if await self._answers():
                return True
            await asyncio.wait({life}, timeout=pause)
            pause = min(0.2, pause * 1.5)
        return False

    async def _answers(self) -> bool:
        with socket.socket() as probe:
            probe.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(probe, ("127.0.0.1", self.number))
            except OSError:
                return False
        return True

"""What the tests here do with a member and the link to it."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from lifecycle.workers.pool.orders import Order

if TYPE_CHECKING:
    from pathlib import Path

    from lifecycle.workers import Exit, ProcessWorker
    from lifecycle.workers.pool.frames import ProtocolError
    from lifecycle.workers.pool.links import Link
    from lifecycle.workers.pool.requests import Request

__all__ = ["LIMIT", "Spawn", "Up", "chunks", "outcome", "python", "until"]

LIMIT = 30.0


class Spawn(Protocol):
    """Starts a member that serves ``target``."""

    async def __call__(self, target: Any, *init: Any, **how: Any) -> Up: ...


@dataclass
class Up:
    """A member and the link to it."""

    worker: ProcessWorker
    link: Link
    broken: list[ProtocolError] = field(default_factory=list)

    def call(self, function: str, *args: Any, window: int = 0, **kwargs: Any) -> Request:
        return self.link.call(Order(function, args, kwargs, deadline=LIMIT), window=window)

    async def result(self, function: str, *args: Any, **kwargs: Any) -> Any:
        """What the call comes to; an error is returned, too."""
        return await outcome(self.call(function, *args, **kwargs))

    async def end(self) -> Exit:
        async with asyncio.timeout(LIMIT):
            return await self.worker.wait()


async def outcome(request: Request) -> Any:
    async with asyncio.timeout(LIMIT):
        await asyncio.wait({request.future})
    return request.future.exception() or request.future.result()


async def chunks(request: Request) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(LIMIT):
        try:
            while True:
                found.append(await request.next_chunk())
        except StopAsyncIteration:
            return found


async def until(path: Path) -> str:
    """The name of a file, when it is there."""
    async with asyncio.timeout(LIMIT):
        while not path.exists():
            await asyncio.sleep(0.001)
    return str(path)


def python(code: str) -> list[str]:
    """A program that is no member of ours."""
    return [sys.executable, "-c", code]

"""A worker process and its connection, for tests of the protocol."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from lifecycle.backoff import Intensity
from lifecycle.workers import ProcessWorker
from lifecycle.workers.pool import Heartbeat, Process, Recycle, Sessions
from lifecycle.workers.pool.connection import Connection
from lifecycle.workers.pool.records import CallSpec
from lifecycle.workers.pool.settings import PoolSettings

if TYPE_CHECKING:
    from pathlib import Path

    from lifecycle.workers import Exit
    from lifecycle.workers.pool.connection import WireCall
    from lifecycle.workers.pool.protocol import ProtocolError

__all__ = ["LIMIT", "Spawn", "Up", "chunks", "connect", "outcome", "python", "spec_of", "until"]

LIMIT = 30.0


class Spawn(Protocol):
    """A function that starts a worker for ``target``."""

    async def __call__(self, target: Any, *init: Any, **how: Any) -> Up: ...


@dataclass
class Up:
    """A worker process and its connection."""

    process: ProcessWorker
    connection: Connection
    broken: list[ProtocolError] = field(default_factory=list)

    def call(self, function: str, *args: Any, window: int = 0, **kwargs: Any) -> WireCall:
        return self.connection.call(spec_of(function, *args, **kwargs), window=window)

    async def result(self, function: str, *args: Any, **kwargs: Any) -> Any:
        """Return the outcome of a call, which may be an error."""
        return await outcome(self.call(function, *args, **kwargs))

    async def end(self) -> Exit:
        async with asyncio.timeout(LIMIT):
            return await self.process.wait()


def settings_of(target: Any, *init: Any, codec: str = "pickle", concurrency: int = 1) -> PoolSettings:
    return PoolSettings.read(
        "pool",
        target,
        size=(1, 1),
        init=init,
        queue=0,
        deadline=LIMIT,
        concurrency=concurrency,
        codec_name=codec,
        recycle=Recycle(),
        sessions=Sessions(),
        heartbeat=Heartbeat(),
        process=Process(),
        intensity=Intensity(5, 30.0),
    )


def spec_of(function: str, *args: Any, deadline: float = LIMIT, **kwargs: Any) -> CallSpec:
    return CallSpec(settings_of("json:loads"), function, args, kwargs, deadline=deadline)


def connect(target: Any, *init: Any, codec: str = "pickle", concurrency: int = 1, **how: Any) -> Up:
    """Return a worker that has not been started, and its connection."""
    settings = settings_of(target, *init, codec=codec, concurrency=concurrency)
    broken: list[ProtocolError] = []
    connection = Connection("worker", settings, on_protocol_error=broken.append)
    worker = ProcessWorker("worker", *settings.target.argv, stdio=connection.pipes, contain="group", **how)
    return Up(worker, connection, broken)


async def outcome(request: WireCall) -> Any:
    async with asyncio.timeout(LIMIT):
        await asyncio.wait({request.future})
    return request.future.exception() or request.future.result()


async def chunks(request: WireCall) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(LIMIT):
        try:
            while True:
                found.append(await request.next_chunk())
        except StopAsyncIteration:
            return found


async def until(path: Path) -> str:
    """Wait until a file exists, and return its name."""
    async with asyncio.timeout(LIMIT):
        while not path.exists():
            await asyncio.sleep(0.001)
    return str(path)


def python(code: str) -> list[str]:
    """Return a command that runs ``code`` in Python."""
    return [sys.executable, "-c", code]

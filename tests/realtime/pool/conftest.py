"""Pool workers for a test, each with its connection. They are stopped after the test."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.conformance.pool import phases_checked
from tests.realtime.pool.workers import LIMIT, Up, connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.realtime.pool.workers import Spawn


@pytest.fixture(autouse=True)
def _phases_checked() -> Iterator[None]:
    with phases_checked():
        yield


@pytest_asyncio.fixture
async def spawn() -> AsyncIterator[Spawn]:
    """Return a function that starts a worker and may return before the worker is ready."""
    workers: list[Up] = []

    async def spawned(
        target: Any, *init: Any, concurrency: int = 1, by: str = "pickle", stop_timeout: float = 10.0
    ) -> Up:
        worker = connect(target, *init, codec=by, concurrency=concurrency, stop_timeout=stop_timeout)
        await worker.process.start()
        workers.append(worker)
        return worker

    yield spawned
    for worker in workers:
        worker.process.ask_to_stop(0)
        await worker.end()


@pytest_asyncio.fixture
async def up(spawn: Spawn) -> Spawn:
    """Return a function that starts a worker and waits until it is ready."""

    async def started(target: Any, *init: Any, **how: Any) -> Up:
        served = target if isinstance(target, list) else f"tests.realtime.pool.worker_targets:{target}"
        worker = await spawn(served, *init, **how)
        async with asyncio.timeout(LIMIT):
            await worker.connection.ready()
        return worker

    return started

"""Members that are started for a test, each with its link, and gone after it."""

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
    """Starts a member; it may not be ready yet."""
    members: list[Up] = []

    async def spawned(
        target: Any, *init: Any, concurrency: int = 1, by: str = "pickle", stop_timeout: float = 10.0
    ) -> Up:
        member = connect(target, *init, codec=by, concurrency=concurrency, stop_timeout=stop_timeout)
        await member.worker.start()
        members.append(member)
        return member

    yield spawned
    for member in members:
        member.worker.ask_to_stop(0)
        await member.end()


@pytest_asyncio.fixture
async def up(spawn: Spawn) -> Spawn:
    """Starts a member, and waits until it is ready."""

    async def started(target: Any, *init: Any, **how: Any) -> Up:
        served = target if isinstance(target, list) else f"tests.realtime.pool.served:{target}"
        member = await spawn(served, *init, **how)
        async with asyncio.timeout(LIMIT):
            await member.connection.ready()
        return member

    return started

"""Members that are started for a test, each with its link, and gone after it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest_asyncio

from lifecycle.workers import ProcessWorker
from lifecycle.workers.pool.codecs import codec
from lifecycle.workers.pool.links import Link
from lifecycle.workers.pool.targets import read_target
from tests.realtime.pool.members import LIMIT, Up

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lifecycle.workers.pool.frames import ProtocolError
    from tests.realtime.pool.members import Spawn


@pytest_asyncio.fixture
async def spawn() -> AsyncIterator[Spawn]:
    """Starts a member; it may not be ready yet."""
    members: list[Up] = []

    async def spawned(
        target: Any, *init: Any, concurrency: int = 1, by: str = "pickle", stop_timeout: float = 10.0
    ) -> Up:
        given = read_target("member", target)
        broken: list[ProtocolError] = []
        link = Link("member", codec(by), given.setup(init, concurrency=concurrency), broken=broken.append)
        worker = ProcessWorker("member", *given.argv, stdio=link.pipes, contain="group", stop_timeout=stop_timeout)
        member = Up(worker, link, broken)
        await worker.start()
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
            await member.link.ready()
        return member

    return started

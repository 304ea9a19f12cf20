"""Helpers for tests that wait for a bridge's events."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from lifecycle.testing import Recorder
from tests.nats_servers import LIMIT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.js import JetStreamContext

    from lifecycle.bridges import NatsBridge
    from tests.nats_servers import NatsProcess

__all__ = ["Box", "answered", "by_hand"]


class Box(Recorder):
    """A handler that stores events and lets a test wait for them."""

    def __init__(self) -> None:
        super().__init__()
        self._stirred = asyncio.Event()

    def __call__(self, event: Any) -> None:
        super().__call__(event)
        self._stirred.set()

    async def wait(self, count: int) -> list[Any]:
        """Wait for at least ``count`` events."""
        async with asyncio.timeout(LIMIT):
            while len(self.events) < count:
                self._stirred.clear()
                await self._stirred.wait()
        return self.events


async def answered(js: JetStreamContext, receiver: NatsBridge) -> None:
    """Wait until every event that the server delivered to the group has been acknowledged or returned."""
    async with asyncio.timeout(LIMIT):
        while (await js.consumer_info(receiver._settings.stream, receiver.name)).num_ack_pending:
            await asyncio.sleep(0.005)


@asynccontextmanager
async def by_hand(server: NatsProcess, patience: float = 5.0) -> AsyncIterator[JetStreamContext]:
    """Yield a nats-py client that waits at most ``patience`` seconds for each response."""
    import nats

    client = await nats.connect(server.url)
    try:
        yield client.jetstream(timeout=patience)
    finally:
        await client.close()

"""A worker of a job queue that runs during a block."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lifecycle.flows import JobQueue
    from lifecycle.flows.definition import Item

__all__ = ["working"]


@asynccontextmanager
async def working(queue: JobQueue, *flows: Item, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    """Work on the jobs of these flows until the block ends."""
    work = asyncio.create_task(queue.work({flow.name: flow for flow in flows}, **options))
    try:
        yield work
    finally:
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work

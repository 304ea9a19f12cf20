"""The CPU time of one event, by the number of topics and by the number of routes."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from lifecycle.control import Event, Router
from lifecycle.control.router import call_directly

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from benchmarks._curves_plots import Points

__all__ = ["by_routes", "by_topics"]

#: The number of events that are timed together, and the minimum number of such chunks.
CHUNK, CHUNKS = 5000, 30
#: The limit of `cold_over_bare` in benchmarks.router.
LIMIT = 60


def by_topics(sizes: tuple[int, ...]) -> Points:
    """Measure events whose topics recur in turn. All topics match one route."""
    return asyncio.run(_by_topics(sizes))


async def _by_topics(sizes: tuple[int, ...]) -> Points:
    router = Router()
    router.handle("job/*", _handle)
    costs = [
        await _costs(partial(call_directly, router), (f"job/{each % size}" for each in count()), least=size)
        for size in sizes
    ]
    return {"call": [cost for cost, _ in costs]}, _limits([bare for _, bare in costs])


def by_routes(sizes: tuple[int, ...]) -> Points:
    """Measure an event whose topic recurs, and events with new topics for all routes in turn."""
    return asyncio.run(_by_routes(sizes))


async def _by_routes(sizes: tuple[int, ...]) -> Points:
    known: list[float] = []
    new: list[float] = []
    bares: list[float] = []
    for size in sizes:
        router = Router()
        for number in range(size):
            router.handle(f"svc{number}/*/x", _handle)
        known.append((await _costs(partial(call_directly, router), ("svc0/a/x" for _ in count())))[0])
        topics = (f"svc{each % size}/{each}/x" for each in count())
        # The first event of each route creates its match, so that later events must be in the majority.
        cost, bare = await _costs(partial(call_directly, router), topics, least=3 * size)
        new.append(cost)
        bares.append(bare)
    return {"known topic": known, "new topic": new}, _limits(bares)


def _limits(bares: list[float]) -> list[float]:
    """Return the same limit for all points, because a bare await does not depend on the load."""
    return [LIMIT * statistics.median(bares)] * len(bares)


async def _handle(_event: Any) -> None:
    pass


async def _costs(
    dispatch: Callable[[Event], Awaitable[object]], topics: Iterator[str], *, least: int = 0
) -> tuple[float, float]:
    """Return the microseconds per event, and the same for a bare await, for at least ``least`` events."""
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(max(CHUNKS, least // CHUNK)):
        events = [Event(topic) for topic in islice(topics, CHUNK)]
        bare.append(await _timed(_handle, events))
        ours.append(await _timed(dispatch, events))
    return statistics.median(ours), statistics.median(bare)


async def _timed(call: Callable[[Event], Awaitable[object]], events: list[Event]) -> float:
    gc.disable()
    began = time.process_time()
    for event in events:
        await call(event)
    taken = time.process_time() - began
    gc.enable()
    return taken / len(events) * 1e6

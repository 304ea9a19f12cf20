"""The time of one pool call, by the number of callers."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from benchmarks._pool_peers import executor
from benchmarks._pool_targets import echo
from lifecycle.workers.pool import Pool

if TYPE_CHECKING:
    from benchmarks._curves_plots import Points
    from benchmarks._pool_calls import Call

__all__ = ["by_callers"]

WORKERS, CALLS, ROUNDS = 2, 256, 9
VALUE = b"x" * 1000


def by_callers(sizes: tuple[int, ...]) -> Points:
    """Measure calls of 1 KB to two workers. The limit is half the time of a `ProcessPoolExecutor`."""
    return asyncio.run(_by_callers(sizes))


async def _by_callers(sizes: tuple[int, ...]) -> Points:
    async with AsyncExitStack() as stack:
        size = (WORKERS, WORKERS)
        queued = await stack.enter_async_context(Pool("queued", "benchmarks._pool_targets:echo", size=size))
        target = "benchmarks._pool_targets:echo_async"
        pipelined = await stack.enter_async_context(Pool("pipelined", target, size=size, concurrency=32))
        processes = stack.enter_context(executor(WORKERS))
        loop = asyncio.get_running_loop()
        calls: dict[str, Call] = {
            "one call per worker": partial(queued.call, "echo"),
            "32 calls per worker": partial(pipelined.call, "echo_async"),
            "executor": lambda value: loop.run_in_executor(processes, echo, value),
        }
        found = {name: [await _best(call, size) for size in sizes] for name, call in calls.items()}
    return found, [each / 2 for each in found.pop("executor")]


async def _best(call: Call, callers: int) -> float:
    """Return the microseconds per call of the fastest round."""
    return min([await _round(call, callers) for _ in range(ROUNDS)])


async def _round(call: Call, callers: int) -> float:
    async def caller() -> None:
        for _ in range(CALLS // callers):
            await call(VALUE)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller())
    return (time.perf_counter() - began) / CALLS * 1e6

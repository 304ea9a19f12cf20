"""The cost of a call through a running pool: a single call, many concurrent calls, and an item of a stream."""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from benchmarks._measure import interleaved, ratio
from benchmarks._pool_peers import Pipe, executor
from benchmarks._pool_targets import echo
from lifecycle.workers.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks._measure import Samples

    Call = Callable[[bytes], Awaitable[object]]
    Case = Callable[[], Awaitable[float]]

__all__ = ["calls"]

ROUNDS = 21
#: The number of attempts. The best result is used. Attempts are short, so some run undisturbed even on a busy machine.
TRIES = 7
CALLS = 96
ITEMS = 1000
CALLERS = 16
WORKERS = 2
VALUE = b"x" * 1000


def calls(runner: asyncio.Runner) -> dict[str, object]:
    """Return all figures for calls."""
    samples = _samples(runner)
    return {
        "roundtrip_over_pipe": ratio(samples, "pool", "pipe"),
        "executor_over_roundtrip": ratio(samples, "executor", "pool"),
        "pipelined_calls_per_s_over_executor": ratio(samples, "executor_many", "pool_pipelined"),
        "queued_calls_per_s_over_executor": ratio(samples, "executor_many", "pool_queued"),
        "stream_items_over_calls": ratio(samples, "pool", "stream"),
        "microseconds_a_call": {name: round(statistics.median(each) * 1e6, 1) for name, each in samples.items()},
    }


def _samples(runner: asyncio.Runner) -> Samples:
    stack = AsyncExitStack()
    cases = runner.run(_everyone(stack))
    try:
        return interleaved({name: partial(_seconds, runner, case) for name, case in cases.items()}, rounds=ROUNDS)
    finally:
        runner.run(stack.aclose())


def _seconds(runner: asyncio.Runner, case: Case) -> float:
    async def measured() -> float:
        return min([await case() for _ in range(TRIES)])

    return runner.run(measured())


async def _everyone(stack: AsyncExitStack) -> dict[str, Case]:
    """Start all cases. Each case is a function that runs a round and returns the seconds per call or item."""
    pipe = await stack.enter_async_context(Pipe())
    alone = await _started(stack, "Target", 1)
    queued = await _started(stack, "Target", WORKERS)
    pipelined = await _started(stack, "echo_async", WORKERS, concurrency=CALLERS // WORKERS)
    return {
        "pipe": partial(_in_turn, pipe.echo),
        "pool": partial(_in_turn, partial(alone.call, "echo")),
        "executor": partial(_in_turn, _executor(stack, 1)),
        "pool_pipelined": partial(_at_once, partial(pipelined.call, "echo_async")),
        "pool_queued": partial(_at_once, partial(queued.call, "echo")),
        "executor_many": partial(_at_once, _executor(stack, WORKERS)),
        "stream": partial(_streamed, alone),
    }


async def _started(stack: AsyncExitStack, target: str, workers: int, *, concurrency: int = 1) -> Pool:
    size = (workers, workers)
    pool = Pool(target, f"benchmarks._pool_targets:{target}", size=size, concurrency=concurrency)
    return await stack.enter_async_context(pool)


def _executor(stack: AsyncExitStack, workers: int) -> Call:
    processes = stack.enter_context(executor(workers))
    loop = asyncio.get_running_loop()
    return lambda value: loop.run_in_executor(processes, echo, value)


async def _in_turn(call: Call) -> float:
    began = time.perf_counter()
    for _ in range(CALLS):
        await call(VALUE)
    return (time.perf_counter() - began) / CALLS


async def _at_once(call: Call) -> float:
    async def caller() -> None:
        for _ in range(each):
            await call(VALUE)

    each = CALLS // CALLERS
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(caller())
    return (time.perf_counter() - began) / (each * CALLERS)


async def _streamed(pool: Pool) -> float:
    count = 0
    began = time.perf_counter()
    async for _ in pool.stream("items", VALUE, ITEMS):
        count += 1
    taken = time.perf_counter() - began
    assert count == ITEMS
    return taken / ITEMS

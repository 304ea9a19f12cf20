"""Workflows: ``python -m benchmarks._flows_workflows CASE NUMBER STORE``, one process per case.

It prints two figures: the wall time and CPU time in seconds. For ``sleeping``, they are the memory of one workflow in
bytes, as reported by tracemalloc, and the CPU usage of the idle process in percent of one core. For ``recovery``, they
are the seconds until all workflows run again, and until all have ended. ``STORE`` is a file or the URL of a server.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks._curves_flows import fill
from benchmarks._flows_cases import main, timed
from lifecycle.flows import Flows, sleep, step, workflow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks._flows_cases import Case

__all__ = ["BARS", "SIZES", "WORKFLOWS", "figures"]

#: Number of workflows in each case.
SIZES = {"sleeping": 10_000, "recovery": 10_000, "lookup": 1_000_000}

BARS = {
    "sleeping_workflow_bytes": "at most 2,048",
    "sleeping_workflows_cpu_percent": "0",
    "recovery_of_10000_workflows_s": "at most 5",
    "recovery_and_end_of_10000_workflows_s": "printed",
    "lookup_among_million_workflows_ms": "at most 2",
}

#: Seconds during which the idle process is observed, and the number of look-ups.
IDLE, LOOKUPS = 3.0, 1001
#: The maximum number of sleeping workflows that are started at the same time.
_AT_ONCE = 2500


async def _nothing() -> int:
    return 1


@workflow
async def _steps(number: int) -> int:
    return sum([await step(_nothing) for _ in range(number)])


@workflow
async def _empty() -> int:
    return 1


@workflow
async def _sleeper() -> None:
    await sleep(3600)


@workflow
async def _interrupted() -> int:
    return await step(_wait_for_all)


#: The number of steps that are running, and the event that lets them finish.
_running, _all = itertools.count(1), asyncio.Event()


async def _wait_for_all() -> int:
    if sys.argv[1] == "recovery" and next(_running) == int(sys.argv[2]):
        _all.set()
    await _all.wait()
    return 1


def figures(sizes: Mapping[str, int], directory: str) -> dict[str, object]:
    """Return the figures of workflows that wait, continue, and have ended."""
    sleeping, idle = _figures("sleeping", sizes["sleeping"], directory)
    recovery, end = _figures("recovery", sizes["recovery"], directory)
    lookup, _ = _figures("lookup", sizes["lookup"], directory)
    return dict(zip(BARS, (round(sleeping), idle, recovery, end, lookup * 1000), strict=True))


def _figures(case: str, number: int, directory: str) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(dir=directory) as files:
        argv = [sys.executable, "-m", "benchmarks._flows_workflows", case, str(number), f"{files}/flows.db"]
        first, second = json.loads(subprocess.check_output(argv, text=True).splitlines()[-1])
    return first, second


def _sequential(steps: int, store: str) -> tuple[float, float]:
    """Run sequential steps in one workflow."""

    async def measure() -> list[float]:
        async with Flows(store) as flows:
            await flows.start(_steps, 1)
            with timed() as figures:
                assert await flows.start(_steps, steps) == steps
        return figures

    wall, used = asyncio.run(measure())
    return wall, used


def _starts(number: int, store: str) -> tuple[float, float]:
    """Start workflows without steps at the same time, and wait until all have ended."""

    async def measure() -> list[float]:
        async with Flows(store) as flows:
            await flows.start(_empty)
            with timed() as figures:
                await asyncio.gather(*[flows.start(_empty) for _ in range(number)])
        return figures

    wall, used = asyncio.run(measure())
    return wall, used


def _sleeping(number: int, store: str) -> tuple[float, float]:
    """Return the memory of a sleeping workflow, and the CPU usage while all of them sleep."""
    at_once = min(number, _AT_ONCE)

    async def measure() -> tuple[float, float]:
        process = psutil.Process()
        async with Flows(store) as flows:
            tracemalloc.start()
            await _asleep(flows, at_once)
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(0, number, at_once):
                await _asleep(flows, at_once)
            after, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            process.cpu_percent()
            await asyncio.sleep(IDLE)
            return (after - before) / number, process.cpu_percent()

    return asyncio.run(measure())


async def _asleep(flows: Flows, number: int) -> None:
    """Start workflows, and wait until they exist only in the store."""
    for _ in range(number):
        flows.start(_sleeper)
    while flows.runs:  # noqa: ASYNC110  # workflows that wait set no event
        await asyncio.sleep(0.05)
    gc.collect()


def _recovery(number: int, store: str) -> tuple[float, float]:
    """Kill a process with unfinished workflows, and run them to their end."""
    argv = [sys.executable, "-m", "benchmarks._flows_workflows", "until_killed", str(number), store]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()

    async def measure() -> tuple[float, float]:
        async with Flows(store) as flows:
            began = time.perf_counter()
            runs = await flows.recover(_interrupted)
            await _all.wait()
            recovered = time.perf_counter() - began
            assert await asyncio.gather(*runs) == [1] * number
            return recovered, time.perf_counter() - began

    return asyncio.run(measure())


def _until_it_is_killed(number: int, store: str) -> tuple[float, float]:
    """Start workflows, and say when all are stored."""

    async def run() -> None:
        async with Flows(store) as flows:
            await asyncio.gather(*[flows.start(_interrupted).stored() for _ in range(number)])
            print("ready", flush=True)
            await asyncio.Event().wait()

    asyncio.run(run())
    raise AssertionError("not killed")


def _lookup(rows: int, store: str) -> tuple[float, float]:
    """Return the median wall and CPU time of a look-up among workflows that have ended."""

    async def first() -> None:
        async with Flows(store) as flows:
            await flows.start(_steps, 1, id="first")

    async def measure() -> list[list[float]]:
        costs = []
        async with Flows(store) as flows:
            for each in ids:
                began, used = time.perf_counter(), time.process_time()
                assert (await flows.get(each)).state == "SUCCESS"
                costs.append([time.perf_counter() - began, time.process_time() - used])
        return costs

    asyncio.run(first())
    distance = fill(Path(store), rows)
    ids = [f"{(number * 7919 % rows + 1) * distance:08x}" for number in range(LOOKUPS)]
    wall, used = map(statistics.median, zip(*asyncio.run(measure()), strict=True))
    return wall, used


WORKFLOWS: dict[str, Case] = {
    "workflow_sqlite": _sequential,
    "workflow_starts": _starts,
    "sleeping": _sleeping,
    "recovery": _recovery,
    "until_killed": _until_it_is_killed,
    "lookup": _lookup,
}

if __name__ == "__main__":
    main(WORKFLOWS)

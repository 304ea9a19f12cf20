"""The delay between a file change and its handler, the changes lost in a burst, and the CPU usage while idle."""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._idle import idle_cpu_percent
from benchmarks._measure import interleaved, ratio, report
from lifecycle.control import Router
from lifecycle.sources import FileWatchSource
from lifecycle.testing import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from lifecycle.events import FileEvent

    #: Functions that watch a directory and call a function for each change.
    Watching = Callable[[Path, Callable[[Path], None]], AbstractAsyncContextManager[None]]

BARS = {
    "event_over_awatch": "at most 1.5",
    "burst_lost": "0",
    "idle_cpu_percent": "under 0.5",
}
STEP = 0.001
ROUNDS = 15
WRITES = 40
BURST = 10_000
# The number of seconds after which an unreported change is considered lost.
PATIENCE = 10.0

# Creates files as fast as possible: the first half in new directories, the second half in one directory.
WRITER = """
import os, sys
root, count = sys.argv[1], int(sys.argv[2])
for number in range(count // 2):
    directory = f"{root}/d{number // 10}"
    if number % 10 == 0:
        os.mkdir(directory)
    with open(f"{directory}/{number}", "w") as file:
        file.write("x")
    with open(f"{root}/{number}", "w") as file:
        file.write("x")
"""


def main() -> None:
    """Run all benchmarks in this module, and print their figures."""
    watchers: dict[str, Watching] = {"awatch": _awatch, "event": _router}
    cases = {name: partial(_median_latency, watching) for name, watching in watchers.items()}
    samples = interleaved(cases, rounds=ROUNDS)
    results = {
        "event_over_awatch": ratio(samples, "event", "awatch"),
        "event_ms": statistics.median(samples["event"]) * 1000,
        "awatch_ms": statistics.median(samples["awatch"]) * 1000,
        "burst_lost": _burst_lost(),
        "idle_cpu_percent": idle_cpu_percent(),
    }
    report("watch", results, BARS)


# -- delay -----------------------------------------------------------------------------------------------------


def _median_latency(watching: Watching) -> float:
    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(_latency(watching, Path(directory).resolve()))


async def _latency(watching: Watching, directory: Path) -> float:
    """Return the median number of seconds between a write and its report, for several writes at random moments."""
    file = directory / "file"
    file.write_bytes(b"")
    reported = asyncio.Event()
    taken: list[float] = []
    async with watching(directory, lambda _: reported.set()):
        for number in range(WRITES):
            # Each write happens at a random moment in the watcher's polling interval, after the previous write has
            # been fully reported.
            await asyncio.sleep(0.02 + random.random() * STEP)
            reported.clear()
            began = time.perf_counter()
            file.write_bytes(b"x" * (number + 1))
            await reported.wait()
            taken.append(time.perf_counter() - began)
    return statistics.median(taken)


@asynccontextmanager
async def _awatch(directory: Path, tell: Callable[[Path], None]) -> AsyncIterator[None]:
    from watchfiles import awatch

    async def read() -> None:
        async with aclosing(awatch(directory, step=int(STEP * 1000), watch_filter=None)) as batches:
            async for batch in batches:
                for _, path in batch:
                    tell(Path(path))

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def _router(directory: Path, tell: Callable[[Path], None], *, step: float = STEP) -> AsyncIterator[None]:
    router = Router()

    @router.on("file/*")
    async def changed(event: FileEvent) -> None:
        tell(event.path)

    router.add_source(FileWatchSource(directory, step=step))
    async with running(router):
        yield


# -- lost changes ----------------------------------------------------------------------------------------------


def _burst_lost() -> int:
    """Return the number of unreported files in two bursts: one with the step `STEP`, and one with the default step."""
    return sum(asyncio.run(_lost(step)) for step in (STEP, 0.05))


async def _lost(step: float) -> int:
    with tempfile.TemporaryDirectory() as name:
        seen: set[Path] = set()
        all_seen = asyncio.Event()

        def tell(path: Path) -> None:
            seen.add(path)
            if len(seen) == BURST:
                all_seen.set()

        async with _router(Path(name), tell, step=step):
            writer = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, name, str(BURST))
            await writer.wait()
            with suppress(TimeoutError):
                await asyncio.wait_for(all_seen.wait(), PATIENCE)
        return BURST - len(seen)


if __name__ == "__main__":
    main()

"""The CPU time of one child, by the number of children that start, crash, finish or stop together."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from typing import TYPE_CHECKING

from lifecycle.backoff import Backoff
from lifecycle.workers import Spec, Supervisor

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from benchmarks._curves_plots import Points

__all__ = ["by_children"]

#: The limit, relative to tasks without a supervisor.
LIMIT = 25
#: The number of children per measurement, and of rounds: small supervisors are measured several times.
CHILDREN, ROUNDS = 3000, 15


def by_children(sizes: tuple[int, ...]) -> Points:
    """Measure all children together, which are tasks. The limit is relative to creating and cancelling tasks."""
    return asyncio.run(_by_children(sizes))


async def _by_children(sizes: tuple[int, ...]) -> Points:
    logging.getLogger("lifecycle.workers").setLevel(logging.CRITICAL)
    found = [await _median(size) for size in sizes]
    limit = LIMIT * min(each[-1] for each in found)
    names = ("start", "crash and restart", "finish", "stop")
    return {name: [each[at] for each in found] for at, name in enumerate(names)}, [limit] * len(sizes)


async def _median(size: int) -> list[float]:
    """Return the microseconds per child of each operation, and those per task without a supervisor."""
    rounds = [await _Round(size).run() for _ in range(min(ROUNDS, max(1, CHILDREN // size)))]
    return [sorted(each)[len(each) // 2] / size * 1e6 for each in zip(*rounds, strict=True)]


class _Round:
    """Supervisors whose children wait until all of them crash or finish together."""

    def __init__(self, size: int) -> None:
        self._size, self._running = size, 0
        self._crash = self._finish = asyncio.Event()

    async def run(self) -> list[float]:
        first, second = self._supervisor(), self._supervisor()
        start = await _timed(self._started(first))
        crash = await _timed(self._crashed())
        stop = await _timed(first.stop())
        await self._started(second)
        finish = await _timed(self._finished(second))
        return [start, crash, finish, stop, await _timed(self._plain())]

    def _supervisor(self) -> Supervisor:
        specs = [self._spec(number) for number in range(self._size)]
        return Supervisor("tasks", *specs, stop_order="parallel", intensity=None, auto_shutdown="any_significant")

    def _spec(self, number: int) -> Spec:
        # The children finish in order, and the supervisor ends with the last.
        last = number == self._size - 1
        return Spec(f"task{number}", self._work, restart="on-failure", backoff=Backoff(0.0), significant=last)

    async def _work(self) -> None:
        self._running += 1
        crash, finish = self._crash, self._finish
        await crash.wait()
        if not finish.is_set():
            raise RuntimeError

    async def _started(self, supervisor: Supervisor) -> None:
        self._running, self._crash, self._finish = 0, asyncio.Event(), asyncio.Event()
        await supervisor.start()
        await self._all_running()

    async def _all_running(self) -> None:
        while self._running < self._size:  # noqa: ASYNC110  # an event would cost each child time
            await asyncio.sleep(0)

    async def _crashed(self) -> None:
        crash, self._crash, self._running = self._crash, asyncio.Event(), 0
        crash.set()
        await self._all_running()

    async def _finished(self, supervisor: Supervisor) -> None:
        self._finish.set()
        self._crash.set()
        await supervisor.wait()

    async def _plain(self) -> None:
        """Start and cancel the same tasks without a supervisor."""
        self._running, self._crash = 0, asyncio.Event()
        tasks = [asyncio.create_task(self._work()) for _ in range(self._size)]
        await self._all_running()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _timed(work: Awaitable[object]) -> float:
    gc.collect()
    began = time.process_time()
    await work
    return time.process_time() - began

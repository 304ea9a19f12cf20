"""The cost of a task that runs as a worker: memory, reading its state, and stopping."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
import tracemalloc
from typing import TYPE_CHECKING

from lifecycle.workers import Spec, Status, Supervisor, WorkerState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any

__all__ = ["bytes_per_task_worker", "state_over_record", "stop_over_gather"]

COUNT = 1000
ROUNDS = 15


async def _work() -> None:
    """Wait until cancelled."""
    await asyncio.get_running_loop().create_future()


def _supervisor(count: int = COUNT) -> Supervisor:
    specs = (Spec(f"task{number}", _work) for number in range(count))
    return Supervisor("tasks", *specs, stop_order="parallel")


async def state_over_record() -> float:
    """Return the time per task of `Supervisor.state`, divided by the time to create one record directly."""
    async with _supervisor() as supervisor:

        def ours() -> object:
            return supervisor.state()

        def by_hand() -> object:
            return [_record(f"task{number}") for number in range(COUNT)]

        assert len(supervisor.state().children) == COUNT
        return statistics.median(_timed(ours) / _timed(by_hand) for _ in range(ROUNDS))


def _record(name: str) -> WorkerState:
    return WorkerState(
        name=name,
        kind="task",
        status=Status.RUNNING,
        pid=None,
        exit_code=None,
        error=None,
        restarts=0,
        circuit="closed",
        health=None,
        created_at=1.0,
        started_at=2.0,
        updated_at=2.0,
        abandoned=False,
        children=(),
        contain=None,
    )


async def stop_over_gather() -> float:
    """Measure stopping all tasks with a supervisor, relative to `cancel` and `gather` for the same number of tasks."""
    quotients: list[float] = []
    for _ in range(ROUNDS):
        supervisor = _supervisor()
        await supervisor.start()
        ours = await _awaited(supervisor.stop)
        tasks = [asyncio.create_task(_work()) for _ in range(COUNT)]
        await asyncio.sleep(0)
        quotients.append(ours / await _awaited(_cancelling(tasks)))
    return statistics.median(quotients)


def _cancelling(tasks: list[asyncio.Task[None]]) -> Callable[[], Coroutine[Any, Any, None]]:
    async def cancel() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    return cancel


async def bytes_per_task_worker() -> int:
    """Return the memory for each additional task in a supervisor: spec, child, worker, task and coroutine."""
    supervisor = _supervisor(0)
    async with supervisor:
        await supervisor.add(Spec("first", _work))
        gc.collect()
        tracemalloc.start()
        for number in range(COUNT):
            await supervisor.add(Spec(f"task{number}", _work))
        await asyncio.sleep(0)
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return used // COUNT


def _timed(call: Callable[[], object]) -> float:
    gc.collect()
    gc.disable()
    began = time.perf_counter()
    call()
    taken = time.perf_counter() - began
    gc.enable()
    return taken


async def _awaited(call: Callable[[], Awaitable[object]]) -> float:
    gc.collect()
    gc.disable()
    began = time.perf_counter()
    await call()
    taken = time.perf_counter() - began
    gc.enable()
    return taken

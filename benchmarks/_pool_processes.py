"""The cost of a pool's worker processes: start, cancellation, replacement and memory."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import time
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import psutil

from benchmarks._measure import interleaved, ratio
from benchmarks._pool_peers import bare_rss, executor_first_result
from lifecycle import hooks
from lifecycle.workers.pool import Phase, Pool, Process
from lifecycle.workers.pool.protocol import CODEC
from lifecycle.workers.pool.settings import Target

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

__all__ = ["GRACE", "processes"]

ROUNDS = 15
#: The number of attempts for measurements that include the grace period.
KILLS = 5
#: Seconds that a call runs before it is cancelled.
RUN = 0.05
#: Seconds that a cancelled call may take before its worker is killed.
GRACE = 0.5
#: Seconds to wait after the call's first output. By then, the call holds the interpreter lock.
HOLD = 0.1
#: The number of workers in the pool, one of which is killed.
SIZE = 2
VALUE = b"x" * 1000
_TARGET = "benchmarks._pool_targets:Target"
#: The timeout in seconds for every wait.
LIMIT = 60.0


def processes(runner: asyncio.Runner) -> dict[str, object]:
    """Return all figures for worker processes."""

    def figure(measured: Coroutine[Any, Any, float]) -> float:
        return runner.run(asyncio.wait_for(measured, LIMIT))

    with TemporaryDirectory() as directory:
        fifo = f"{directory}/fifo"
        os.mkfifo(fifo)
        cases = {
            "spawn": _spawn_to_hello,
            "first": lambda: figure(_first_result()),
            "executor": lambda: figure(executor_first_result(VALUE)),
            "recovery": lambda: figure(_recovery()),
            "python_loop": lambda: figure(_cancel("spin", fifo)),
            "sleep": lambda: figure(_cancel("sleep", fifo)),
            "rss": lambda: figure(_rss()),
            "bare_rss": bare_rss,
        }
        samples = interleaved(cases, rounds=ROUNDS)
        kills = [figure(_kill_and_replace(fifo)) for _ in range(KILLS)]
    milliseconds = {name: statistics.median(each) * 1000 for name, each in samples.items()}
    return {
        "first_result_over_executor": ratio(samples, "executor", "first"),
        "cancel_ms_python_loop": milliseconds["python_loop"],
        "cancel_ms_sleep": milliseconds["sleep"],
        "kill_replace_ms": statistics.median(kills) * 1000,
        "spawn_ms": milliseconds["spawn"],
        "recovery_over_spawn": ratio(samples, "recovery", "spawn"),
        "rss_per_member_over_bare_python": ratio(samples, "rss", "bare_rss"),
    }


def _pool(size: int) -> Pool:
    return Pool("benchmark", _TARGET, size=(size, size), process=Process(grace=GRACE))


# -- starting --------------------------------------------------------------------------------------------------------


def _spawn_to_hello() -> float:
    """Measure the time from starting a worker's command without a pool to the first bytes of its Hello message."""
    began = time.perf_counter()
    with subprocess.Popen(
        Target.read("benchmark", _TARGET).argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, CODEC: "pickle"},
        start_new_session=True,
        bufsize=0,
    ) as process:
        assert process.stdout is not None
        hello = process.stdout.read(4)
        taken = time.perf_counter() - began
        assert len(hello) == 4, "the worker ended before it sent its Hello message"
        process.kill()
    return taken


async def _first_result() -> float:
    """Measure the time from creating a pool to its first result."""
    began = time.perf_counter()
    async with _pool(1) as pool:
        await pool.call("echo", VALUE)
        return time.perf_counter() - began


async def _rss() -> float:
    """Return the resident memory of a worker that has completed a call."""
    async with _pool(1) as pool:
        await pool.call("echo", VALUE)
        return float(psutil.Process(await pool.call("pid")).memory_info().rss)


# -- stopping and replacing ------------------------------------------------------------------------------------------


async def _recovery() -> float:
    """Measure the time from SIGKILL of one worker until the pool is full again."""
    async with _pool(SIZE) as pool:
        victim = await pool.call("pid")
        began = time.perf_counter()
        os.kill(victim, signal.SIGKILL)
        await _full_without(pool, victim)
        return time.perf_counter() - began


async def _kill_and_replace(fifo: str) -> float:
    """Measure the time from cancelling a call that ignores the cancellation until the pool is full again."""
    async with _pool(1) as pool:
        victim = await pool.call("pid")
        call = await _under_way(pool, "hold", fifo)
        # Until the call holds the lock, it would react to the cancellation.
        await asyncio.sleep(HOLD)
        began = time.perf_counter()
        await _cancelled(call)
        await _full_without(pool, victim)
        return time.perf_counter() - began


async def _full_without(pool: Pool, victim: int) -> None:
    """Wait until the pool has all its workers ready, not counting ``victim``."""
    size, changed = len(pool.members()), asyncio.Event()

    def note(_: object, **__: object) -> None:
        changed.set()

    hooks.member_changed.connect(note)
    while sum(each.phase is Phase.READY and each.state().pid != victim for each in pool.members()) < size:
        await changed.wait()
        changed.clear()
    hooks.member_changed.disconnect(note)


# -- cancelling ------------------------------------------------------------------------------------------------------


async def _cancel(name: str, fifo: str) -> float:
    """Measure the time from cancelling a call until the same worker has completed a second call."""
    async with _pool(1) as pool:
        kept = await pool.call("pid")
        call = await _under_way(pool, name, fifo)
        began = time.perf_counter()
        await _cancelled(call)
        assert await pool.call("pid") == kept, "the call ignored its cancellation, so its worker was killed"
        return time.perf_counter() - began


async def _under_way(pool: Pool, name: str, fifo: str) -> asyncio.Task[object]:
    """Return a call that has already been running for a moment."""
    fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    began = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(fd, began.set)
    try:
        call = asyncio.create_task(pool.call(name, fifo))
        await began.wait()
        await asyncio.sleep(RUN)
        return call
    finally:
        loop.remove_reader(fd)
        os.close(fd)


async def _cancelled(call: asyncio.Task[object]) -> None:
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call

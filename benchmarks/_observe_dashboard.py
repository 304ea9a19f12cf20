"""What an open page costs a program in which a thousand workers change a thousand times a second.

``python -m benchmarks._observe_dashboard [SECONDS]``: for so many seconds with a page attached, in rounds that take
turns with as many without; 600 are the ten minutes over which memory has to stay flat.
"""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
import sys
import time
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING

import psutil

from lifecycle.control import Event, Router
from lifecycle.observe import Dashboard
from lifecycle.runtime import lifetime
from lifecycle.testing import running
from lifecycle.workers import Gate, Spec, Supervisor, TaskWorker

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from lifecycle.workers import Worker

__all__ = ["dashboard_cpu"]

_WORKERS, _CHANGES, _ROUND = 1000, 1000, 5.0
#: Changes are made in bursts of so many a second.
_BURSTS = 50

#: Reads what a page would read, and throws it away; a process of its own, whose work is not the program's.
_READER = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as there:
    there.sendall(b"GET /api/live HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n")
    print(len(there.recv(1)), flush=True)
    while there.recv(1 << 20):
        pass
"""


def dashboard_cpu(seconds: float = 20.0) -> dict[str, float]:
    """The share of one core that a page costs, and how much memory grew from the first third to the last, in MiB."""
    return asyncio.run(_measured(seconds))


async def _measured(seconds: float) -> dict[str, float]:
    shares: dict[bool, list[float]] = {True: [], False: []}
    sizes: list[float] = []
    async with _program() as load:
        changing = asyncio.create_task(load())
        await asyncio.sleep(1)
        for _ in range(max(2, round(seconds / _ROUND))):
            shares[False].append(await _share())
            async with _attached():
                shares[True].append(await _share())
                sizes.append(psutil.Process().memory_info().rss / 2**20)
        changing.cancel()
        await asyncio.wait([changing])
    third = max(1, len(sizes) // 3)
    return {
        "dashboard_cpu_percent": round(100 * (statistics.median(shares[True]) - statistics.median(shares[False])), 1),
        "dashboard_memory_growth_mib": round(statistics.median(sizes[-third:]) - statistics.median(sizes[:third]), 1),
    }


@asynccontextmanager
async def _attached() -> AsyncGenerator[None]:
    """A page that follows, from the moment when it has had its first bytes."""
    async with Dashboard() as dashboard:
        port = dashboard.url.rpartition(":")[2]
        reader = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _READER, port, stdout=asyncio.subprocess.PIPE
        )
        assert reader.stdout is not None
        await reader.stdout.readline()
        try:
            # The first message has everything, once.
            await asyncio.sleep(1)
            yield
        finally:
            reader.kill()
            await reader.wait()


async def _share() -> float:
    """Of one core, that this process used in a round."""
    began, used = time.perf_counter(), time.process_time()
    await asyncio.sleep(_ROUND)
    return (time.process_time() - used) / (time.perf_counter() - began)


@asynccontextmanager
async def _program() -> AsyncGenerator[Callable[[], Coroutine[None, None, None]]]:
    """A thousand workers, and what lets them change, each change with an event."""
    pokes = [asyncio.Event() for _ in range(_WORKERS)]

    def worker(number: int) -> TaskWorker:
        async def work(gate: Gate) -> None:
            while True:
                await gate.checkpoint()
                await pokes[number].wait()
                pokes[number].clear()

        return TaskWorker(f"worker-{number}", work)

    router = Router()
    router.handle("changed/*", lambda _: None)
    specs = [Spec(f"worker-{number}", lambda number=number: worker(number)) for number in range(_WORKERS)]
    async with lifetime(signals=False), running(router), Supervisor("top", *specs) as top:

        async def load() -> None:
            clock = asyncio.get_running_loop().time
            began = clock()
            for number in count():
                await _change(top[f"worker-{number % _WORKERS}"], pokes[number % _WORKERS])
                await router.emit(Event(f"changed/{number % _WORKERS}"))
                if number % (_CHANGES // _BURSTS) == 0:
                    await asyncio.sleep(max(0.0, began + number / _CHANGES - clock()))

        yield load


async def _change(worker: Worker, poke: asyncio.Event) -> None:
    assert isinstance(worker, TaskWorker)
    if worker.status == "suspended":
        await worker.resume()
    else:
        poke.set()
        await worker.suspend()


if __name__ == "__main__":
    logging.getLogger("lifecycle").setLevel(logging.ERROR)
    print(json.dumps(dashboard_cpu(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0)))

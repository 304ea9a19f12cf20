"""The cost of one open dashboard page for a program with a thousand workers and a thousand changes per second.

``python -m benchmarks._observe_dashboard [SECONDS]``. CPU usage is measured in alternating rounds with and without a
page. Memory is measured with one open page over the given number of seconds. The requirement is constant memory over
ten minutes, so use 600 to check it. Every worker's history is full before the measurement starts.
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
    from collections.abc import AsyncGenerator

__all__ = ["Load", "attached", "dashboard_cpu", "share_of_core"]

_WORKERS, _CHANGES = 1000, 1000
#: The duration of a round in seconds, the number of rounds with a page, and the seconds between two memory samples.
_ROUND, _ROUNDS, _LOOK = 5.0, 4, 1.0
#: The number of bursts of changes per second.
_BURSTS = 50
#: The number of changes per worker before the measurement, which exceeds the length of a history.
_BEFORE = 40
_TOKEN = "benchmark"

#: Reads and discards the page's data. It runs in a separate process, so its CPU time is not measured.
_READER = """
import selectors, socket, sys
ready = selectors.DefaultSelector()
pages = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
for page in pages:
    token = f"Authorization: Bearer {sys.argv[3]}".encode()
    page.sendall(b"GET /api/live HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n" + token + b"\\r\\n\\r\\n")
    ready.register(page, selectors.EVENT_READ)
for page in pages:
    assert page.recv(12) == b"HTTP/1.1 200"
print(flush=True)
while True:
    for key, _ in ready.select():
        key.fileobj.recv(1 << 20) or sys.exit()
"""


def dashboard_cpu(seconds: float = 20.0) -> dict[str, float]:
    """Return a page's share of one core, the rate of changes, and the growth of memory in ``seconds``.

    Memory growth is in MiB: the median of the last third minus the median of the first third.
    """
    return asyncio.run(_measured(seconds))


async def _measured(seconds: float) -> dict[str, float]:
    load = Load()
    async with load.living():
        changing = asyncio.create_task(load.run())
        shares: dict[bool, list[float]] = {True: [], False: []}
        began, before = time.perf_counter(), load.changes
        for _ in range(_ROUNDS):
            shares[False].append(await share_of_core())
            async with attached():
                shares[True].append(await share_of_core())
        async with attached():
            sizes = await _sizes(seconds)
        reached = (load.changes - before) / (time.perf_counter() - began)
        changing.cancel()
        await asyncio.wait([changing])
    third = max(1, len(sizes) // 3)
    return {
        "dashboard_cpu_percent": round(100 * (statistics.median(shares[True]) - statistics.median(shares[False])), 1),
        "dashboard_changes_per_second": round(reached),
        "dashboard_memory_growth_mib": round(statistics.median(sizes[-third:]) - statistics.median(sizes[:third]), 1),
    }


async def _sizes(seconds: float) -> list[float]:
    """Record this process's memory in MiB at regular intervals."""
    process = psutil.Process()
    sizes: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not sizes:
        await asyncio.sleep(_LOOK)
        sizes.append(process.memory_info().rss / 2**20)
    return sizes


@asynccontextmanager
async def attached(pages: int = 1) -> AsyncGenerator[None]:
    """Open pages that follow the program, and wait for the first bytes."""
    async with Dashboard(token=_TOKEN) as dashboard:
        port = dashboard.url.rpartition(":")[2]
        reader = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _READER, port, str(pages), _TOKEN, stdout=asyncio.subprocess.PIPE
        )
        assert reader.stdout is not None
        await reader.stdout.readline()
        try:
            # The first message contains the whole state. Later messages contain only changes.
            await asyncio.sleep(1)
            yield
        finally:
            reader.kill()
            await reader.wait()


async def share_of_core(seconds: float = _ROUND) -> float:
    """Return this process's share of one core during ``seconds``."""
    began, used = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    return (time.process_time() - used) / (time.perf_counter() - began)


class Load:
    """A thousand workers, and functions that change them. Each change emits an event."""

    def __init__(self) -> None:
        self.changes = 0
        self.router = Router()
        self.router.handle("changed/*", lambda _: None)
        self.top = Supervisor("top", *(self._spec(number) for number in range(_WORKERS)))
        self._pokes: list[asyncio.Event] = []

    def _spec(self, number: int) -> Spec:
        async def work(gate: Gate) -> None:
            while True:
                await gate.checkpoint()
                await self._pokes[number].wait()
                self._pokes[number].clear()

        return Spec(f"worker-{number}", lambda: TaskWorker(f"worker-{number}", work))

    async def prepare(self) -> None:
        """Change each worker often enough to fill its history."""
        for number in range(_BEFORE * _WORKERS):
            await self._change(number % _WORKERS)

    async def run(self) -> None:
        """Change the workers a thousand times per second on average, until cancelled."""
        clock = asyncio.get_running_loop().time
        began = clock()
        for number in count():
            await self._change(number % _WORKERS)
            await self.router.emit(Event(f"changed/{number % _WORKERS}"))
            self.changes += 1
            if number % (_CHANGES // _BURSTS) == 0:
                await asyncio.sleep(max(0.0, began + number / _CHANGES - clock()))

    async def _change(self, number: int) -> None:
        worker = self.top[f"worker-{number}"]
        assert isinstance(worker, TaskWorker)
        if worker.status == "suspended":
            await worker.resume()
        else:
            self._pokes[number].set()
            await worker.suspend()

    @asynccontextmanager
    async def living(self) -> AsyncGenerator[None]:
        """Run the program during a block."""
        self._pokes = [asyncio.Event() for _ in range(_WORKERS)]
        async with lifetime(signals=False), running(self.router), self.top:
            await self.prepare()
            yield


if __name__ == "__main__":
    logging.getLogger("lifecycle").setLevel(logging.ERROR)
    print(json.dumps(dashboard_cpu(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0)))

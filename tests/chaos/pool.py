"""P24: callers of all kinds while workers of a pool are killed and stopped at random; the invariants always hold.

The number of successful calls depends on the machine and is not checked. Each call has one outcome and is executed at
most once. The statistics add up. No process or descriptor is left.
"""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lifecycle._async import was_cancelled
from lifecycle.errors import SessionLost, WorkerLost
from lifecycle.workers.pool import Heartbeat, Process, Recycle
from tests.chaos.report import Report
from tests.realtime.pool.pools import gone, pool_of, ready
from tests.realtime.pool.workers import LIMIT
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from lifecycle.workers.pool import Pool

__all__ = ["storm"]

#: The minimum number of calls, however slow the machine is.
CALLS = 500
SIZE = 4


class Storm:
    """A pool, its callers, and the attacks on its workers."""

    def __init__(self, pool: Pool, seed: int) -> None:
        self.pool = pool
        self.chance = random.Random(seed)
        self.begun = 0
        self.wrong: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.kills = 0
        self.over = False
        # The PIDs of all workers.
        self.pids: set[int] = set()

    async def caller(self) -> None:
        """Make calls of all kinds, one after the other."""
        while not self.over:
            kind = self.chance.choice([self.plain, self.plain, self.session, self.late, self.dropped, self.stream])
            self.begun += 1
            self.outcomes[await self.outcome(kind(self.begun))] += 1

    async def outcome(self, call: Coroutine[Any, Any, Any]) -> str:
        try:
            await call
        except (WorkerLost, SessionLost, TimeoutError) as error:
            return type(error).__name__
        except asyncio.CancelledError:
            if was_cancelled():
                raise
            return "cancelled"
        return "done"

    async def plain(self, number: int) -> None:
        self.compare(await self.pool.call("do", number, self.chance.choice([0, 0.001, 0.005])), number)

    async def session(self, number: int) -> None:
        name = self.chance.choice("abcdef")
        self.compare(await self.pool.call("do", number, 0.001, session=name), number)

    def compare(self, result: int, number: int) -> None:
        if result != number:
            self.wrong.append(f"the call {number} returned {result}")

    async def late(self, number: int) -> None:
        await self.pool.call("do", number, 0.05, deadline=self.chance.uniform(0.001, 0.1))

    async def dropped(self, number: int) -> None:
        """Make a call, and cancel it at a random moment."""
        task = asyncio.create_task(self.pool.call("do", number, 0.005))
        await asyncio.sleep(self.chance.uniform(0, 0.01))
        task.cancel()
        await task

    async def stream(self, number: int) -> None:
        """Read a stream, in some cases not to its end."""
        last = self.chance.randrange(1, 150)
        async with self.pool.stream("items", number, 100) as items:
            async for item in items:
                if item == last:
                    break

    async def weather(self) -> None:
        """Kill a worker every 20 ms while at least one other worker can run calls."""
        while not self.over:
            await asyncio.sleep(0.02)
            # Killing the same worker repeatedly before it is ready would make the pool wait longer and longer between
            # starts.
            workers = [worker for worker in self.pool.members() if worker.pid is not None and worker.attempt < 3]
            if not workers or ready(self.pool) + self.pool.stats().busy < 2:
                continue
            victim = self.chance.choice(workers)
            self.kills += 1
            victim.send_signal(self.chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGABRT, signal.SIGSTOP]))

    async def witness(self) -> None:
        """Check the invariants that must always hold."""
        while not self.over:
            await asyncio.sleep(0.003)
            stats = self.pool.stats()
            self.pids.update(worker.pid for worker in self.pool.members() if worker.pid is not None)
            if not stats.idle + stats.busy + stats.degraded + stats.starting == stats.size <= SIZE:
                self.wrong.append(f"the statistics do not add up: {stats}")
            if any(worker.leases not in (0, 1) for worker in self.pool.members()):
                self.wrong.append(f"a worker has more than one call: {self.pool.members()}")
            if stats.calls > self.begun:
                self.wrong.append(f"{stats.calls} calls are counted, but only {self.begun} were made")

    async def run(self, seconds: float) -> None:
        """Run the callers and the attacks for a number of seconds."""
        end = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(self.caller())
            group.create_task(self.weather())
            group.create_task(self.witness())
            async with asyncio.timeout(seconds + 2 * LIMIT):
                while self.begun < CALLS or asyncio.get_running_loop().time() < end:
                    await asyncio.sleep(0.05)
            self.over = True


async def _storm(ledger: Path, seconds: float, seed: int) -> Report:
    before = len(list(Path("/proc/self/fd").iterdir()))
    pool = pool_of(
        "CallLog",
        size=(SIZE, SIZE),
        init=[str(ledger)],
        recycle=Recycle(calls=50),
        heartbeat=Heartbeat(every=0.1, timeout=0.5, misses=2),
        process=Process(contain="group", grace=0.2),
    )
    report = Report()
    async with pool:
        storm = Storm(pool, seed)
        await storm.run(seconds)
        for worker in pool.members():
            worker.send_signal(signal.SIGCONT)
        await until(lambda: ready(pool) == SIZE)
        stats = pool.stats()
        if (stats.queued, stats.busy, stats.idle, stats.size) != (0, 0, SIZE, SIZE):
            report.stuck.append(f"the pool is not idle: {stats}")
    report.operations, report.kills = storm.begun, storm.kills
    report.notes = f"{dict(storm.outcomes)}, {stats.restarts} restarts, {len(storm.pids)} processes"
    if sum(storm.outcomes.values()) != storm.begun:
        report.lost.append(f"{storm.begun} calls have {sum(storm.outcomes.values())} outcomes")
    report.lost += storm.wrong
    done = Counter(ledger.read_text().split())
    report.double += [f"the call {number} ran {times} times" for number, times in done.items() if times > 1]
    report.stuck += [f"the process {pid} is left" for pid in storm.pids if not gone(pid)]
    if (now := len(list(Path("/proc/self/fd").iterdir()))) != before:
        report.stuck.append(f"{now} descriptors are open instead of {before}")
    return report


def storm(seconds: float, seed: int) -> Report:
    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(_storm(Path(directory) / "ledger", seconds, seed))

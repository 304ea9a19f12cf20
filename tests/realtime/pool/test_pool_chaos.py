"""P24: callers of all kinds while workers are killed and stopped at random; the invariants always hold.

It takes three seconds in the suite, or the number of seconds in ``LIFECYCLE_CHAOS`` (`make chaos`: five minutes). The
number of successful calls depends on the machine and is not checked. Each call has one outcome and is executed at most
once. The statistics add up. No process or descriptor is left.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import hooks
from lifecycle._async import was_cancelled
from lifecycle.errors import SessionLost, WorkerLost
from lifecycle.workers.pool import Heartbeat, PoolWorker, Process, Recycle
from tests.realtime.pool.pools import gone, pool_of, ready
from tests.realtime.pool.workers import LIMIT
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from lifecycle.workers.pool import Pool

SECONDS = float(os.environ.get("LIFECYCLE_CHAOS", "3"))
SEED = int(os.environ.get("LIFECYCLE_SEED", random.randrange(2**32) if "LIFECYCLE_CHAOS" in os.environ else 0))
#: The minimum number of calls in the suite, however slow the machine is.
CALLS = 500
SIZE = 4


# On a slow machine, the attacks may take longer, and the pool then needs time to become idle.
pytestmark = pytest.mark.timeout(SECONDS + 4 * LIMIT)


class Storm:
    """A pool, its callers, and the attacks on its workers."""

    def __init__(self, pool: Pool, seed: int) -> None:
        self.pool = pool
        self.chance = random.Random(seed)
        self.begun = 0
        self.outcomes: Counter[str] = Counter()
        self.kills = 0
        self.over = False

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
        assert await self.pool.call("do", number, self.chance.choice([0, 0.001, 0.005])) == number

    async def session(self, number: int) -> None:
        name = self.chance.choice("abcdef")
        assert await self.pool.call("do", number, 0.001, session=name) == number

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
            assert stats.idle + stats.busy + stats.degraded + stats.starting == stats.size <= SIZE, stats
            assert all(worker.leases in (0, 1) for worker in self.pool.members())
            assert stats.calls == sum(self.outcomes.values()) or stats.calls <= self.begun

    async def run(self, enough: Callable[[], bool]) -> None:
        """Run the callers and the attacks until ``enough`` returns true."""
        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(self.caller())
            group.create_task(self.weather())
            group.create_task(self.witness())
            async with asyncio.timeout(SECONDS + 2 * LIMIT):
                while not enough():
                    await asyncio.sleep(0.05)
            self.over = True


async def test_p24_each_call_has_one_outcome_and_nothing_is_left(tmp_path: Path) -> None:
    print(f"LIFECYCLE_SEED={SEED}")
    before = len(list(Path("/proc/self/fd").iterdir()))
    seen: set[int | None] = set()

    def note(worker: object, **_: object) -> None:
        if isinstance(worker, PoolWorker):
            seen.add(worker.pid)

    hooks.worker_started.connect(note)
    pool = pool_of(
        "CallLog",
        size=(SIZE, SIZE),
        init=[str(tmp_path / "ledger")],
        recycle=Recycle(calls=50),
        heartbeat=Heartbeat(every=0.1, timeout=0.5, misses=2),
        process=Process(contain="group", grace=0.2),
    )
    try:
        async with pool:
            storm = Storm(pool, SEED)
            end = asyncio.get_running_loop().time() + SECONDS
            await storm.run(lambda: storm.begun >= CALLS and asyncio.get_running_loop().time() > end)
            assert sum(storm.outcomes.values()) == storm.begun
            for worker in pool.members():
                worker.send_signal(signal.SIGCONT)
            await until(lambda: ready(pool) == SIZE)
            stats = pool.stats()
            assert (stats.queued, stats.busy, stats.idle, stats.size) == (0, 0, SIZE, SIZE)
            print(dict(storm.outcomes), f"{storm.kills} kills, {stats.restarts} restarts, {len(seen)} processes")
    finally:
        hooks.worker_started.disconnect(note)
    assert storm.kills
    assert all(map(gone, seen))
    done = Counter((tmp_path / "ledger").read_text().split())
    assert not [number for number, times in done.items() if times > 1]
    assert len(list(Path("/proc/self/fd").iterdir())) == before

"""The program's pool, and the tasks that call it continuously."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

from lifecycle import Pool
from lifecycle.errors import PoolClosed, RemoteError, SessionLost, WorkerLost
from lifecycle.workers import Intensity
from lifecycle.workers.pool import Heartbeat, Process, Recycle, Sessions

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tests.soak.notes import Notes

__all__ = ["SIZE", "Callers", "pool_of"]

#: The number of pool workers, which is also the number of callers.
SIZE = 3
_CALLERS = 4

#: The errors that a call may raise.
_LEGAL = (WorkerLost, SessionLost, RemoteError, TimeoutError)


def pool_of(notes: Notes) -> Pool:
    """Return a pool of three workers with frequent health checks and regular recycling."""
    return Pool(
        "model",
        "tests.soak.model:Model",
        init=[str(notes.directory), notes.life],
        size=(SIZE, SIZE),
        deadline=5.0,
        recycle=Recycle(calls=300),
        sessions=Sessions(mode="strict", ttl=5.0, limit=50),
        heartbeat=Heartbeat(every=0.5, timeout=2.0, misses=2),
        process=Process(grace=0.2, stop_timeout=10.0),
        # The soak kills workers on purpose.
        intensity=Intensity(10_000, 1.0),
    )


class Callers:
    """Tasks that call the pool continuously. Each call must have exactly one outcome."""

    def __init__(self, pool: Pool, notes: Notes) -> None:
        self._pool, self._notes = pool, notes
        self._chance = random.Random()
        self.begun = 0
        self.outcomes: Counter[str] = Counter()

    async def run(self) -> None:
        """Run as a main of the program until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_CALLERS):
                group.create_task(self._call())
            group.create_task(self._look())

    async def _call(self) -> None:
        kinds = (self._plain, self._plain, self._session, self._late, self._dropped, self._stream, self._failing)
        while True:
            await asyncio.sleep(self._chance.random() * 0.1)
            self.begun += 1
            self.outcomes[await self._outcome(self._chance.choice(kinds)(self.begun))] += 1

    async def _outcome(self, call: Coroutine[Any, Any, None]) -> str:
        try:
            await call
        except _LEGAL as error:
            return type(error).__name__
        except PoolClosed:
            # The program is stopping, and this task is about to be cancelled.
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return "cancelled"
        return "done"

    async def _plain(self, number: int) -> None:
        given = await self._pool.call("do", number, self._chance.choice([0, 0.001, 0.02]))
        if given != number:
            self._notes.wrong(f"a pool was called with {number} and gave {given!r}")

    async def _session(self, number: int) -> None:
        session = f"s{self._chance.randrange(20)}"
        await self._pool.call("say", number, session, session=session)

    async def _late(self, number: int) -> None:
        await self._pool.call("do", number, 0.05, deadline=self._chance.uniform(0.005, 0.1))

    async def _dropped(self, number: int) -> None:
        """Make a call, and cancel it at a random moment."""
        task = asyncio.create_task(self._pool.call("do", number, 0.01))
        try:
            await asyncio.sleep(self._chance.random() * 0.02)
        finally:
            task.cancel()
        await task

    async def _stream(self, number: int) -> None:
        """Read a stream, but not always to its end."""
        last = self._chance.randrange(1, 80)
        async with self._pool.stream("items", number, 50) as items:
            async for item in items:
                if item == last:
                    break

    async def _failing(self, number: int) -> None:
        await self._pool.call("fail", number)

    async def _look(self) -> None:
        """Check the invariants that always hold."""
        while True:
            await asyncio.sleep(0.05)
            stats = self._pool.stats()
            parts = stats.idle + stats.busy + stats.degraded + stats.starting
            if parts != stats.size or stats.size > SIZE:
                self._notes.wrong(f"the parts of a pool are {parts}: {stats}")
            if any(member.leases not in (0, 1) for member in self._pool.members()):
                self._notes.wrong(f"a member has two calls: {self._pool.members()}")
            if not sum(self.outcomes.values()) <= self.begun <= sum(self.outcomes.values()) + _CALLERS:
                self._notes.wrong(f"{self.begun} calls came to {self.outcomes}")

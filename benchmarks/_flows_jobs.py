"""Jobs for benchmarks.flows: ``python -m benchmarks._flows_jobs CASE JOBS FILE``, one process per case.

Both cases complete all jobs in a queue. The hand-written case is a loop with two statements, each in its own
transaction: one claims the first job, and the other completes it. Our case uses `JobQueue.work` with its default
concurrency. The jobs have no flows, because other figures measure flows.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING

from benchmarks._flows_cases import main, timed
from lifecycle.flows import Flows, JobQueue

if TYPE_CHECKING:
    from benchmarks._flows_cases import Case

__all__ = ["JOBS"]

CLAIMANTS = 8

_CLAIM = """
UPDATE lifecycle_jobs SET state = 'CLAIMED', owner = ?, epoch = epoch + 1, until = ?, attempts = attempts + 1
WHERE number = (
    SELECT number FROM lifecycle_jobs WHERE state = 'UNCLAIMED' AND due = 0 AND flow = ? ORDER BY rank, number LIMIT 1
)
RETURNING id, epoch
"""
_COMPLETE = """
UPDATE lifecycle_jobs SET state = 'COMPLETE', outcome = 'SUCCESS', ended = ? WHERE id = ? AND epoch = ?
"""


async def _enqueue(queue: JobQueue, jobs: int) -> None:
    await asyncio.gather(*[queue.enqueue("flow", size=number) for number in range(jobs)])


def _ours(jobs: int, file: str) -> tuple[float, float]:
    async def finish(queue: JobQueue) -> int:
        finished = 0
        while (job := await queue.claim(flows=["flow"])) is not None:
            await queue.complete(job)
            finished += 1
        return finished

    async def measure() -> list[float]:
        async with Flows(file) as flows:
            queue = JobQueue(flows)
            await _enqueue(queue, jobs)
            with timed() as figures:
                finished = await asyncio.gather(*[finish(queue) for _ in range(CLAIMANTS)])
        assert sum(finished) == jobs
        return figures

    wall, used = asyncio.run(measure())
    return wall, used


def _by_hand(jobs: int, file: str) -> tuple[float, float]:
    async def prepare() -> None:
        async with Flows(file) as flows:
            await _enqueue(JobQueue(flows), jobs)

    asyncio.run(prepare())
    finished = 0
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = NORMAL")
        with timed() as figures:
            while claimed := db.execute(_CLAIM, ("me", time.time() + 30, "flow")).fetchone():
                db.execute(_COMPLETE, (time.time(), *claimed))
                finished += 1
    assert finished == jobs
    wall, used = figures
    return wall, used


JOBS: dict[str, Case] = {"jobs": _ours, "jobs_by_hand": _by_hand}

if __name__ == "__main__":
    main(JOBS)

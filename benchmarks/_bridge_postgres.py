"""Flows and jobs on PostgreSQL compared with hand-written SQL: ``python -m benchmarks._bridge_postgres [--json]``.

The server is real and syncs to its disk. A flow of sequential tasks is compared with the same number of transactions,
each of which writes the same rows as one task. Jobs without flows are claimed and completed, eight at the same time.
They are compared with hand-written claims and completions, each in a separate transaction. Both sides use the same
number of connections.
"""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial

import psycopg

from benchmarks._measure import interleaved, ratio, report
from lifecycle.flows import Batch, Change, Flows, JobQueue, StepRow, linear, task
from lifecycle.flows.stores.postgres import POSTGRES, query_of
from lifecycle.flows.stores.sql import committing
from tests import postgres

__all__ = ["figures"]

ROUNDS = 5
TASKS, JOBS = 500, 1000
CLAIMANTS, CONNECTIONS = 8, 4

BARS = {
    "postgres_tasks_over_raw": "at least 0.4",
    "postgres_jobs_over_raw": "at least 0.4",
    "postgres_tasks_a_second": "printed",
    "postgres_jobs_a_second": "printed",
}

_CREATE = """
INSERT INTO lifecycle_flows (id, name, state, epoch, owner, store, error, at)
VALUES ('x', 'flow', 'PENDING', 1, '', '{}', '', 0)
"""
_CLAIM = b"""
UPDATE lifecycle_jobs SET state = 'CLAIMED', owner = %s, epoch = epoch + 1, until = %s, attempts = attempts + 1
WHERE number = (
    SELECT number FROM lifecycle_jobs WHERE state = 'UNCLAIMED' AND due = 0 AND flow = %s
    ORDER BY rank, number LIMIT 1 FOR UPDATE SKIP LOCKED
) RETURNING id, epoch
"""
# Before each claim, the same transaction releases expired claims and makes due jobs ready.
_LAPSE = b"""
UPDATE lifecycle_jobs SET state = 'UNCLAIMED' WHERE number IN (
    SELECT number FROM lifecycle_jobs WHERE state = 'CLAIMED' AND until <= %s FOR UPDATE SKIP LOCKED)
"""
_DUE = b"""
UPDATE lifecycle_jobs SET due = 0 WHERE number IN (
    SELECT number FROM lifecycle_jobs WHERE state = 'UNCLAIMED' AND due > 0 AND due <= %s FOR UPDATE SKIP LOCKED)
"""
_COMPLETE = b"""
UPDATE lifecycle_jobs SET state = 'COMPLETE', outcome = 'SUCCESS', ended = %s WHERE id = %s AND epoch = %s
"""


def figures() -> dict[str, object]:
    """Return the ratios and the absolute figures, or an empty dictionary without a server."""
    if postgres.program("postgres") is None:
        return {}
    server = postgres.Postgres(fsync="on", full_page_writes="on", shared_buffers="128MB")
    try:
        server.start()
        return _measured(server)
    finally:
        server.close()


def _measured(server: postgres.Postgres) -> dict[str, object]:
    cases = {"tasks": _tasks, "raw tasks": _raw_tasks, "jobs": _jobs, "raw jobs": _raw_jobs}
    samples = interleaved({name: partial(case, server) for name, case in cases.items()}, rounds=ROUNDS)
    return {
        "postgres_tasks_over_raw": ratio(samples, "tasks", "raw tasks"),
        "postgres_jobs_over_raw": ratio(samples, "jobs", "raw jobs"),
        "postgres_tasks_a_second": int(sorted(samples["tasks"])[ROUNDS // 2]),
        "postgres_jobs_a_second": int(sorted(samples["jobs"])[ROUNDS // 2]),
    }


def _tasks(server: postgres.Postgres) -> float:
    flow = linear("flow", *[task(lambda: 1, name=f"t{number}") for number in range(TASKS)])

    async def measure() -> float:
        async with Flows(server.cleared()) as flows:
            began = time.perf_counter()
            await flows.start(flow)
            return TASKS / (time.perf_counter() - began)

    return asyncio.run(measure())


def _raw_tasks(server: postgres.Postgres) -> float:
    works = [committing(POSTGRES, _batch(number), number) for number in range(1, TASKS + 1)]
    statements = [query_of(work)[:2] for work in works]
    with psycopg.connect(server.cleared(), autocommit=True) as db:
        db.execute(_CREATE)
        began = time.perf_counter()
        for each in statements:
            assert db.execute(*each).fetchone()
        return TASKS / (time.perf_counter() - began)


def _batch(number: int) -> Batch:
    """Store that one task has finished and that the next has started."""
    seq = 2 * number
    steps = [
        StepRow(f"t{number}", "task", "SUCCESS", "EXECUTE", 1, 1, "1"),
        StepRow(f"t{number + 1}", "task", "RUNNING", "EXECUTE", 1, 1),
    ]
    changes = [
        Change("task", f"t{number}", "RUNNING", "SUCCESS", 1, "", 1, "x", seq, 7.0, "1"),
        Change("task", f"t{number + 1}", "PENDING", "RUNNING", None, "", 1, "x", seq + 1, 7.0),
    ]
    return Batch("x", 1, "RUNNING", seq + 1, 7.0, steps, changes)


async def _posted(flows: Flows) -> JobQueue:
    queue = JobQueue(flows)
    await asyncio.gather(*[queue.enqueue("flow", size=number) for number in range(JOBS)])
    return queue


def _jobs(server: postgres.Postgres) -> float:
    async def finish(queue: JobQueue) -> None:
        while (job := await queue.claim(flows=["flow"])) is not None:
            await queue.complete(job)

    async def measure() -> float:
        async with Flows(server.cleared()) as flows:
            queue = await _posted(flows)
            began = time.perf_counter()
            await asyncio.gather(*[finish(queue) for _ in range(CLAIMANTS)])
            return JOBS / (time.perf_counter() - began)

    return asyncio.run(measure())


def _raw_jobs(server: postgres.Postgres) -> float:
    async def prepare(url: str) -> None:
        async with Flows(url) as flows:
            await _posted(flows)

    url = server.cleared()
    asyncio.run(prepare(url))
    connections = [psycopg.connect(url, autocommit=True) for _ in range(CONNECTIONS)]
    threads = [threading.Thread(target=_finish, args=(db,)) for db in connections]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return JOBS / (time.perf_counter() - began)


def _finish(db: psycopg.Connection[tuple[str, int]]) -> None:
    with db:
        while claimed := _claimed(db):
            db.execute(_COMPLETE, (time.time(), *claimed))


def _claimed(db: psycopg.Connection[tuple[str, int]]) -> tuple[str, int] | None:
    now = time.time()
    with db.pipeline():
        db.execute(_LAPSE, (now,))
        db.execute(_DUE, (now,))
        cursor = db.execute(_CLAIM, ("me", now + 30, "flow"))
    return cursor.fetchone()


if __name__ == "__main__":
    report("flows and jobs on PostgreSQL", figures(), BARS)

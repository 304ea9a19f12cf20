"""Jobs whose process dies, or is stopped for longer than its lease."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
import time
from contextlib import asynccontextmanager, closing, suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from lifecycle.flows import Flows, JobQueue, JobState, sleep, step, workflow
from tests import postgres
from tests.flows.working import working
from tests.realtime.flows._worker import SLOW

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator
    from pathlib import Path

LIMIT = 30.0


@asynccontextmanager
async def worker(path: Path, lease: float) -> AsyncIterator[Process]:
    """Yield a separate process that works on a job and never completes it."""
    argv = [sys.executable, "-m", "tests.realtime.flows._worker", str(path), str(lease)]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    try:
        assert await said(process) == "working"
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.kill()
        await process.wait()


async def said(process: Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT):
        return (await process.stdout.readline()).decode().strip()


async def stop(process: Process, path: Path) -> None:
    """Stop the process while it does not hold the file's lock, because a stopped process would keep the lock."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=LIMIT)) as db:
        db.execute("BEGIN IMMEDIATE")
        process.send_signal(signal.SIGSTOP)
        while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
            await asyncio.sleep(0.01)
        db.execute("ROLLBACK")


async def test_jobs_of_a_dead_process_are_taken_over_long_before_the_lease_ends(tmp_path: Path) -> None:
    async with Flows(tmp_path / "flows.db") as flows, asyncio.timeout(LIMIT):
        queue = JobQueue(flows)
        job = await queue.enqueue("slow", id="one")
        async with worker(tmp_path / "flows.db", lease=3600) as process, working(queue, SLOW):
            process.kill()
            assert await job == "SUCCESS"
        assert job.attempts == 1
        results = {row.name: row.result for row in (await flows.store.load("one")).steps.values()}
        assert results == {"first": str(process.pid), "second": str(os.getpid())}


async def test_jobs_of_a_dead_process_are_free_for_a_process_that_starts_later(tmp_path: Path) -> None:
    async with Flows(tmp_path / "flows.db") as flows:
        await JobQueue(flows).enqueue("slow", id="one")
    async with worker(tmp_path / "flows.db", lease=3600) as process:
        process.kill()
        await process.wait()
    async with Flows(tmp_path / "flows.db") as flows:
        job = await JobQueue(flows).get("one")
        assert job.state is JobState.UNCLAIMED
        assert "but did not complete it" in job.error


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.engine("postgres"))])
async def test_a_job_that_kills_its_process_is_discarded_without_the_jobs_that_ran_next_to_it(
    tmp_path: Path, kind: str
) -> None:
    store = str(tmp_path / "flows.db") if kind == "sqlite" else postgres.server().url()
    ids, crashes = ["first", "killer", "second", "third"], 0
    async with Flows(store) as flows, asyncio.timeout(2 * LIMIT):
        queue = JobQueue(flows, max_attempts=3)
        jobs = [await queue.enqueue("killer" if id == "killer" else "neighbour", id=id) for id in ids]  # noqa: A001  # the natural name
        argv = [sys.executable, "-m", "tests.realtime.flows._poison", store]
        while await (await asyncio.create_subprocess_exec(*argv)).wait():
            crashes += 1
        assert await asyncio.gather(*jobs) == ["SUCCESS", "discarded", "SUCCESS", "SUCCESS"]
        # The first crash has several suspects.
        assert crashes == 4
        assert [(await queue.get(id)).attempts for id in ids] == [1, 3, 1, 1]  # noqa: A001  # the natural name


async def test_jobs_of_a_living_process_are_left_to_it(tmp_path: Path) -> None:
    async with Flows(tmp_path / "flows.db") as flows:
        queue = JobQueue(flows)
        await queue.enqueue("slow", id="one")
        async with worker(tmp_path / "flows.db", lease=3600):
            assert await queue.claim() is None
            queue.store.doubt()
            assert (await queue.get("one")).state is JobState.CLAIMED
            assert await flows.recover(SLOW) == []


async def test_a_process_stopped_beyond_its_lease_has_lost_job_and_flow(tmp_path: Path) -> None:
    async with Flows(tmp_path / "flows.db") as flows, asyncio.timeout(LIMIT):
        queue = JobQueue(flows)
        job = await queue.enqueue("slow", id="one")
        async with worker(tmp_path / "flows.db", lease=2.0) as process:
            await stop(process, tmp_path / "flows.db")
            async with working(queue, SLOW):
                assert await job == "SUCCESS"
            before = await flows.store.load("one")
            process.send_signal(signal.SIGCONT)
            assert await said(process) == "cancelled"
        after = await flows.store.load("one")
        assert after == before
        assert (await queue.get("one")).row.epoch >= 2


@pytest.mark.keeps_tasks  # the timer of open Flows may look for runs when the test ends
async def test_a_worker_that_was_frozen_beyond_its_lease_begins_no_step() -> None:
    begun: list[str] = []

    async def first() -> None:
        begun.append("first")

    async def second() -> None:
        begun.append("second")
        await asyncio.sleep(0.3)

    @workflow
    async def waits() -> None:
        await step(first)
        await sleep(0.3)
        await step(second)

    async with Flows() as flows, asyncio.timeout(LIMIT):
        queue = JobQueue(flows)
        job = await queue.enqueue("waits")
        async with working(queue, waits, lease=1.2):
            while not begun:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            time.sleep(1.4)  # the process is frozen
            assert await job == "SUCCESS"
    assert begun == ["first", "second"]


async def test_a_worker_elsewhere_is_notified_of_a_new_job(tmp_path: Path) -> None:
    """With a lease of one hour, polling alone would take twenty minutes."""
    async with Flows(tmp_path / "flows.db") as flows:
        queue = JobQueue(flows)
        await queue.enqueue("slow", id="one")
        async with worker(tmp_path / "flows.db", lease=3600) as process:
            await queue.enqueue("slow", id="two")
            assert await said(process) == "working"
            assert (await queue.get("two")).state is JobState.CLAIMED

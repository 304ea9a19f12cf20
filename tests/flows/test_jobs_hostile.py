"""Jobs in a problematic file: locked, full, read-only, damaged, or written by a newer version."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pytest

from lifecycle.errors import JournalError
from lifecycle.flows import Flows, JobQueue, linear, task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lifecycle.testing import Clock

pytestmark = pytest.mark.usefixtures("clock")


@task
async def double(size: int) -> int:
    await asyncio.sleep(1)
    return size * 2


GROW = linear("grow", double)


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[JobQueue]:
    async with Flows(tmp_path / "flows.db", stop_timeout=0.0) as flows:
        yield JobQueue(flows)


async def pragma(queue: JobQueue, text: str) -> None:
    """Run a PRAGMA on the queue's connection, for example to stop waiting for locks, which keeps the test short."""
    journal = queue.flows.store.journal  # type: ignore[attr-defined]  # the store uses SQLite
    await journal.run(lambda db: db.execute(f"PRAGMA {text}").fetchall())


def another(path: Path) -> sqlite3.Connection:
    """Open the file as a different process would. The connection waits for the lock, in case the queue is writing."""
    return sqlite3.connect(path / "flows.db", isolation_level=None, timeout=60)


async def test_a_locked_file_is_reported_and_works_again(queue: JobQueue, tmp_path: Path, clock: Clock) -> None:
    await pragma(queue, "busy_timeout = 10")
    before = JobQueue(queue.flows)
    await before.complete(await before.claim(await before.enqueue("grow")))
    await clock.advance(1)
    with closing(another(tmp_path)) as other:
        other.execute("BEGIN IMMEDIATE")
        for call in (queue.enqueue("grow"), queue.jobs(), queue.claim(), queue.purge(0.0)):
            with pytest.raises(JournalError, match=r"flows\.db: another process has locked it"):
                await call
        other.execute("ROLLBACK")
    assert (await queue.enqueue("grow", id="one")).state == "UNCLAIMED"


async def test_reads_do_not_wait_for_a_lock(queue: JobQueue, tmp_path: Path) -> None:
    await pragma(queue, "busy_timeout = 10")
    await queue.enqueue("grow", id="one")
    assert [job.id for job in await queue.jobs()] == ["one"]
    with closing(another(tmp_path)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert [job.id for job in await queue.jobs()] == ["one"]
        assert (await queue.get("one")).state == "UNCLAIMED"
        assert await queue.flows.recover(GROW) == []
        assert await queue.flows.store.flows() == []
        assert await queue.flows.store.changes("one") == []


async def test_a_worker_survives_a_locked_file(queue: JobQueue, tmp_path: Path, clock: Clock) -> None:
    await pragma(queue, "busy_timeout = 10")
    work = asyncio.create_task(queue.work({"grow": GROW}, lease=3.0))
    job = await queue.enqueue("grow", size=1)
    with closing(another(tmp_path)) as other:
        other.execute("BEGIN IMMEDIATE")
        await clock.advance(20)
        other.execute("ROLLBACK")
    assert await job == "SUCCESS"
    work.cancel()
    with suppress(asyncio.CancelledError):
        await work


async def test_a_worker_survives_a_lock_during_a_job(queue: JobQueue, tmp_path: Path, clock: Clock) -> None:
    """The worker cannot renew its claim or write the result, so it runs the job again."""
    await pragma(queue, "busy_timeout = 10")
    work = asyncio.create_task(queue.work({"grow": GROW}, lease=3.0))
    job = await queue.enqueue("grow", size=1)
    while not queue.flows.runs or not queue.flows.runs[0].steps:
        await asyncio.sleep(0.01)
    with closing(another(tmp_path)) as other:
        other.execute("BEGIN IMMEDIATE")
        await clock.advance(20)
        other.execute("ROLLBACK")
    assert await job == "SUCCESS"
    assert job.attempts == 1
    work.cancel()
    with suppress(asyncio.CancelledError):
        await work


async def test_a_full_disk_is_reported_and_freeing_space_is_enough(queue: JobQueue) -> None:
    await pragma(queue, "max_page_count = 1")
    with pytest.raises(JournalError, match="the disk is full; free some space"):
        for _ in range(1000):
            await queue.enqueue("grow", text="x" * 10_000)
    await pragma(queue, "max_page_count = 1000000")
    await queue.enqueue("grow", id="one")
    assert "one" in [job.id for job in await queue.jobs()]


async def test_a_file_that_cannot_be_written_is_reported(queue: JobQueue) -> None:
    job = await queue.enqueue("grow")
    await pragma(queue, "query_only = ON")
    for call in (queue.enqueue("grow"), queue.claim(job)):
        with pytest.raises(JournalError, match="it cannot be written"):
            await call


async def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "flows.db").write_bytes(b"not a database" * 500)
    with pytest.raises(JournalError, match="is not an SQLite database"):
        async with Flows(tmp_path / "flows.db"):
            pass
    assert not (tmp_path / "flows.db-owners").exists()


async def test_jobs_of_a_newer_program_are_refused(tmp_path: Path) -> None:
    async with Flows(tmp_path / "flows.db"):
        pass
    with closing(sqlite3.connect(tmp_path / "flows.db")) as db, db:
        db.execute("UPDATE lifecycle_schemas SET version = 99 WHERE name = 'jobs'")
    with pytest.raises(JournalError, match=r"'jobs' have version 99.*use the newer program"):
        async with Flows(tmp_path / "flows.db"):
            pass


async def test_damaged_values_affect_only_their_job(queue: JobQueue, tmp_path: Path) -> None:
    bad, good = await queue.enqueue("grow", size=1), await queue.enqueue("grow", size=2)
    with closing(sqlite3.connect(tmp_path / "flows.db")) as db, db:
        db.execute("UPDATE lifecycle_jobs SET store = '{nonsense' WHERE id = ?", (bad.id,))
    work = asyncio.create_task(queue.work({"grow": GROW}))
    assert await good == "SUCCESS"
    assert await bad == "discarded"
    assert "JSON" in bad.error
    work.cancel()
    with suppress(asyncio.CancelledError):
        await work


async def test_failing_to_detect_owners_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "flows.db-owners").write_text("a file")
    with pytest.raises(JournalError, match=r"flows\.db-owners.*make it a directory"):
        async with Flows(tmp_path / "flows.db"):
            pass


async def test_a_claim_can_be_extended_although_its_id_has_odd_characters(queue: JobQueue) -> None:
    for id_ in ("a\1b", "\1", "\1a", "\1b\1", 'ü"\\/😀'):
        job = await queue.claim(await queue.enqueue("grow", id=id_), lease=5.0)
        await queue.extend(job, 50.0)
        assert (await queue.get(id_)).row.until - queue.now() > 40.0
        assert await queue.store.unfinished([id_, "x"]) == {id_}
        await queue.complete(job)

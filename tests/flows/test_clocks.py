"""Changes to the system clock while flows and jobs run: no work is lost or waits for a time on the old clock."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from lifecycle.flows import Flows, JobQueue, SQLiteStore, linear, send, task
from lifecycle.journal import database

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lifecycle.testing import Clock

LIMIT = 30.0
HOUR = 3600.0

GROW = linear("grow", task(lambda: 1, name="a"))


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that sets the system clock."""
    real = time.time

    def step(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: real() + seconds)

    return step


@pytest.mark.parametrize("seconds", [40.0, HOUR, -HOUR])
async def test_setting_the_clock_does_not_end_claims(
    flows: Flows, reopened: Callable[[], Flows], step: Callable[[float], None], seconds: float
) -> None:
    queue = JobQueue(flows, max_attempts=1)
    job = await queue.claim(await queue.enqueue("grow", id="one"), lease=30.0)
    step(seconds)
    assert (await queue.get("one")).state == "CLAIMED"
    async with reopened() as later:
        # A file that is opened after the clock has been set is still consistent.
        assert abs(later.store.time() - flows.store.time()) < LIMIT
    await queue.extend(job, 30.0)
    await queue.complete(job)


async def test_virtual_time_passes_although_it_is_close_to_the_time_since_boot(flows: Flows, clock: Clock) -> None:
    queue = JobQueue(flows, max_attempts=2)
    await clock.advance(time.monotonic())
    await queue.claim(await queue.enqueue("grow", id="one"), lease=30.0)
    await clock.advance(31.0)
    assert (await queue.get("one")).state == "UNCLAIMED"


async def test_a_delayed_job_is_due_although_the_clock_goes_back(flows: Flows, step: Callable[[float], None]) -> None:
    queue = JobQueue(flows)
    job = await queue.enqueue("grow", after=0.2)
    step(-HOUR)
    work = asyncio.create_task(queue.work({"grow": GROW}))
    async with asyncio.timeout(LIMIT):
        assert await job == "SUCCESS"
    work.cancel()
    with suppress(asyncio.CancelledError):
        await work


async def test_the_time_of_a_flow_whose_job_is_discarded_is_that_of_the_system(
    flows: Flows, step: Callable[[float], None]
) -> None:
    queue, hold = JobQueue(flows, max_attempts=1), linear("hold", task(asyncio.Event().wait, name="a"))
    for id_ in ("discarded", "expired"):
        run = flows.start(hold, id=id_)
        await run.stored()
        await run.suspend(cancel_after=0)
    step(HOUR)
    await queue.discard(await queue.claim(await queue.enqueue("hold", id="discarded")))
    job = await queue.enqueue("hold", id="expired")
    async with asyncio.timeout(LIMIT):
        # The first claim that expires makes the job a suspect, and the second one counts.
        for _ in range(2):
            while await queue.claim(lease=0.01) is None:
                await asyncio.sleep(0.01)
        assert await job == "discarded"
    for id_ in ("discarded", "expired"):
        row = (await flows.store.load(id_)).flow
        assert row.state == "FAILURE"
        assert abs(row.at - time.time()) < LIMIT


async def test_an_event_that_waits_is_delivered_although_the_clock_goes_back(
    flows: Flows, step: Callable[[float], None]
) -> None:
    await flows.start(linear("f", task(lambda: send("topic", 1), name="a")))
    outbox, now = flows.store.outbox(), flows.store.time()
    (row,) = await outbox.take(9, now=now, until=now + 0.2)
    step(-HOUR)
    async with asyncio.timeout(LIMIT):
        while not (found := await outbox.take(9, now=flows.store.time(), until=flows.store.time() + LIMIT)):
            await asyncio.sleep(0.01)
    assert [each.id for each in found] == [row.id]


async def test_the_clock_of_a_file_continues_after_a_boot_and_never_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Callable[[float], None]
) -> None:
    path, boot = tmp_path / "flows.db", tmp_path / "boot"
    monkeypatch.setattr(database, "_BOOT_ID", str(boot))
    boot.write_text("first")
    async with SQLiteStore(path) as store:
        before = store.time()
    boot.write_text("second")
    step(-HOUR)
    async with SQLiteStore(path) as store:
        assert abs(store.time() - before) < LIMIT
    boot.write_text("third")
    step(HOUR)
    async with SQLiteStore(path) as store:
        assert store.time() > before + HOUR

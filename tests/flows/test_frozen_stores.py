"""A store that stops answering without an error does not block shutdown, and a cancellation leaves no store open."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.flows import Flows, FlowState, JobQueue, MemoryStore, linear, sleep, step, task, workflow
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from lifecycle.flows import Batch, FlowRow, Snapshot
    from lifecycle.testing import Clock

pytestmark = pytest.mark.usefixtures("clock")

#: The sum of the timeouts, in seconds, for tasks, for tasks that ignore cancellation, and for the last writes.
LIMIT = 3.0 + 5.0 + 3.0


class Frozen(MemoryStore):
    """A store that works until the test freezes it."""

    frozen = False

    async def commit(self, batch: Batch) -> None:
        if self.frozen:
            await asyncio.Event().wait()
        await super().commit(batch)

    async def due(self, names: Collection[str], *, now: float, limit: int, others: bool = False) -> list[FlowRow]:
        if self.frozen:
            await asyncio.Event().wait()
        return await super().due(names, now=now, limit=limit, others=others)


class Slow(MemoryStore):
    """A store that answers `load`, and carries out `take`, when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self.loaded, self.answer = asyncio.Event(), asyncio.Event()
        self.asked, self.taken, self.take_now = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def load(self, id: str) -> Snapshot:  # noqa: A002  # the natural name
        snapshot = await super().load(id)
        if self.slow:
            self.loaded.set()
            await self.answer.wait()
        return snapshot

    async def take(self, id: str, owner: str, **settings: Any) -> Snapshot:  # noqa: A002  # the natural name
        if not self.slow:
            return await super().take(id, owner, **settings)
        self.asked.set()
        await self.take_now.wait()
        self.slow = False
        self.taken.set()
        return await super().take(id, owner, **settings)


@workflow
async def nap() -> str:
    await sleep(1.5)
    return "awake"


@pytest.mark.keeps_tasks
async def test_a_workflow_that_is_started_while_the_timer_takes_it_continues() -> None:
    store = Slow()
    async with asyncio.timeout(LIMIT), Flows(store=store, stop_timeout=0.0) as flows:
        run = flows.start(nap, id="one")
        await until(lambda: run.parked)
    async with asyncio.timeout(LIMIT), Flows(store=store, stop_timeout=0.0) as flows:
        await flows.recover(nap)
        store.slow = True
        await store.asked.wait()
        # The run reads that the workflow waits, and gets this answer when the timer has taken the workflow.
        run = flows.start(nap, id="one")
        await store.loaded.wait()
        store.take_now.set()
        await store.taken.wait()
        store.answer.set()
        await until(lambda: run.ended)
    assert run.state is FlowState.SUCCESS


async def test_flows_whose_end_cannot_be_written_are_left(caplog: pytest.LogCaptureFixture) -> None:
    store, begun = Frozen(), asyncio.Event()
    async with asyncio.timeout(LIMIT):
        async with Flows(store=store, stop_timeout=3.0) as flows:
            run = flows.start(linear("f", task(begun.set, name="a"), task(asyncio.Event().wait, name="b")))
            await begun.wait()
            store.frozen = True
    assert run.stopped
    assert "the store did not respond" in caplog.text


async def test_workflows_that_cannot_be_looked_up_leave_no_timer(caplog: pytest.LogCaptureFixture) -> None:
    @workflow
    async def empty() -> None: ...

    store = Frozen()
    async with Flows(store=store, stop_timeout=3.0) as flows:
        await flows.start(empty)
        store.frozen = True
        # The timer looks for workflows that are due every 30 seconds.
        await asyncio.sleep(60.0)
    assert "the store did not respond" in caplog.text
    assert "timers of workflows" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_a_worker_whose_jobs_cannot_be_written_ends(caplog: pytest.LogCaptureFixture) -> None:
    store, begun = Frozen(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with Flows(store=store, stop_timeout=3.0) as flows:
        queue = JobQueue(flows)
        await queue.enqueue("f")
        working = asyncio.create_task(queue.work({"f": linear("f", task(work, name="a"))}))
        await begun.wait()
        store.frozen = True
        async with asyncio.timeout(LIMIT):
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working
    assert "unfinished jobs return to the queue" in caplog.text


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_the_store_is_closed_whenever_the_end_of_the_block_is_cancelled(tmp_path: Path, times: int) -> None:
    leaving, begun = asyncio.Event(), asyncio.Event()

    async def main(path: Path) -> None:
        async with Flows(path, stop_timeout=3.0) as flows:
            flows.start(linear("f", task(begun.set, name="a"), task(asyncio.Event().wait, name="b")))
            await begun.wait()
            leaving.set()

    for turns in range(12):
        path = tmp_path / f"{turns}.db"
        leaving.clear()
        begun.clear()
        running = asyncio.create_task(main(path))
        await leaving.wait()
        for _ in range(times):
            for _ in range(turns):
                await asyncio.sleep(0)
            running.cancel()
        async with asyncio.timeout(LIMIT):
            with suppress(asyncio.CancelledError):
                await running
        assert f"journal {path}" not in {thread.name for thread in threading.enumerate()}


async def test_a_workflow_that_is_taken_while_flows_are_suspended_waits_until_they_resume(clock: Clock) -> None:
    store, done = Slow(), list[str]()

    @workflow
    async def remind() -> None:
        await sleep(10)
        await step(done.append, "reminded")

    async with Flows(store=store, stop_timeout=0.0) as flows:
        run = flows.start(remind, id="r")
        await clock.advance(5)
        store.slow = True
        await store.asked.wait()
        await flows.suspend()
        store.take_now.set()
        await clock.advance(60)
        assert (run.state, done) == (FlowState.SUSPENDED, [])
        await flows.resume()
        await run
        assert done == ["reminded"]

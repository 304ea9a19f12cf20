"""A store that stops answering without an error does not block shutdown."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from lifecycle.flows import Flows, JobQueue, MemoryStore, linear, task

if TYPE_CHECKING:
    from lifecycle.flows import Batch

pytestmark = pytest.mark.usefixtures("clock")

#: Seconds that tasks, tasks that ignore cancellation, and the last writes have.
LIMIT = 3.0 + 5.0 + 3.0


class Frozen(MemoryStore):
    """A store that answers until the test freezes it."""

    frozen = False

    async def commit(self, batch: Batch) -> None:
        if self.frozen:
            await asyncio.Event().wait()
        await super().commit(batch)


async def test_flows_whose_end_cannot_be_written_are_left(caplog: pytest.LogCaptureFixture) -> None:
    store, begun = Frozen(), asyncio.Event()
    async with asyncio.timeout(LIMIT):
        async with Flows(store=store, stop_timeout=3.0) as flows:
            run = flows.start(linear("f", task(begun.set, name="a"), task(asyncio.Event().wait, name="b")))
            await begun.wait()
            store.frozen = True
    assert run.stopped
    assert "the store takes too long" in caplog.text


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

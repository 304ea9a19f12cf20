"""Jobs whose process exited without releasing them run alone, so that a crash counts against its cause."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lifecycle.flows import Flows, JobQueue, MemoryStore, current_task, linear, sleep, step, task, workflow
from lifecycle.flows.stores.memory import MemoryJobs
from tests.flows.working import working

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from lifecycle.flows import Flow
    from lifecycle.flows.queue import Job
    from lifecycle.flows.records import Claim, JobRow, Snapshot
    from lifecycle.testing import Clock

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def queue(flows: Flows) -> JobQueue:
    return JobQueue(flows, max_attempts=3)


def doing(name: str, fn: Callable[[], Awaitable[object]]) -> Flow:
    return linear(name, task(fn, name="work"))


class Log:
    """The jobs that ran, with the jobs that were running when each of them started."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.running: list[str] = []
        self.started: dict[str, list[str]] = {}

    async def work(self) -> None:
        id = current_task().flow  # noqa: A001  # the natural name
        self.started[id] = list(self.running)
        self.running.append(id)
        await asyncio.sleep(self.seconds)
        self.running.remove(id)


async def crashed(queue: JobQueue, *ids: str, flow: str = "f", clock: Clock) -> list[Job]:
    """Return jobs that were claimed by a process that exited without releasing them."""
    jobs = [await queue.enqueue(flow, id=each) for each in ids]
    for job in jobs:
        await queue.claim(job, lease=1.0)
    await clock.advance(1)
    return [await queue.get(job.id) for job in jobs]


async def test_a_crash_is_not_counted_unless_the_job_was_suspected_before(queue: JobQueue, clock: Clock) -> None:
    (job,) = await crashed(queue, "a", clock=clock)
    assert (job.state, job.attempts) == ("UNCLAIMED", 0)
    for attempts in (1, 2):
        await queue.claim(job, lease=1.0)
        await clock.advance(1)
        job = await queue.get("a")
        assert (job.state, job.attempts) == ("UNCLAIMED", attempts)
    await queue.claim(job, lease=1.0)
    await clock.advance(1)
    assert (await queue.get("a")).outcome == "discarded"


async def test_suspects_run_one_at_a_time_and_other_jobs_together(queue: JobQueue, clock: Clock) -> None:
    log = Log(2.0)
    jobs = await crashed(queue, "a", "b", "c", clock=clock)
    jobs += [await queue.enqueue("f", id=each) for each in ("d", "e")]
    async with working(queue, doing("f", log.work)):
        assert await asyncio.gather(*jobs) == ["SUCCESS"] * 5
    assert log.started == {"a": [], "b": [], "c": [], "d": [], "e": ["d"]}
    assert [(await queue.get(job.id)).attempts for job in jobs] == [1] * 5


async def test_a_suspect_that_fails_or_waits_is_no_longer_one(flows: Flows, clock: Clock) -> None:
    queue = JobQueue(flows)
    await crashed(queue, "a", "b", clock=clock)
    first, second = await queue.claim(), await queue.claim()
    assert first is not None
    assert second is not None
    await queue.release(first, error="no room", after=0)
    await queue.park(second)
    assert [(await queue.get(each)).error for each in "ab"] == ["no room", ""]


async def test_a_suspect_waits_for_running_jobs_but_at_most_one_lease(queue: JobQueue, clock: Clock) -> None:
    log = Log(1000.0)
    await queue.claim(await queue.enqueue("f", id="a"), lease=5.0)
    await queue.enqueue("f", id="long")
    async with working(queue, doing("f", log.work), lease=30.0):
        await clock.advance(30)
        assert log.running == ["long"]
        await clock.advance(10)
        assert log.running == ["long", "a"]


async def test_a_suspect_may_wait_for_another_job(queue: JobQueue, clock: Clock) -> None:
    log = Log(0.0)

    async def parent() -> None:
        await (await queue.get("child"))

    await crashed(queue, "parent", flow="p", clock=clock)
    await crashed(queue, "child", clock=clock)
    async with working(queue, doing("p", parent), doing("f", log.work), lease=30.0):
        job = await queue.get("parent")
        assert await job == "SUCCESS"
    assert log.started == {"child": []}


async def test_a_suspect_runs_alone_for_longer_after_each_crash(queue: JobQueue, clock: Clock) -> None:
    """Otherwise, a job that takes longer than a lease to exit would never be the only suspect."""
    log = Log(1000.0)
    (job,) = await crashed(queue, "a", clock=clock)
    for _ in range(3):
        claimed = await queue.claim(job, lease=1.0)
        await queue.acquit(claimed, queue.now() + 1.0)
        await clock.advance(1)
        job = await queue.get("a")
    assert job.attempts == 0
    await queue.enqueue("f", id="b")
    async with working(queue, doing("f", log.work), lease=30.0):
        await clock.advance(110)
        assert log.running == ["a"]
        await clock.advance(50)
        assert log.running == ["a", "b"]
        assert (await queue.get("a")).error == ""


async def test_a_suspect_also_excludes_the_jobs_of_other_queues(queue: JobQueue, clock: Clock) -> None:
    log = Log(2.0)
    other = JobQueue(queue.flows, name="other")
    suspects = [*await crashed(queue, "a", clock=clock), *await crashed(other, "b", clock=clock)]
    work = doing("f", log.work)
    async with working(queue, work), working(other, work):
        await asyncio.gather(*suspects)
        assert {id: started for id, started in log.started.items() if started} == {}  # noqa: A001  # the natural name


async def test_a_workflow_that_waits_lets_other_jobs_start(queue: JobQueue, clock: Clock) -> None:
    log = Log(0.0)

    @workflow
    async def order() -> None:
        await sleep(1000)
        await step(log.work, name="end")

    await crashed(queue, "a", flow="order", clock=clock)
    await queue.enqueue("f", id="b")
    async with working(queue, order, doing("f", log.work), lease=3600.0):
        await clock.advance(100)
        assert list(log.started) == ["b"]


async def test_a_worker_that_stops_releases_the_suspect_that_it_runs(queue: JobQueue, clock: Clock) -> None:
    log = Log(1000.0)
    (job,) = await crashed(queue, "a", clock=clock)
    async with working(queue, doing("f", log.work)):
        await clock.advance(1)
        assert log.running == ["a"]
    job = await queue.get("a")
    assert (job.state, job.attempts) == ("UNCLAIMED", 0)


class SlowJobs(MemoryJobs):
    """Jobs of a store that answers a claim after longer than its lease."""

    async def begin(self, flows: Collection[str], claim: Claim, limit: int) -> list[tuple[JobRow, Snapshot | None]]:
        begun = await super().begin(flows, claim, limit)
        if len(begun) > 1:
            await asyncio.sleep(claim.until - claim.now + 1.0)
        return begun


class Slow(MemoryStore):
    """A store with `SlowJobs`."""

    def __init__(self) -> None:
        super().__init__()
        self._jobs = SlowJobs(self)


async def test_a_worker_that_releases_suspects_after_its_claims_have_ended_goes_on(clock: Clock) -> None:
    log = Log(0.0)
    async with Flows(store=Slow(), stop_timeout=0.0) as flows:
        queue = JobQueue(flows)
        jobs = await crashed(queue, "a", "b", clock=clock)
        async with asyncio.timeout(600), working(queue, doing("f", log.work), lease=5.0):
            assert await asyncio.gather(*jobs) == ["SUCCESS"] * 2

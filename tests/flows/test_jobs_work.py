"""A worker's guarantees, with each store."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.errors import ClaimLost, FlowCancelled, FlowError, JournalError
from lifecycle.flows import (
    Flows,
    FlowState,
    JobQueue,
    MemoryStore,
    PostgresStore,
    current_task,
    linear,
    task,
    unordered,
)
from lifecycle.flows.stores.memory import MemoryJobs
from tests.flows.working import working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

    from lifecycle.flows import Claim, Flow, JobRow, Presence
    from lifecycle.testing import Clock

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def queue(flows: Flows) -> JobQueue:
    return JobQueue(flows)


@pytest.fixture
async def other(flows: Flows, reopened: Callable[[], Flows]) -> AsyncIterator[JobQueue]:
    """Return a queue in a separate session, as in a different process. A memory store has only one session."""
    if isinstance(flows.store, MemoryStore):
        yield JobQueue(flows)
        return
    async with reopened() as others:
        yield JobQueue(others)


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@task
async def double(size: int) -> int:
    return size * 2


@task
async def fails() -> None:
    raise RuntimeError("no room")


@task
async def clings() -> None:
    """A task that ignores cancellation."""


@clings.revert
async def _(result: Any) -> None:
    raise RuntimeError("stuck")


GROW = linear("grow", double)


def doing(name: str, fn: Callable[[], Awaitable[Any]]) -> Flow:
    return linear(name, task(fn, name="work"))


def noted(calls: list[str]) -> Callable[[], Awaitable[Any]]:
    async def note() -> None:
        calls.append(current_task().flow)

    return note


# -- the outcome of a job ----------------------------------------------------------------------------------------------


async def test_a_job_runs_the_flow_that_it_was_enqueued_for(queue: JobQueue) -> None:
    async with working(queue, GROW):
        job = await queue.enqueue("grow", id="one", size=5)
        assert await job == "SUCCESS"
        run = queue.flows.start(GROW, id="one", size=5)
        assert await run == {"double": 10}
    assert queue.flows.runs == ()


async def test_a_job_whose_flow_was_reverted_is_complete_with_the_reason(queue: JobQueue) -> None:
    async with working(queue, linear("f", double, fails)):
        job = await queue.enqueue("f", size=5)
        assert await job == "REVERTED"
    assert job.error == "RuntimeError: no room"


async def test_a_job_whose_flow_could_not_be_reverted_is_complete_with_the_reason(queue: JobQueue) -> None:
    async with working(queue, linear("f", clings, fails)):
        job = await queue.enqueue("f")
        assert await job == "FAILURE"
    assert job.error == "RuntimeError: stuck"


@pytest.mark.parametrize("values", [{}, {"size": 5, "colour": "red"}])
async def test_a_job_whose_attempts_all_fail_is_discarded(queue: JobQueue, values: dict[str, Any]) -> None:
    async with working(queue, GROW):
        job = await queue.enqueue("grow", **values)
        assert await job == "discarded"
    assert ("size" in job.error) or ("colour" in job.error)
    assert job.attempts == 1


async def test_a_job_whose_flow_has_ended_does_not_run_it_again(queue: JobQueue) -> None:
    calls = []

    async def work() -> None:
        calls.append(1)

    flow = doing("f", work)
    await queue.flows.start(flow, id="one")
    async with working(queue, flow):
        assert await (await queue.enqueue("f", id="one")) == "SUCCESS"
    assert calls == [1]


async def test_a_delayed_job_runs_when_it_is_due(queue: JobQueue, clock: Clock) -> None:
    async with working(queue, GROW):
        job = await queue.enqueue("grow", size=1, after=3600)
        await clock.advance(3599)
        assert (await queue.get(job.id)).state == "UNCLAIMED"
        await job
        assert 3600 <= clock.time() < 3601


async def test_jobs_of_other_flows_are_left_to_others(queue: JobQueue, clock: Clock) -> None:
    job = await queue.enqueue("shrink", size=1)
    async with working(queue, GROW):
        await clock.advance(100)
        assert (await queue.get(job.id)).attempts == 0


async def test_a_due_job_that_no_worker_claims_is_logged_once_per_flow(
    flows: Flows, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    queue = JobQueue(flows)
    for number in range(3):
        await queue.enqueue("nosuch", id=f"job-{number}")
    await queue.enqueue("later", after=1000.0)
    await JobQueue(flows, name="other").enqueue("elsewhere")
    async with working(queue, GROW, lease=30.0):
        await clock.advance(5)
        assert "no worker" not in caplog.text
        await clock.advance(100)
    logged = [record.getMessage() for record in caplog.records if "no worker" in record.getMessage()]
    assert logged == [
        "no worker has claimed job 'job-0' for flow 'nosuch', which is due; run a worker with it, or check its name"
    ]


async def test_work_with_a_flow_instead_of_a_mapping_says_what_to_write(queue: JobQueue) -> None:
    with pytest.raises(TypeError, match=r"flows must map names to flows, got .*; write queue\.work\(\{'grow': …\}\)"):
        await queue.work(GROW)  # type: ignore[arg-type]  # wrong on purpose


async def test_jobs_run_in_order_within_the_concurrency_limit(queue: JobQueue) -> None:
    at_once, most, order = 0, 0, []

    async def work() -> None:
        nonlocal at_once, most
        order.append(current_task().flow)
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(1)
        at_once -= 1

    jobs = [
        await queue.enqueue("f", id=f"{priority}-{number}", priority=priority)
        for number in range(3)
        for priority in ("low", "high")
    ]
    async with working(queue, doing("f", work), concurrency=2):
        assert await asyncio.gather(*jobs) == ["SUCCESS"] * 6
    assert most == 2
    # If two jobs start at the same time, either may be first.
    assert [sorted(order[place : place + 2]) for place in (0, 2, 4)] == [
        ["high-0", "high-1"],
        ["high-2", "low-0"],
        ["low-1", "low-2"],
    ]


async def test_a_waiter_in_another_session_is_notified_of_the_end(queue: JobQueue, other: JobQueue) -> None:
    async with working(queue, GROW):
        job = await other.enqueue("grow", size=1)
        # A virtual clock does not wait for network messages. Processes that receive no messages poll.
        async with asyncio.timeout(30 if isinstance(queue.flows.store, PostgresStore) else 2):
            assert await job == "SUCCESS"


async def test_two_workers_share_jobs_and_run_none_twice(queue: JobQueue, other: JobQueue) -> None:
    done: list[str] = []

    async def work() -> None:
        await asyncio.sleep(0.5)
        done.append(current_task().flow)

    flow = doing("f", work)
    jobs = [await queue.enqueue("f", id=str(number)) for number in range(20)]
    async with working(queue, flow, concurrency=3), working(other, flow, concurrency=3):
        await asyncio.gather(*jobs)
    assert sorted(done, key=int) == [str(number) for number in range(20)]


# -- extended and released claims --------------------------------------------------------------------------------------


async def test_a_claim_is_kept_however_long_the_job_takes(queue: JobQueue, other: JobQueue) -> None:
    calls = 0

    async def work() -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(100)

    flow = doing("f", work)
    job = await queue.enqueue("f")
    async with working(queue, flow, lease=3.0), working(other, flow, lease=3.0):
        assert await job == "SUCCESS"
    assert (calls, job.attempts) == (1, 1)


async def test_a_worker_that_stops_releases_its_jobs_and_another_continues_them(
    queue: JobQueue, other: JobQueue
) -> None:
    calls: list[str] = []
    gate = asyncio.Event()

    async def first() -> None:
        calls.append("first")

    async def second() -> None:
        calls.append("second")
        await gate.wait()

    flow = linear("f", task(first), task(second))
    job = await queue.enqueue("f", id="one")
    async with working(queue, flow):
        await until(lambda: len(calls) == 2)
    found = await queue.get("one")
    assert (found.state, found.attempts) == ("UNCLAIMED", 0)
    assert (await queue.flows.store.load("one")).flow.state == "SUSPENDED"
    assert queue.flows.runs == ()
    gate.set()
    async with working(other, flow):
        assert await job == "SUCCESS"
    assert calls == ["first", "second", "second"]


async def test_a_job_that_ends_while_its_worker_stops_is_complete(reopened: Callable[[], Flows]) -> None:
    began = asyncio.Event()

    async def work() -> None:
        began.set()
        await asyncio.sleep(1)

    async with Flows(store=reopened().store, stop_timeout=5.0) as flows:
        queue = JobQueue(flows)
        job = await queue.enqueue("f")
        async with working(queue, doing("f", work)):
            await began.wait()
        assert (await queue.get(job.id)).outcome == "SUCCESS"


async def test_a_worker_that_is_cancelled_twice_stops_at_once(reopened: Callable[[], Flows], clock: Clock) -> None:
    began = asyncio.Event()

    async def work() -> None:
        began.set()
        await asyncio.sleep(1000)

    async with Flows(store=reopened().store, stop_timeout=100.0) as flows:
        queue = JobQueue(flows)
        await queue.enqueue("f")
        async with working(queue, doing("f", work)) as worker:
            await began.wait()
            worker.cancel()
            await clock.advance(1)
            assert not worker.done()
        assert clock.time() < 10
        assert flows.runs == ()


async def test_suspended_flows_keep_their_claims_and_continue_when_resumed(queue: JobQueue, clock: Clock) -> None:
    calls = []

    async def work() -> None:
        calls.append(1)
        await asyncio.sleep(10)

    job = await queue.enqueue("f")
    async with working(queue, linear("f", task(work, name="a"), task(work, name="b")), lease=3.0):
        await until(lambda: calls)
        await queue.flows.suspend()
        await clock.advance(100)
        assert (await queue.get(job.id)).state == "CLAIMED"
        assert len(calls) == 1
        await queue.flows.resume()
        assert await job == "SUCCESS"
    assert len(calls) == 2


# -- lost claims -------------------------------------------------------------------------------------------------------


async def test_a_worker_that_lost_a_claim_stops_and_its_writes_are_refused(
    queue: JobQueue, other: JobQueue, clock: Clock
) -> None:
    """The other worker's clock is ahead, so the lease has already expired for that worker."""
    fates: list[str] = []

    async def work() -> str:
        try:
            await asyncio.sleep(50)
        except asyncio.CancelledError:
            fates.append("cancelled")
            raise
        fates.append("done")
        return "x"

    flow = doing("f", work)
    await queue.enqueue("f", id="one")
    async with working(queue, flow, lease=9.0):
        await until(lambda: queue.flows.runs)
        (run,) = queue.flows.runs
        await until(lambda: run.steps and run.steps["work"].state == "RUNNING")
        other.now = lambda: clock.time() + 100
        stolen = await other.claim(await other.get("one"), "thief", lease=1000.0)
        with pytest.raises(ClaimLost):
            await run
        assert fates == ["cancelled"]
        assert queue.flows.runs == ()
    assert (await queue.get("one")).owner == "thief"
    await other.complete(stolen, "thief")


async def test_a_task_that_ends_after_the_claim_was_lost_is_not_written(
    queue: JobQueue, other: JobQueue, clock: Clock
) -> None:
    """No heartbeat is sent in the meantime, so the flow's own write is rejected."""

    async def work() -> str:
        await asyncio.sleep(2)
        return "late"

    await queue.enqueue("f", id="one")
    async with working(queue, doing("f", work), lease=90.0):
        await until(lambda: queue.flows.runs and queue.flows.runs[0].steps)
        other.now = lambda: clock.time() + 100
        await other.claim(await other.get("one"), "thief", lease=1000.0)
        (run,) = queue.flows.runs
        with pytest.raises(ClaimLost):
            await run
    steps = (await queue.flows.store.load("one")).steps
    assert (steps["work"].state, steps["work"].result) == ("RUNNING", None)


async def test_a_worker_that_reclaims_its_lost_job_does_not_run_it_twice_at_once(
    queue: JobQueue, other: JobQueue, clock: Clock
) -> None:
    at_once, most, calls = 0, 0, 0

    async def work() -> None:
        nonlocal at_once, most, calls
        calls, at_once = calls + 1, at_once + 1
        most = max(most, at_once)
        try:
            await asyncio.sleep(20)
        finally:
            at_once -= 1

    job = await queue.enqueue("f", id="one")
    async with working(queue, doing("f", work), lease=30.0):
        await until(lambda: calls)
        other.now = lambda: clock.time() + 100
        # Reading the jobs releases the expired claim. Any worker can then claim the job.
        assert (await other.get("one")).state == "UNCLAIMED"
        await queue.enqueue("g")
        assert await job == "SUCCESS"
    assert (calls, most) == (2, 1)


async def test_a_late_heartbeat_loses_the_claims_that_have_expired_and_no_others(
    queue: JobQueue, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[str] = []

    async def work() -> None:
        begun.append(current_task().flow)
        await asyncio.sleep(100 if len(begun) < 3 else 0)

    async with working(queue, doing("f", work), lease=30.0):
        early = await queue.enqueue("f", id="early")
        await until(lambda: len(begun) == 1)
        await clock.advance(9)
        late = await queue.enqueue("f", id="late")
        await until(lambda: len(begun) == 2)
        # The loop behaves as if it had been blocked for 22 seconds before the heartbeat.
        queue.now = lambda: clock.time() + 22
        assert [await early, await late] == ["SUCCESS", "SUCCESS"]
    assert begun == ["early", "late", "early"]
    assert (early.attempts, late.attempts) == (1, 1)
    assert "the claim on job early has expired: it was not extended in time" in caplog.text
    assert "cannot extend claims" not in caplog.text


class FullDisk(MemoryJobs):
    """A job queue whose first five attempts to extend a claim fail."""

    left = 5

    async def renew(self, rows: Sequence[JobRow], *, now: float, until: float) -> list[JobRow]:
        self.left -= 1
        if self.left >= 0:
            raise JournalError("the disk is full")
        return await super().renew(rows, now=now, until=until)


class OnFullDisk(MemoryStore):
    def jobs(self, presence: Presence) -> MemoryJobs:
        return FullDisk(self)


async def test_claims_are_extended_soon_after_a_store_that_failed_answers_again() -> None:
    async with Flows(store=OnFullDisk()) as flows:
        queue = JobQueue(flows)
        async with working(queue, doing("f", lambda: asyncio.sleep(60)), lease=30.0):
            job = await queue.enqueue("f")
            assert await job == "SUCCESS"
    assert job.attempts == 1


async def test_the_flow_of_a_job_is_not_recovered(queue: JobQueue) -> None:
    async def work() -> None:
        await asyncio.sleep(1000)

    flow = doing("f", work)
    await queue.enqueue("f", id="one")
    async with working(queue, flow):
        await until(lambda: queue.flows.runs)
        await queue.flows.runs[0].suspend(cancel_after=0)
    assert (await queue.flows.store.load("one")).flow.state == FlowState.SUSPENDED
    assert await queue.flows.recover(flow) == []


# -- bad input ---------------------------------------------------------------------------------------------------------


async def test_invalid_arguments_of_work_are_refused_before_any_claim(queue: JobQueue) -> None:
    await queue.enqueue("grow", size=1)
    with pytest.raises(ValueError, match="'grow' must be the flow's name, got 'shrink'"):
        await queue.work({"shrink": GROW})
    with pytest.raises(ValueError, match="at least one name"):
        await queue.work({})
    with pytest.raises(ValueError, match="concurrency must be 1 or more, got 0"):
        await queue.work({"grow": GROW}, concurrency=0)
    with pytest.raises(FlowError, match="double"):
        await queue.work({"twice": unordered("twice", double, linear("part", double))})
    assert (await queue.jobs())[0].attempts == 0


async def test_a_worker_ends_when_its_flows_are_closed(reopened: Callable[[], Flows]) -> None:
    async with reopened() as flows:
        work = asyncio.create_task(JobQueue(flows).work({"grow": GROW}))
        await asyncio.sleep(1)
    with pytest.raises(FlowError, match="not open"):
        await work


async def test_suspended_flows_claim_no_jobs_until_they_are_resumed(queue: JobQueue, clock: Clock) -> None:
    async with working(queue, GROW, lease=3.0):
        await queue.flows.suspend()
        job = await queue.enqueue("grow", size=4)
        await clock.advance(60.0)
        assert (await queue.get(job.id)).state == "UNCLAIMED"
        await queue.flows.resume()
        assert await job == "SUCCESS"
    assert (await queue.get(job.id)).attempts == 1


# -- discarded jobs ----------------------------------------------------------------------------------------------------


async def test_the_flow_of_a_discarded_job_is_not_recovered(flows: Flows, clock: Clock) -> None:
    calls = []

    async def poison() -> None:
        calls.append(1)
        await asyncio.sleep(1000)

    queue, flow = JobQueue(flows, max_attempts=1), doing("f", poison)
    async with working(queue, flow, lease=9.0):
        job = await queue.enqueue("f", id="one")
        await until(lambda: calls)
        queue.now = lambda: clock.time() + 100
        await until(lambda: len(calls) == 2)
        queue.now = lambda: clock.time() + 200
        assert await job == "discarded"
    assert await flows.recover(flow) == []
    with pytest.raises(FlowError, match="flow 'one' is FAILURE: its job was discarded: "):
        await flows.start(flow, id="one")
    assert calls == [1, 1]


async def test_the_flow_of_a_discarded_job_can_be_reset_and_done_again(flows: Flows, clock: Clock) -> None:
    keys = []

    async def slow() -> None:
        keys.append(current_task().key)
        await asyncio.sleep(1000 if len(keys) < 3 else 0)

    queue, flow = JobQueue(flows, max_attempts=1), doing("f", slow)
    async with working(queue, flow, lease=9.0):
        job = await queue.enqueue("f", id="one")
        await until(lambda: keys)
        queue.now = lambda: clock.time() + 100
        await until(lambda: len(keys) == 2)
        queue.now = lambda: clock.time() + 200
        assert await job == "discarded"
    run = flows.start(flow, id="one")
    with suppress(FlowError):
        await run
    await run.reset()
    assert await flows.start(flow, id="one") == {"work": None}
    assert keys == ["one/work/1", "one/work/1", "one/work/2"]


async def test_a_job_with_the_id_of_another_flow_is_discarded_and_the_flow_continues(flows: Flows) -> None:
    gate = asyncio.Event()
    queue, build = JobQueue(flows), doing("build", gate.wait)
    run = await flows.start(build, id="one").stored()
    async with working(queue, GROW):
        job = await queue.enqueue("grow", id="one", size=5)
        assert await job == "discarded"
    assert "its id belongs to flow 'build'" in job.error
    gate.set()
    assert await run == {"work": True}


class _Counted(MemoryJobs):
    """A job queue that counts a worker's attempts to claim a job."""

    asked = 0

    async def take(self, flows: Collection[str] | None, claim: Claim, limit: int) -> list[JobRow]:
        self.asked += 1
        return await super().take(flows, claim, limit)


class _Counting(MemoryStore):
    """A store that counts the requests for jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = _Counted(self)

    def jobs(self, presence: Presence) -> MemoryJobs:
        return self.counted


async def test_a_job_that_has_not_started_is_cancelled_at_once(flows: Flows, clock: Clock) -> None:
    """The store knows only the name of its flow, which may be a flow of tasks."""
    queue = JobQueue(flows)
    calls: list[str] = []
    job = await queue.enqueue("grow", id="a")
    later = await queue.enqueue("grow", id="b", after=500.0)
    waiting = asyncio.create_task(flows.wait("a"))
    await clock.settle()
    for _ in range(2):
        await flows.cancel("a")
        await flows.cancel("b")
    assert [await job, await later] == ["CANCELLED", "CANCELLED"]
    with pytest.raises(FlowCancelled):
        await waiting
    async with working(queue, doing("grow", noted(calls))):
        await clock.advance(1000)
    assert calls == []
    assert (await flows.get("a")).state is FlowState.CANCELLED
    assert await queue.purge(0) == 2
    assert await flows.list() == []
    again = await queue.enqueue("grow", id="a")
    async with working(queue, doing("grow", noted(calls))):
        assert await again == "SUCCESS"
    assert calls == ["a"]


async def test_a_job_that_was_released_before_its_flow_started_is_cancelled(flows: Flows) -> None:
    queue = JobQueue(flows)
    await queue.enqueue("grow", id="a", size=1)
    ((job, _),) = await queue.begin(["grow"], 30.0, 1)
    await queue.release(job)
    await flows.cancel("a")
    assert await job == "CANCELLED"
    assert (await flows.get("a")).state is FlowState.CANCELLED


async def test_a_job_whose_id_belongs_to_another_flow_is_not_cancelled(flows: Flows) -> None:
    await flows.start(linear("other", fails), id="a").suspend()
    await JobQueue(flows).enqueue("grow", id="a", size=1)
    with pytest.raises(FlowError, match="'a' is not a workflow"):
        await flows.cancel("a")
    assert (await JobQueue(flows).get("a")).state == "UNCLAIMED"


async def test_a_flow_of_tasks_that_a_worker_runs_takes_no_cancellation_or_signal(
    queue: JobQueue, clock: Clock
) -> None:
    async with working(queue, doing("f", lambda: asyncio.sleep(100))):
        job = await queue.enqueue("f", id="a")
        await clock.advance(1)
        with pytest.raises(FlowError, match="'a' is not a workflow"):
            await queue.flows.cancel("a")
        with pytest.raises(FlowError, match="'a' is not a workflow"):
            await queue.flows.signal("a", "go")
        assert await job == "SUCCESS"


async def test_a_new_job_wakes_only_workers_of_its_flow(clock: Clock) -> None:
    store = _Counting()
    async with Flows(store=store) as flows:
        queue = JobQueue(flows)
        async with working(queue, GROW):
            await clock.settle()
            asked = store.counted.asked
            for _ in range(10):
                await queue.enqueue("other")
                await clock.settle()
            assert store.counted.asked == asked
            assert await (await queue.enqueue("grow", size=1)) == "SUCCESS"


async def test_jobs_are_claimed_in_batches(clock: Clock) -> None:
    store = _Counting()
    async with Flows(store=store) as flows:
        queue = JobQueue(flows)
        jobs = [await queue.enqueue("grow", size=number) for number in range(8)]
        async with working(queue, GROW, concurrency=8):
            await asyncio.gather(*[queue.wait(job) for job in jobs])
            assert store.counted.asked <= 2

"""What a conductor promises, whatever the jobs are kept in."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.errors import ClaimLost, FlowError, JournalError
from lifecycle.flows import Board, Flows, FlowState, MemoryStore, PostgresStore, current_task, linear, task, unordered
from lifecycle.flows.memory.jobs import MemoryJobs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

    from lifecycle.flows import Claim, Flow, JobRow, Owners
    from lifecycle.testing import Clock

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def board(flows: Flows) -> Board:
    return Board(flows)


@pytest.fixture
async def other(flows: Flows, reopened: Callable[[], Flows]) -> AsyncIterator[Board]:
    """A board of another session, as another process would have it; of memory there is but one."""
    if isinstance(flows.store, MemoryStore):
        yield Board(flows)
        return
    async with reopened() as others:
        yield Board(others)


@asynccontextmanager
async def working(board: Board, *flows: Flow, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    work = asyncio.create_task(board.work({flow.name: flow for flow in flows}, **options))
    try:
        yield work
    finally:
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work


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
    """It cannot be undone."""


@clings.revert
async def _(result: Any) -> None:
    raise RuntimeError("stuck")


GROW = linear("grow", double)


def doing(name: str, fn: Callable[[], Awaitable[Any]]) -> Flow:
    return linear(name, task(fn, name="work"))


# -- what becomes of a job ---------------------------------------------------------------------------------------------


async def test_a_job_is_done_by_the_flow_that_it_was_posted_for(board: Board) -> None:
    async with working(board, GROW):
        job = await board.post("grow", id="one", size=5)
        assert await job == "SUCCESS"
        run = board.flows.start(GROW, id="one", size=5)
        assert await run == {"double": 10}
    assert board.flows.runs == ()


async def test_a_job_whose_flow_was_undone_is_complete_and_says_why(board: Board) -> None:
    async with working(board, linear("f", double, fails)):
        job = await board.post("f", size=5)
        assert await job == "REVERTED"
    assert job.error == "RuntimeError: no room"


async def test_a_job_whose_flow_could_not_be_undone_is_complete_and_says_why(board: Board) -> None:
    async with working(board, linear("f", clings, fails)):
        job = await board.post("f")
        assert await job == "FAILURE"
    assert job.error == "RuntimeError: stuck"


@pytest.mark.parametrize("values", [{}, {"size": 5, "colour": "red"}])
async def test_a_job_that_no_attempt_could_do_is_trashed(board: Board, values: dict[str, Any]) -> None:
    async with working(board, GROW):
        job = await board.post("grow", **values)
        assert await job == "trashed"
    assert ("size" in job.error) or ("colour" in job.error)
    assert job.attempts == 1


async def test_a_flow_that_came_to_its_end_before_is_not_done_again(board: Board) -> None:
    calls = []

    async def work() -> None:
        calls.append(1)

    flow = doing("f", work)
    await board.flows.start(flow, id="one")
    async with working(board, flow):
        assert await (await board.post("f", id="one")) == "SUCCESS"
    assert calls == [1]


async def test_a_job_that_is_due_later_is_done_then(board: Board, clock: Clock) -> None:
    async with working(board, GROW):
        job = await board.post("grow", size=1, after=3600)
        await clock.advance(3599)
        assert (await board.get(job.id)).state == "UNCLAIMED"
        await job
        assert 3600 <= clock.time() < 3601


async def test_jobs_of_other_flows_are_left_to_others(board: Board, clock: Clock) -> None:
    job = await board.post("shrink", size=1)
    async with working(board, GROW):
        await clock.advance(100)
        assert (await board.get(job.id)).attempts == 0


async def test_they_are_done_in_order_and_no_more_at_once_than_was_said(board: Board) -> None:
    at_once, most, order = 0, 0, []

    async def work() -> None:
        nonlocal at_once, most
        order.append(current_task().flow)
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(1)
        at_once -= 1

    jobs = [
        await board.post("f", id=f"{priority}-{number}", priority=priority)
        for number in range(3)
        for priority in ("low", "high")
    ]
    async with working(board, doing("f", work), concurrency=2):
        assert await asyncio.gather(*jobs) == ["SUCCESS"] * 6
    assert most == 2
    # Of two that begin at once, either may be the first.
    assert [sorted(order[place : place + 2]) for place in (0, 2, 4)] == [
        ["high-0", "high-1"],
        ["high-2", "low-0"],
        ["low-1", "low-2"],
    ]


async def test_who_waits_in_another_session_hears_of_the_end(board: Board, other: Board) -> None:
    async with working(board, GROW):
        job = await other.post("grow", size=1)
        # News that come over a network are not waited for by a clock that jumps: then all look for themselves.
        async with asyncio.timeout(30 if isinstance(board.flows.store, PostgresStore) else 2):
            assert await job == "SUCCESS"


async def test_two_conductors_share_the_work_and_do_nothing_twice(board: Board, other: Board) -> None:
    done: list[str] = []

    async def work() -> None:
        await asyncio.sleep(0.5)
        done.append(current_task().flow)

    flow = doing("f", work)
    jobs = [await board.post("f", id=str(number)) for number in range(20)]
    async with working(board, flow, concurrency=3), working(other, flow, concurrency=3):
        await asyncio.gather(*jobs)
    assert sorted(done, key=int) == [str(number) for number in range(20)]


# -- claims are kept, and given back -----------------------------------------------------------------------------------


async def test_a_claim_is_kept_however_long_the_job_takes(board: Board, other: Board) -> None:
    calls = 0

    async def work() -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(100)

    flow = doing("f", work)
    job = await board.post("f")
    async with working(board, flow, lease=3.0), working(other, flow, lease=3.0):
        assert await job == "SUCCESS"
    assert (calls, job.attempts) == (1, 1)


async def test_who_stops_gives_back_what_he_has_and_another_goes_on_where_he_was(board: Board, other: Board) -> None:
    calls: list[str] = []
    gate = asyncio.Event()

    async def first() -> None:
        calls.append("first")

    async def second() -> None:
        calls.append("second")
        await gate.wait()

    flow = linear("f", task(first), task(second))
    job = await board.post("f", id="one")
    async with working(board, flow):
        await until(lambda: len(calls) == 2)
    found = await board.get("one")
    assert (found.state, found.attempts) == ("UNCLAIMED", 0)
    assert (await board.flows.store.load("one")).flow.state == "SUSPENDED"
    assert board.flows.runs == ()
    gate.set()
    async with working(other, flow):
        assert await job == "SUCCESS"
    assert calls == ["first", "second", "second"]


async def test_what_ends_while_its_conductor_stops_is_complete(reopened: Callable[[], Flows]) -> None:
    began = asyncio.Event()

    async def work() -> None:
        began.set()
        await asyncio.sleep(1)

    async with Flows(store=reopened().store, stop_timeout=5.0) as flows:
        board = Board(flows)
        job = await board.post("f")
        async with working(board, doing("f", work)):
            await began.wait()
        assert (await board.get(job.id)).outcome == "SUCCESS"


async def test_a_conductor_that_is_cancelled_twice_stops_at_once(reopened: Callable[[], Flows], clock: Clock) -> None:
    began = asyncio.Event()

    async def work() -> None:
        began.set()
        await asyncio.sleep(1000)

    async with Flows(store=reopened().store, stop_timeout=100.0) as flows:
        board = Board(flows)
        await board.post("f")
        async with working(board, doing("f", work)) as conductor:
            await began.wait()
            conductor.cancel()
            await clock.advance(1)
            assert not conductor.done()
        assert clock.time() < 10
        assert flows.runs == ()


async def test_suspended_flows_keep_their_claims_and_go_on(board: Board, clock: Clock) -> None:
    calls = []

    async def work() -> None:
        calls.append(1)
        await asyncio.sleep(10)

    job = await board.post("f")
    async with working(board, linear("f", task(work, name="a"), task(work, name="b")), lease=3.0):
        await until(lambda: calls)
        await board.flows.suspend()
        await clock.advance(100)
        assert (await board.get(job.id)).state == "CLAIMED"
        assert len(calls) == 1
        await board.flows.resume()
        assert await job == "SUCCESS"
    assert len(calls) == 2


# -- claims that are lost ----------------------------------------------------------------------------------------------


async def test_who_has_lost_a_claim_stops_and_what_he_still_writes_is_refused(
    board: Board, other: Board, clock: Clock
) -> None:
    """The other's clock is ahead, so that for it the lease is over."""
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
    await board.post("f", id="one")
    async with working(board, flow, lease=9.0):
        await until(lambda: board.flows.runs)
        (run,) = board.flows.runs
        await until(lambda: run.steps and run.steps["work"].state == "RUNNING")
        other.now = lambda: clock.time() + 100
        stolen = await other.claim(await other.get("one"), "thief", lease=1000.0)
        with pytest.raises(ClaimLost):
            await run
        assert fates == ["cancelled"]
        assert board.flows.runs == ()
    assert (await board.get("one")).owner == "thief"
    await other.consume(stolen, "thief")


async def test_a_task_that_ends_after_the_claim_was_lost_is_not_written(
    board: Board, other: Board, clock: Clock
) -> None:
    """No heartbeat comes between: it is the flow's own write that is refused."""

    async def work() -> str:
        await asyncio.sleep(2)
        return "late"

    await board.post("f", id="one")
    async with working(board, doing("f", work), lease=90.0):
        await until(lambda: board.flows.runs and board.flows.runs[0].steps)
        other.now = lambda: clock.time() + 100
        await other.claim(await other.get("one"), "thief", lease=1000.0)
        (run,) = board.flows.runs
        with pytest.raises(ClaimLost):
            await run
    _, steps = await board.flows.store.load("one")
    assert (steps["work"].state, steps["work"].result) == ("RUNNING", None)


async def test_a_conductor_that_claims_what_it_has_lost_itself_does_not_do_it_twice_at_once(
    board: Board, other: Board, clock: Clock
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

    job = await board.post("f", id="one")
    async with working(board, doing("f", work), lease=30.0):
        await until(lambda: calls)
        other.now = lambda: clock.time() + 100
        # To look is enough to end the claim; then it is there for everybody.
        assert (await other.get("one")).state == "UNCLAIMED"
        await board.post("g")
        assert await job == "SUCCESS"
    assert (calls, most) == (2, 1)


async def test_a_late_heartbeat_loses_the_claims_that_have_expired_and_no_others(
    board: Board, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[str] = []

    async def work() -> None:
        begun.append(current_task().flow)
        await asyncio.sleep(100 if len(begun) < 3 else 0)

    async with working(board, doing("f", work), lease=30.0):
        early = await board.post("f", id="early")
        await until(lambda: len(begun) == 1)
        await clock.advance(9)
        late = await board.post("f", id="late")
        await until(lambda: len(begun) == 2)
        # As if the loop had been blocked for 22 seconds before the heartbeat.
        board.now = lambda: clock.time() + 22
        assert [await early, await late] == ["SUCCESS", "SUCCESS"]
    assert begun == ["early", "late", "early"]
    assert (early.attempts, late.attempts) == (2, 1)
    assert "the claim on job early has expired: it was not extended in time" in caplog.text
    assert "claims cannot be extended" not in caplog.text


class FullDisk(MemoryJobs):
    """Cannot extend a claim the first five times."""

    left = 5

    async def renew(self, rows: Sequence[JobRow], *, now: float, until: float) -> list[JobRow]:
        self.left -= 1
        if self.left >= 0:
            raise JournalError("the disk is full")
        return await super().renew(rows, now=now, until=until)


class OnFullDisk(MemoryStore):
    def jobs(self, owners: Owners) -> MemoryJobs:
        return FullDisk(self)


async def test_claims_are_extended_soon_after_a_store_that_failed_answers_again() -> None:
    async with Flows(store=OnFullDisk()) as flows:
        board = Board(flows)
        async with working(board, doing("f", lambda: asyncio.sleep(60)), lease=30.0):
            job = await board.post("f")
            assert await job == "SUCCESS"
    assert job.attempts == 1


async def test_what_was_posted_is_not_recovered_beside_its_board(board: Board) -> None:
    async def work() -> None:
        await asyncio.sleep(1000)

    flow = doing("f", work)
    await board.post("f", id="one")
    async with working(board, flow):
        await until(lambda: board.flows.runs)
        await board.flows.runs[0].suspend(cancel_after=0)
    assert (await board.flows.store.load("one")).flow.state == FlowState.SUSPENDED
    assert await board.flows.recover(flow) == []


# -- bad input ---------------------------------------------------------------------------------------------------------


async def test_work_that_cannot_be_done_is_refused_before_anything_is_claimed(board: Board) -> None:
    await board.post("grow", size=1)
    with pytest.raises(ValueError, match=r"'shrink'.*called 'grow'"):
        await board.work({"shrink": GROW})
    with pytest.raises(ValueError, match="give flows"):
        await board.work({})
    with pytest.raises(ValueError, match="concurrency=0"):
        await board.work({"grow": GROW}, concurrency=0)
    with pytest.raises(ValueError, match="lease=0"):
        await board.work({"grow": GROW}, lease=0)
    with pytest.raises(FlowError, match="double"):
        await board.work({"twice": unordered("twice", double, linear("part", double))})
    assert (await board.jobs())[0].attempts == 0


async def test_a_conductor_whose_flows_are_left_ends(reopened: Callable[[], Flows]) -> None:
    async with reopened() as flows:
        work = asyncio.create_task(Board(flows).work({"grow": GROW}))
        await asyncio.sleep(1)
    with pytest.raises(FlowError, match="not open"):
        await work


async def test_suspended_flows_claim_no_jobs_until_they_are_resumed(board: Board, clock: Clock) -> None:
    async with working(board, GROW, lease=3.0):
        await board.flows.suspend()
        job = await board.post("grow", size=4)
        await clock.advance(60.0)
        assert (await board.get(job.id)).state == "UNCLAIMED"
        await board.flows.resume()
        assert await job == "SUCCESS"
    assert (await board.get(job.id)).attempts == 1


# -- jobs that are discarded -------------------------------------------------------------------------------------------


async def test_the_flow_of_a_discarded_job_is_not_recovered(flows: Flows, clock: Clock) -> None:
    calls = []

    async def poison() -> None:
        calls.append(1)
        await asyncio.sleep(1000)

    board, flow = Board(flows, max_attempts=1), doing("f", poison)
    async with working(board, flow, lease=9.0):
        job = await board.post("f", id="one")
        await until(lambda: calls)
        board.now = lambda: clock.time() + 100
        assert await job == "trashed"
    assert await flows.recover(flow) == []
    with pytest.raises(FlowError, match="flow 'one' is FAILURE: its job was discarded: "):
        await flows.start(flow, id="one")
    assert calls == [1]


async def test_the_flow_of_a_discarded_job_can_be_reset_and_done_again(flows: Flows, clock: Clock) -> None:
    keys = []

    async def slow() -> None:
        keys.append(current_task().key)
        await asyncio.sleep(1000 if len(keys) == 1 else 0)

    board, flow = Board(flows, max_attempts=1), doing("f", slow)
    async with working(board, flow, lease=9.0):
        job = await board.post("f", id="one")
        await until(lambda: keys)
        board.now = lambda: clock.time() + 100
        assert await job == "trashed"
    run = flows.start(flow, id="one")
    with suppress(FlowError):
        await run
    await run.reset()
    assert await flows.start(flow, id="one") == {"work": None}
    assert keys == ["one/work/1", "one/work/2"]


async def test_a_job_with_the_id_of_another_flow_is_discarded_and_the_flow_goes_on(flows: Flows) -> None:
    gate = asyncio.Event()
    board, build = Board(flows), doing("build", gate.wait)
    run = await flows.start(build, id="one").stored()
    async with working(board, GROW):
        job = await board.post("grow", id="one", size=5)
        assert await job == "trashed"
    assert "its id is that of a flow 'build'" in job.error
    gate.set()
    assert await run == {"work": True}


class _Counted(MemoryJobs):
    """Jobs that count how often they are asked for some."""

    asked = 0

    async def take_many(self, flows: Collection[str] | None, claim: Claim, limit: int) -> list[JobRow]:
        self.asked += 1
        return await super().take_many(flows, claim, limit)


class _Counting(MemoryStore):
    """A store with such jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = _Counted(self)

    def jobs(self, owners: Owners) -> MemoryJobs:
        return self.counted


async def test_a_post_wakes_only_conductors_of_its_flow(clock: Clock) -> None:
    store = _Counting()
    async with Flows(store=store) as flows:
        board = Board(flows)
        async with working(board, GROW):
            await clock.settle()
            asked = store.counted.asked
            for _ in range(10):
                await board.post("other")
                await clock.settle()
            assert store.counted.asked == asked
            assert await (await board.post("grow", size=1)) == "SUCCESS"


async def test_jobs_are_claimed_in_batches(clock: Clock) -> None:
    store = _Counting()
    async with Flows(store=store) as flows:
        board = Board(flows)
        jobs = [await board.post("grow", size=number) for number in range(8)]
        async with working(board, GROW, concurrency=8):
            await asyncio.gather(*[board.wait(job) for job in jobs])
            assert store.counted.asked <= 2

"""A flow belongs to the process that runs it while that process is alive, and other processes wait for the flow."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lifecycle.errors import ClaimLost, FlowError
from lifecycle.flows import Flows, FlowState, JobQueue, child, linear, sleep, step, task, workflow
from tests.flows.working import working
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.flows import Flow, Store

LIMIT = 30.0


class Gate:
    """A task that waits until the test lets it finish."""

    def __init__(self) -> None:
        self.begun, self.open = asyncio.Event(), asyncio.Event()
        self.calls = 0

    async def work(self, size: int) -> int:
        self.calls += 1
        self.begun.set()
        await self.open.wait()
        return size

    def flow(self) -> Flow:
        return linear("f", task(self.work, name="a"), task(lambda a: a + 1, name="b"))


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def others(make_store: Callable[[], Store], request: pytest.FixtureRequest) -> Callable[[], Flows]:
    """Return a function that opens the store as a different process would."""
    if request.node.callspec.params["make_store"] == "memory":
        pytest.skip("other processes cannot share this store")
    return lambda: Flows(store=make_store(), stop_timeout=0.0)


pytestmark = pytest.mark.parametrize(
    "make_store", ["sqlite", pytest.param("postgres", marks=pytest.mark.engine("postgres"))], indirect=True
)


async def test_a_second_process_that_starts_an_id_waits_for_the_outcome(
    others: Callable[[], Flows], gate: Gate
) -> None:
    flow = gate.flow()
    async with others() as first, others() as second, asyncio.timeout(LIMIT):
        run = first.start(flow, id="one", size=1)
        await gate.begun.wait()
        assert await second.recover(flow) == []
        same = asyncio.ensure_future(second.start(flow, id="one", size=1).stored())
        waiting = await same
        await until(lambda: waiting.state == FlowState.RUNNING)
        gate.open.set()
        assert await waiting == await run == {"a": 1, "b": 2}
        assert (waiting.state, second.runs) == (FlowState.SUCCESS, ())
    assert gate.calls == 1


async def test_a_flow_that_its_owner_holds_suspended_is_left_to_it(others: Callable[[], Flows], gate: Gate) -> None:
    flow = gate.flow()
    async with others() as first, others() as second, asyncio.timeout(LIMIT):
        run = first.start(flow, id="one", size=1)
        await gate.begun.wait()
        gate.open.set()
        assert await run.suspend() == FlowState.SUSPENDED
        assert await second.recover(flow) == []
        waiting = second.start(flow, id="one", size=1)
        await until(lambda: waiting.state == FlowState.SUSPENDED)
        await run.resume()
        assert await waiting == await run == {"a": 1, "b": 2}
    assert gate.calls == 1


async def test_a_process_that_waits_for_a_flow_takes_it_over_when_its_owner_is_gone(
    others: Callable[[], Flows], gate: Gate
) -> None:
    flow = gate.flow()
    async with others() as second, asyncio.timeout(LIMIT):
        async with others() as first:
            first.start(flow, id="one", size=1)
            await gate.begun.wait()
            waiting = await second.start(flow, id="one", size=1).stored()
        gate.open.set()
        assert await waiting == {"a": 1, "b": 2}
    assert gate.calls == 2


@pytest.mark.keeps_tasks
@pytest.mark.parametrize("paused", [True, False])
async def test_a_child_whose_process_is_gone_continues_when_its_parent_is_recovered(
    others: Callable[[], Flows], gate: Gate, paused: bool
) -> None:
    @workflow
    async def inner() -> int:
        await sleep(1.5)
        return await step(gate.work, 1)

    @workflow
    async def outer() -> int:
        return await child(inner)

    async with others() as first, others() as third, asyncio.timeout(LIMIT):
        run = first.start(outer, id="out")
        await until(lambda: len(first.runs) == 2)
        # Something may still refer to the parked run of the child.
        kept = first.runs
        await until(lambda: run.parked and not first.runs)
        await first.suspend()
        async with others() as second:
            await second.recover(outer, inner)
            await gate.begun.wait()
        gate.open.set()
        if not paused:
            await first.resume()
        await third.recover(outer)
        assert await third.wait("out") == await first.wait("out") == 1
        assert len(kept) == 2
    assert gate.calls == 2


async def test_a_run_that_waits_for_another_process_can_be_suspended_and_resumed(
    others: Callable[[], Flows], gate: Gate
) -> None:
    flow = gate.flow()
    async with others() as first, others() as second, asyncio.timeout(LIMIT):
        run = first.start(flow, id="one", size=1)
        await gate.begun.wait()
        waiting = await second.start(flow, id="one", size=1).stored()
        await second.suspend()
        assert not waiting.running
        gate.open.set()
        await run
        await second.resume()
        assert await waiting == {"a": 1, "b": 2}


async def test_a_flow_that_another_process_runs_cannot_be_reset(others: Callable[[], Flows], gate: Gate) -> None:
    flow = gate.flow()
    async with others() as first, others() as second, asyncio.timeout(LIMIT):
        run = first.start(flow, id="one", size=1)
        await gate.begun.wait()
        waiting = await second.start(flow, id="one", size=1).stored()
        await waiting.suspend()
        with pytest.raises(ClaimLost, match="'one' is RUNNING in another live process"):
            await waiting.reset()
        gate.open.set()
        await run


async def test_other_values_for_an_id_that_exists_are_refused(others: Callable[[], Flows], gate: Gate) -> None:
    flow = gate.flow()
    gate.open.set()
    async with others() as first, others() as second, asyncio.timeout(LIMIT):
        run = first.start(flow, id="one", size=1)
        with pytest.raises(
            FlowError, match=r"'one' was started with different values: .*1.*, not .*2.*; use a different id"
        ):
            first.start(flow, id="one", size=2)
        assert first.start(flow, id="one", size=1) is run
        assert first.start(flow, id="one") is run
        await run
        with pytest.raises(FlowError, match="was started with different values"):
            await second.start(flow, id="one", size=2)
        with pytest.raises(FlowError, match="was started with different values"):
            await second.start(flow, id="one", size=3).stored()
        assert await second.start(flow, id="one", size=1) == {"a": 1, "b": 2}
    async with others() as third:
        assert await third.start(flow, id="one", size=1) == {"a": 1, "b": 2}


async def test_starting_the_flow_of_a_job_waits_for_the_worker_of_the_job(
    others: Callable[[], Flows], gate: Gate
) -> None:
    flow = gate.flow()
    async with others() as second, asyncio.timeout(LIMIT):
        async with others() as first:
            await JobQueue(first).enqueue("f", id="one", size=1)
            async with working(JobQueue(first), flow):
                await gate.begun.wait()
                waiting = await second.start(flow, id="one", size=1).stored()
            # The job has been released, so the next queue can claim it.
        gate.open.set()
        async with others() as third, working(JobQueue(third), flow):
            assert await waiting == {"a": 1, "b": 2}
            # The worker completes the job after the flow.
            while (await JobQueue(second).get("one")).outcome != "SUCCESS":
                await asyncio.sleep(0.01)
    assert gate.calls == 2

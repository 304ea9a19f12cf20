"""The program's own shutdown is never the outcome of a step, a task, an undo, a revert or a job."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import current, lifetime, read_line
from lifecycle import sleep as interruptible_sleep
from lifecycle.errors import PoolClosed, StepFailed, WorkerLost
from lifecycle.flows import Flows, FlowState, JobQueue, SQLiteStore, Times, gather, linear, step, task, undo, workflow
from tests.flows.noted_calls import CALLS, note
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from pathlib import Path

    from lifecycle.flows import Store

# The timer of open Flows may look for workflows that are due when a test ends.
pytestmark = [pytest.mark.keeps_tasks, pytest.mark.usefixtures("calls", "clock")]


async def sleeps() -> None:
    await interruptible_sleep(60)


async def reads() -> None:
    await read_line(asyncio.StreamReader())


def raises(error: BaseException) -> Callable[[], Awaitable[None]]:
    async def fails_when_the_program_stops() -> None:
        await current().wait_stopping()
        raise error

    return fails_when_the_program_stops


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[[], Store]:
    """The engines decide what an outcome is, so one store is enough."""
    return lambda: SQLiteStore(tmp_path / "flows.db")


#: How the shutdown can surface in a function.
WAYS = [
    pytest.param(sleeps, id="sleep"),
    pytest.param(reads, id="read_line"),
    pytest.param(raises(asyncio.CancelledError("a task that the shutdown cancelled")), id="CancelledError"),
    pytest.param(raises(PoolClosed("the pool is closed")), id="PoolClosed"),
    pytest.param(raises(WorkerLost("the process died")), id="WorkerLost"),
    pytest.param(raises(ExceptionGroup("several", [OSError("connection closed")])), id="ExceptionGroup"),
    pytest.param(raises(RuntimeError("the command died with SIGINT")), id="RuntimeError"),
]


def first(way: Callable[[], Awaitable[None]]) -> Callable[[], Coroutine[Any, Any, str]]:
    """Return a function that behaves like ``way`` when it is called for the first time."""
    ways = iter([way])

    async def call() -> str:
        CALLS.append("begins")
        for each in ways:
            await each()
        return "done"

    return call


async def stop_during(flows: Flows, begin: Callable[[], Any]) -> None:
    """Await what ``begin`` returns, and shut the program down once a function has noted that it begins."""

    async def stop() -> None:
        await until(lambda: "begins" in CALLS)
        current().shutdown()

    async with lifetime(signals=False) as life, flows:
        life.go(stop)
        await begin()


@pytest.mark.parametrize("way", WAYS)
async def test_a_step_that_the_shutdown_ends_runs_again(
    reopened: Callable[[], Flows], way: Callable[[], Awaitable[None]]
) -> None:
    ship = first(way)

    @workflow
    async def order() -> str:
        await step(note, "charged")
        undo(note, "refunded")
        return await step(ship, retry=Times(1))

    flows = reopened()
    await stop_during(flows, lambda: flows.start(order, id="one"))
    async with reopened() as flows:
        assert (await flows.get("one")).state == FlowState.SUSPENDED
        assert await flows.start(order, id="one") == "done"
    assert CALLS == ["charged", "begins", "begins"]


async def test_a_workflow_whose_function_the_shutdown_ends_continues(reopened: Callable[[], Flows]) -> None:
    wait = first(reads)

    @workflow
    async def order() -> str:
        await step(note, "charged")
        undo(note, "refunded")
        return await wait()

    flows = reopened()
    await stop_during(flows, lambda: flows.start(order, id="one"))
    async with reopened() as flows:
        assert (await flows.get("one")).state == FlowState.SUSPENDED
        assert await flows.start(order, id="one") == "done"
    assert CALLS == ["charged", "begins", "begins"]


@pytest.mark.parametrize("way", WAYS)
async def test_an_undo_that_the_shutdown_ends_runs_again(
    reopened: Callable[[], Flows], way: Callable[[], Awaitable[None]]
) -> None:
    refund = first(way)

    @workflow
    async def order() -> None:
        undo(refund)
        await step(int, "x")

    flows = reopened()
    await stop_during(flows, lambda: flows.start(order, id="one"))
    async with reopened() as flows:
        with pytest.raises(StepFailed, match="invalid literal"):
            await flows.start(order, id="one")
        assert (await flows.get("one")).state == FlowState.REVERTED
    assert CALLS == ["begins", "begins"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_task_that_the_shutdown_ends_runs_again(
    reopened: Callable[[], Flows], way: Callable[[], Awaitable[None]]
) -> None:
    ship = first(way)

    @task
    async def charge() -> None:
        CALLS.append("charged")

    @charge.revert
    async def refund() -> None:
        CALLS.append("refunded")

    @task
    async def deliver() -> None:
        await ship()

    order = linear("order", charge, deliver)
    flows = reopened()
    await stop_during(flows, lambda: flows.start(order, id="one"))
    async with reopened() as flows:
        assert (await flows.get("one")).state == FlowState.SUSPENDED
        await flows.start(order, id="one")
        assert (await flows.get("one")).state == FlowState.SUCCESS
    assert CALLS == ["charged", "begins", "begins"]


async def test_a_revert_that_the_shutdown_ends_runs_again(reopened: Callable[[], Flows]) -> None:
    back = first(sleeps)

    @task
    async def charge() -> None: ...

    @charge.revert
    async def refund() -> None:
        await back()

    @task
    async def deliver() -> None:
        raise ValueError("no such address")

    order = linear("order", charge, deliver)
    flows = reopened()
    await stop_during(flows, lambda: flows.start(order, id="one"))
    async with reopened() as flows:
        with pytest.raises(StepFailed, match="no such address"):
            await flows.start(order, id="one")
        assert (await flows.get("one")).state == FlowState.REVERTED
    assert CALLS == ["begins", "begins"]


async def test_a_job_that_the_shutdown_ends_returns_to_the_queue_without_an_attempt(
    reopened: Callable[[], Flows],
) -> None:
    ship = first(sleeps)

    @workflow
    async def order() -> str:
        undo(note, "refunded")
        return await step(ship)

    flows = reopened()

    async def work() -> None:
        queue = JobQueue(flows)
        await queue.enqueue("order", id="one")
        await queue.work({"order": order})

    await stop_during(flows, work)
    async with reopened() as flows:
        queue = JobQueue(flows)
        job = await queue.get("one")
        assert (job.row.state, job.row.attempts, job.row.error) == ("UNCLAIMED", 0, "")
        working = asyncio.create_task(queue.work({"order": order}))
        await job
        working.cancel()
        await asyncio.wait([working])
        assert (await flows.get("one")).state == FlowState.SUCCESS
    assert CALLS == ["begins", "begins"]


async def test_other_steps_finish_when_the_shutdown_ends_one(make_store: Callable[[], Any]) -> None:
    ship = first(sleeps)

    async def pack() -> str:
        await current().wait_stopping()
        await asyncio.sleep(1)
        CALLS.append("packed")
        return "packed"

    @workflow
    async def order() -> list[str]:
        return await gather(step(pack), step(ship))

    flows = Flows(store=make_store())
    await stop_during(flows, lambda: flows.start(order, id="one"))
    async with Flows(store=make_store()) as flows:
        assert await flows.start(order, id="one") == ["packed", "done"]
    assert CALLS == ["begins", "packed", "begins"]


async def test_an_error_while_flows_are_suspended_but_the_program_runs_is_an_outcome(flows: Flows) -> None:
    go = asyncio.Event()

    async def fail() -> None:
        await go.wait()
        raise ValueError("no such address")

    @workflow
    async def order() -> None:
        await step(fail)

    async with lifetime(signals=False):
        run = flows.start(order, id="one")
        await run.stored()
        suspending = asyncio.ensure_future(flows.suspend())
        go.set()
        await suspending
        await flows.resume()
        with pytest.raises(StepFailed, match="no such address"):
            await run

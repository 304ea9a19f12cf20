"""Taking over runs whose process has exited, whose store was away, or whose code has changed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.errors import FlowCancelled, JournalError, StepFailed
from lifecycle.flows import (
    Flows,
    FlowState,
    JobQueue,
    JobState,
    MemoryStore,
    SQLiteStore,
    child,
    current_task,
    linear,
    sleep,
    step,
    task,
    undo,
    wait_for,
    workflow,
)
from tests.flows.noted_calls import CALLS, note
from tests.flows.working import working
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from lifecycle.flows import Batch, FlowRow, Store, Workflow
    from lifecycle.testing import Clock

# The timer of open Flows may look for workflows that are due when a test ends.
pytestmark = pytest.mark.keeps_tasks

LIMIT = 60.0


# -- flows that have ended ---------------------------------------------------------------------------------------------


class _Slow(SQLiteStore):
    """A store whose lists of flows arrive late."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.read, self.arrive = asyncio.Event(), asyncio.Event()

    async def flows(self, **settings: Any) -> list[FlowRow]:
        rows = await super().flows(**settings)
        self.read.set()
        await self.arrive.wait()
        return rows


@pytest.mark.parametrize("kind", ["reverted", "cancelled", "tasks", "child"])
async def test_a_flow_that_ends_while_another_process_recovers_it_does_not_run_again(tmp_path: Path, kind: str) -> None:
    begun, go, keys = asyncio.Event(), asyncio.Event(), list[str]()

    async def charge() -> None:
        keys.append(current_task().key)
        begun.set()
        await go.wait()

    async def refuse() -> None:
        raise PermissionError("not approved")

    async def refund() -> None:
        pass

    @workflow
    async def order() -> None:
        undo(refund)
        await step(charge)
        await step(refuse)

    @workflow
    async def parent() -> None:
        await child(order, id="one")

    tasks = linear("tasks", task(charge).revert(refund), task(refuse))
    item: Any = {"tasks": tasks, "child": parent}.get(kind, order)
    slow = _Slow(tmp_path / "flows.db")
    async with Flows(store=slow) as second, asyncio.timeout(LIMIT):
        async with Flows(tmp_path / "flows.db", stop_timeout=0) as first:
            run = first.start(item, id="out" if kind == "child" else "one")
            await begun.wait()
            recovering = asyncio.ensure_future(second.recover(tasks if kind == "tasks" else order))
            await slow.read.wait()
            if kind == "cancelled":
                await first.cancel("one")
            go.set()
            with pytest.raises((PermissionError, FlowCancelled, StepFailed)):
                await run
            ended = await first.get("one")
        slow.arrive.set()
        for again in await recovering:
            with pytest.raises((StepFailed, FlowCancelled)):
                await again
        assert (await second.get("one")).state == ended.state
    assert len(keys) == 1


# -- processes that have exited ----------------------------------------------------------------------------------------


@pytest.fixture
def process(make_store: Callable[[], Store]) -> Callable[[], Flows]:
    """Return a function that opens the store as a different process would."""
    return lambda: Flows(store=make_store(), stop_timeout=0.0)


shared = pytest.mark.parametrize(
    "make_store", ["sqlite", pytest.param("postgres", marks=pytest.mark.engine("postgres"))], indirect=True
)


class _Work:
    """A step that only ends in the process that calls it last."""

    def __init__(self, kind: str = "workflow") -> None:
        self.begun, self.open = asyncio.Event(), asyncio.Event()
        self.calls = 0

        async def run() -> int:
            self.calls += 1
            self.begun.set()
            await self.open.wait()
            return self.calls

        @workflow
        async def order() -> int:
            return await step(run)

        #: The flow that calls the step.
        self.flow: Any = order if kind == "workflow" else linear("order", task(run))


@shared
@pytest.mark.parametrize("kind", ["workflow", "tasks"])
async def test_a_living_process_continues_the_runs_of_a_process_that_exits(
    process: Callable[[], Flows], kind: str
) -> None:
    work = _Work(kind)
    async with process() as second, process() as third, asyncio.timeout(LIMIT):
        for each in (second, third):
            assert await each.recover(work.flow) == []
        async with process() as first:
            first.start(work.flow, id="one")
            await work.begun.wait()
        work.open.set()
        assert await second.wait("one") in (2, {"run": 2})
        assert await third.wait("one") in (2, {"run": 2})
    assert work.calls == 2


@shared
async def test_a_process_that_has_started_a_flow_continues_its_runs(process: Callable[[], Flows]) -> None:
    work = _Work()
    async with process() as second, asyncio.timeout(LIMIT):
        async with process() as first:
            first.start(work.flow, id="one")
            await work.begun.wait()
            work.open.set()
            await second.start(work.flow, id="two")
            work.open.clear()
            first.start(work.flow, id="three")
            await until(lambda: work.calls == 3)
        work.open.set()
        assert await second.wait("three") == 4


@shared
@pytest.mark.usefixtures("clock")
async def test_a_suspended_process_takes_no_runs_until_it_resumes(process: Callable[[], Flows]) -> None:
    work = _Work()
    async with process() as second, asyncio.timeout(LIMIT):
        await second.recover(work.flow)
        await second.suspend()
        async with process() as first:
            first.start(work.flow, id="one")
            await work.begun.wait()
        work.open.set()
        await asyncio.sleep(20)
        assert (await second.get("one")).state == FlowState.SUSPENDED
        await second.resume()
        assert await second.wait("one") == 2


# Virtual time does not wait for the messages of a server.
@pytest.mark.parametrize("make_store", ["sqlite"], indirect=True)
async def test_a_workflow_that_waits_is_continued_in_time_after_its_process_exits(
    process: Callable[[], Flows], clock: Clock
) -> None:
    @workflow
    async def order() -> None:
        await sleep(10)

    async with process() as second, asyncio.timeout(LIMIT):
        await second.recover(order)
        await asyncio.sleep(1)
        async with process() as first:
            run = first.start(order, id="one")
            await until(lambda: run.parked)
        await second.wait("one")
        # Without a message, processes look every 30 seconds.
        assert clock.time() < 25


# -- a store that is away ----------------------------------------------------------------------------------------------


class _Away(MemoryStore):
    """A store that sometimes refuses to write."""

    away = False

    async def commit(self, batch: Batch) -> None:
        if self.away:
            raise JournalError("the server does not respond")
        await super().commit(batch)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("kind", ["workflow", "tasks"])
async def test_runs_continue_once_the_store_answers_again(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    work, store = _Work(kind), _Away()
    async with Flows(store=store) as flows, asyncio.timeout(LIMIT * 10):
        run = flows.start(work.flow, id="one")
        await work.begun.wait()
        store.away = True
        work.open.set()
        with pytest.raises(JournalError, match="does not respond"):
            await run
        await asyncio.sleep(LIMIT)
        assert not run.ended
        store.away = False
        await until(lambda: run.ended, limit=LIMIT)
        assert await run in (work.calls, {"run": work.calls})
    stops = [record for record in caplog.records if "continues when the store answers" in record.message]
    # The pauses between attempts grow.
    assert 2 < len(stops) < 12


@pytest.mark.usefixtures("clock")
async def test_a_start_that_was_not_stored_is_not_repeated() -> None:
    class Full(MemoryStore):
        async def create(self, flow: FlowRow) -> bool:
            raise JournalError("the disk is full")

    work = _Work()
    async with Flows(store=Full()) as flows:
        run = flows.start(work.flow, id="one")
        with pytest.raises(JournalError, match="the disk is full"):
            await run.stored()
        await asyncio.sleep(LIMIT)
        assert run.refused


# -- changed code ------------------------------------------------------------------------------------------------------


def _version(*names: str) -> Workflow[[], list[str]]:
    """Return a workflow whose steps have these names. It waits for a signal after the first one."""

    @workflow
    async def order() -> list[str]:
        done = [await step(note, names[0], name=names[0])]
        await wait_for("go")
        return done + [await step(note, name, name=name) for name in names[1:]]

    return order


@pytest.mark.usefixtures("calls", "clock")
@pytest.mark.parametrize("make_store", ["sqlite"], indirect=True)
async def test_a_process_with_other_code_leaves_a_workflow_to_the_others(process: Callable[[], Flows]) -> None:
    right, wrong = _version("a", "b"), _version("x", "b")
    async with process() as first, process() as second, asyncio.timeout(LIMIT * 10):
        await second.recover(wrong)
        run = first.start(right, id="one")
        await until(lambda: run.parked)
        await first.suspend()
        await first.signal("one", "go")
        await until(lambda: second.runs)
        await until(lambda: second.runs[0].stopped)
        found = await second.get("one")
        assert (found.state, found.status) == (FlowState.WAITING, "STOPPED (WorkflowChanged)")
        assert "it calls step '1 x' where step '1 a' is recorded" in found.error
        assert second.state().runs[0].state == "STOPPED (WorkflowChanged)"
        await first.resume()
        assert await run == ["a", "b"]
        assert (await second.get("one")).status == "SUCCESS"
        await until(lambda: not second.runs, limit=LIMIT * 5)
    assert CALLS == ["a", "b"]


@pytest.mark.usefixtures("calls", "clock")
async def test_a_stopped_workflow_continues_in_the_same_process_with_mended_code(process: Callable[[], Flows]) -> None:
    async with process() as first:
        run = first.start(_version("a", "b"), id="one")
        await until(lambda: run.parked)
        await first.signal("one", "go")
    async with process() as second, asyncio.timeout(LIMIT * 10):
        await second.recover(_version("x", "b"))
        await until(lambda: second.runs)
        await until(lambda: second.runs[0].stopped)
        # It stays stopped, although this process tries again.
        await asyncio.sleep(LIMIT * 4)
        assert (await second.get("one")).status == "STOPPED (WorkflowChanged)"
        await second.recover(_version("a", "b"))
        assert await second.wait("one") == ["a", "b"]
    assert CALLS == ["a", "b"]


@pytest.mark.usefixtures("calls", "clock")
@pytest.mark.parametrize("job", [True, False])
async def test_a_workflow_that_waits_continues_with_the_definition_that_is_known_last(
    process: Callable[[], Flows], job: bool
) -> None:
    async with process() as flows, asyncio.timeout(LIMIT):
        queue = JobQueue(flows)
        if job:
            await queue.enqueue("order", id="one")
            async with working(queue, _version("a", "b")):
                await until(lambda: CALLS == ["a"])
                while (await queue.get("one")).state is not JobState.UNCLAIMED:
                    await asyncio.sleep(0.1)
        else:
            run = flows.start(_version("a", "b"), id="one")
            await until(lambda: run.parked)
        await flows.signal("one", "go")
        newer = _version("a", "b", "c")
        if job:
            async with working(queue, newer):
                assert await flows.wait("one") == ["a", "b", "c"]
        else:
            await flows.suspend()
            await flows.recover(newer)
            await flows.resume()
            assert await flows.wait("one") == ["a", "b", "c"]


@pytest.mark.usefixtures("calls", "clock")
async def test_a_worker_with_other_code_does_not_discard_a_job(process: Callable[[], Flows]) -> None:
    async with process() as flows, asyncio.timeout(LIMIT * 100):
        queue = JobQueue(flows)
        job = await queue.enqueue("order", id="one")
        async with working(queue, _version("a", "b")):
            await until(lambda: CALLS == ["a"])
            while (await queue.get("one")).state is not JobState.UNCLAIMED:
                await asyncio.sleep(0.1)
        await flows.signal("one", "go")
        async with working(queue, _version("x", "b")):
            await asyncio.sleep(1810)
        found = await queue.get("one")
        assert (found.state, found.attempts) == (JobState.UNCLAIMED, 0)
        assert (await flows.get("one")).status == "STOPPED (WorkflowChanged)"
        async with working(queue, _version("a", "b")):
            assert await job == "SUCCESS"
    assert CALLS == ["a", "b"]


class _Failing(SQLiteStore):
    """A store whose process has no file descriptors left at the first looks for runs."""

    failures = 3

    async def owners(self, names: Collection[str]) -> set[tuple[str, str]]:
        if self.failures:
            self.failures -= 1
            raise OSError(24, "Too many open files")
        return await super().owners(names)


@pytest.mark.usefixtures("clock")
async def test_a_run_is_taken_over_after_looks_that_have_failed(tmp_path: Path) -> None:
    path, working = tmp_path / "flows.db", asyncio.Event()

    async def work() -> str:
        if working.is_set():
            return "done"
        working.set()
        await asyncio.Event().wait()
        raise AssertionError

    @workflow
    async def order() -> str:
        return await step(work)

    async with asyncio.timeout(LIMIT), Flows(store=_Failing(path), stop_timeout=0.0) as living:
        await living.recover(order)
        async with Flows(path, stop_timeout=0.0) as exiting:
            exiting.start(order, id="o")
            await working.wait()
        assert await living.wait("o") == "done"

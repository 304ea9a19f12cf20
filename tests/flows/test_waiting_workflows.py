"""Workflows that wait: timers, signals, cancellation, children, patches, and jobs that are parked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import lifetime
from lifecycle import sleep as interruptible_sleep
from lifecycle.errors import ClaimLost, FlowCancelled, FlowError, InvalidState, JournalError, StepFailed
from lifecycle.flows import (
    JSON,
    Flows,
    FlowState,
    JobQueue,
    MemoryStore,
    SignalRow,
    Times,
    child,
    gather,
    linear,
    patch,
    sleep,
    step,
    task,
    undo,
    wait_for,
    workflow,
)
from lifecycle.flows.records import CANCEL, DUE_NOW, Batch
from lifecycle.flows.states import ENDS
from lifecycle.flows.stores.presence import WAKE
from lifecycle.runtime.force import frames_of
from tests.flows.noted_calls import CALLS, note
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from lifecycle.flows import FlowRow, Run, Snapshot

# The timer of open Flows may look for workflows that are due when a test ends.
pytestmark = [pytest.mark.keeps_tasks, pytest.mark.usefixtures("calls")]

LIMIT = 60.0


async def parked(run: Run[Any]) -> None:
    """Wait until a workflow is parked."""
    await until(lambda: run.parked)


async def test_the_engine_states_of_a_workflow_end_in_waiting_or_in_its_outcome(flows: Flows) -> None:
    @workflow
    async def order() -> None:
        await wait_for("paid")

    run = flows.start(order, id="one")
    assert [str(state) async for state in run.states()] == ["RESUMING", "SCHEDULING", "WAITING"]
    await flows.cancel("one")
    with pytest.raises(FlowCancelled):
        await run
    assert run.engine_state == "CANCELLED"


# -- timers ------------------------------------------------------------------------------------------------------------


async def test_a_long_sleep_needs_no_task_and_ends_in_time(flows: Flows) -> None:
    @workflow
    async def order() -> list[str]:
        before = await step(note, "before")
        await sleep(2.5)
        return [before, await step(note, "after")]

    run = flows.start(order, id="one")
    await parked(run)
    assert (run.state, flows.runs, len(run.steps)) == (FlowState.WAITING, (), 0)
    row = await flows.store.get("one")
    assert row is not None
    assert row.due > 0
    assert await run == ["before", "after"]
    assert CALLS == ["before", "after"]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("wait", [asyncio.sleep, interruptible_sleep])
@pytest.mark.parametrize("place", ["first", "after a step", "in a branch", "in a function"])
async def test_a_sleep_that_is_not_durable_is_refused_at_the_first_run(
    flows: Flows, wait: Callable[[float], Awaitable[None]], place: str
) -> None:
    async def function() -> None:
        await wait(0.1)

    @workflow
    async def order() -> None:
        undo(note, "undone")
        if place == "first":
            await wait(0.1)
        await step(note, "before")
        if place == "in a branch":
            await gather(wait(0.1), step(note, "beside"))
        elif place == "in a function":
            await function()
        else:
            await wait(0.1)
        await step(note, "after")

    async with lifetime(signals=False):
        run = flows.start(order, id="one")
        with pytest.raises(
            FlowError, match=rf"calls {wait.__module__.partition('.')[0]}\.sleep.*lifecycle\.flows\.sleep"
        ):
            await run
    # Nothing is undone, so the workflow continues once its code is mended.
    assert run.stopped
    assert not {"after", "undone"} & set(CALLS)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("wait", [asyncio.sleep, interruptible_sleep])
async def test_a_step_may_sleep(flows: Flows, wait: Callable[[float], Awaitable[None]]) -> None:
    async def step_that_sleeps() -> None:
        await wait(5)

    @workflow
    async def order() -> None:
        await step(step_that_sleeps)
        await gather(step(step_that_sleeps), step(wait, 5))

    async with lifetime(signals=False):
        await flows.start(order)


async def test_the_stack_of_a_workflow_shows_its_function(flows: Flows) -> None:
    @workflow
    async def order() -> None:
        await wait_for("approval")

    run = flows.start(order, id="one")
    await until(lambda: run.steps)
    (task,) = [each for each in asyncio.all_tasks() if each.get_name() == "one "]
    names = [frame.f_code.co_name for frame in frames_of(task)]
    assert names.count("order") == 1
    assert names.index("order") < names.index("_receive")


async def test_a_sleep_continues_while_the_program_does_not_run(reopened: Callable[[], Flows]) -> None:
    @workflow
    async def order() -> str:
        await sleep(2.5)
        return "awake"

    async with reopened() as flows:
        await parked(flows.start(order, id="one"))
    async with reopened() as flows:
        assert await flows.recover(order) == []
        assert await flows.wait("one") == "awake"


async def test_a_workflow_without_references_is_continued_by_the_timer(flows: Flows) -> None:
    @workflow
    async def order(n: int) -> int:
        await sleep(2)
        return n

    for n in range(20):
        flows.start(order, n, id=str(n))
    assert await asyncio.gather(*(flows.wait(str(n)) for n in range(20))) == list(range(20))


async def test_a_retry_that_is_due_later_is_parked(flows: Flows) -> None:
    failures = iter([OSError("x")])

    async def failing() -> str:
        for error in failures:
            raise error
        return "done"

    @workflow
    async def order() -> str:
        return await step(failing, retry=Times(2, 2.5))

    run = flows.start(order)
    await parked(run)
    assert await run == "done"


async def test_branches_wait_at_the_same_time(flows: Flows) -> None:
    async def branch(seconds: float) -> float:
        await sleep(seconds)
        return await step(note, seconds)

    @workflow
    async def order() -> list[float]:
        return await gather(branch(2.6), branch(1.6), branch(0.1))

    run = flows.start(order)
    await parked(run)
    assert CALLS == [0.1]
    assert await run == [2.6, 1.6, 0.1]
    assert CALLS == [0.1, 1.6, 2.6]


async def test_a_workflow_with_a_running_step_is_not_parked(flows: Flows) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        begun.set()
        await go.wait()

    @workflow
    async def order() -> None:
        await gather(sleep(1.7), step(slow))

    run = flows.start(order)
    await begun.wait()
    await asyncio.sleep(1.5)
    assert run.running
    go.set()
    await run


async def test_cleaning_up_when_a_workflow_is_parked_starts_nothing(flows: Flows) -> None:
    @workflow
    async def order() -> None:
        try:
            await sleep(2)
        finally:
            await step(note, "finally")

    run = flows.start(order)
    await parked(run)
    assert CALLS == []
    await run
    assert CALLS == ["finally"]


async def test_flows_that_are_opened_again_continue_workflows_that_wait() -> None:
    @workflow
    async def order() -> str:
        await sleep(3)
        return "awake"

    flows = Flows()
    async with flows:
        await parked(flows.start(order, id="one"))
    async with flows:
        await flows.recover(order)
        assert await flows.wait("one") == "awake"


class Renamed(JSON):
    """A codec that no longer knows the class of a stored value."""

    def decode(self, text: str) -> Any:
        value = super().decode(text)
        if value == {"seconds": 3}:
            raise LookupError("no class is registered as 'Old'")
        return value


async def test_a_workflow_that_cannot_be_decoded_does_not_delay_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow
    async def nap(seconds: float) -> None:
        await sleep(seconds)

    store = tmp_path / "flows.db"
    async with asyncio.timeout(LIMIT), Flows(store) as flows:
        for seconds in (3, 6):
            await parked(flows.start(nap, seconds, id=str(seconds)))
    async with asyncio.timeout(LIMIT), Flows(store, codec=Renamed()) as flows:
        await flows.recover(nap)
        async with asyncio.timeout(15):
            await flows.wait("6")
    assert caplog.messages == ["flow 3 cannot continue: no class is registered as 'Old'"]


@pytest.mark.usefixtures("clock")
async def test_another_process_continues_more_workflows_than_are_taken_at_once_that_cannot_be_decoded() -> None:
    @workflow
    async def nap(seconds: float) -> None:
        await sleep(seconds)

    store = MemoryStore()
    async with Flows(store=store) as flows:
        for seconds in [3] * 1001 + [6]:
            flows.start(nap, seconds, id="six" if seconds == 6 else None)
        await until(lambda: not flows.runs)
    async with Flows(store=store, codec=Renamed()) as flows, Flows(store=store) as others:
        await flows.recover(nap)
        async with asyncio.timeout(15):
            await flows.wait("six")
        assert {row.state for row in await store.flows()} == {FlowState.SUCCESS, FlowState.WAITING}
        await others.recover(nap)
        await asyncio.sleep(5)
        assert {row.state for row in await store.flows()} == {FlowState.SUCCESS}


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("due", ["timer", "signal"])
async def test_a_due_workflow_that_no_process_can_run_is_logged_once_per_name(
    reopened: Callable[[], Flows], caplog: pytest.LogCaptureFixture, due: str
) -> None:
    @workflow
    async def order() -> None:
        await (sleep(5) if due == "timer" else wait_for("go"))

    @workflow
    async def other() -> None:
        await sleep(500)

    async with reopened() as flows:
        for name in ("one", "two"):
            await parked(flows.start(order, id=name))
    async with reopened() as flows:
        await parked(flows.start(other))
        for name in ("one", "two") if due == "signal" else ():
            await flows.signal(name, "go")
        await asyncio.sleep(200)
        (line,) = [line for line in caplog.messages if "has been due" in line]
        # Both may be due at the same time.
        assert line.replace("two", "one") == (
            "workflow 'order' 'one' has been due for 30 s, but no process continues it; pass 'order' to Flows.recover"
        )
        caplog.clear()
        await flows.recover(order)
        await asyncio.gather(flows.wait("one"), flows.wait("two"))
        await asyncio.sleep(100)
    assert not [line for line in caplog.messages if "has been due" in line]


# -- signals -----------------------------------------------------------------------------------------------------------


@workflow
async def approvals(count: int) -> list[Any]:
    return [await wait_for("approval") for _ in range(count)]


async def test_signals_arrive_in_order_whether_they_are_sent_before_or_while_waiting(flows: Flows) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        begun.set()
        await go.wait()

    @workflow
    async def order() -> list[Any]:
        await step(slow)
        return await approvals(4)

    run = flows.start(order, id="one")
    await begun.wait()
    await flows.signal("one", "approval", {"n": 1})
    await flows.signal("one", "other")
    await flows.signal("one", "approval", 2)
    go.set()
    await until(lambda: len(run.steps) == 4)
    await flows.signal("one", "approval", 3)
    await parked(run)
    await flows.signal("one", "approval", 4)
    assert await run == [{"n": 1}, 2, 3, 4]


async def test_a_signal_with_a_key_is_received_once(flows: Flows) -> None:
    run = flows.start(approvals, 2, id="one")
    await run.stored()
    for _ in range(3):
        await flows.signal("one", "approval", 1, key="a")
    await flows.signal("one", "approval", 2, key="b")
    assert await run == [1, 2]


async def test_signals_are_received_after_a_restart_and_only_once(reopened: Callable[[], Flows]) -> None:
    async with reopened() as flows:
        run = flows.start(approvals, 2, id="one")
        await run.stored()
        await flows.signal("one", "approval", 1)
        await parked(run)
    async with reopened() as flows:
        await flows.recover(approvals)
        await flows.signal("one", "approval", 2)
        assert await flows.wait("one") == [1, 2]


@pytest.mark.parametrize("notified", [True, False])
async def test_a_signal_sent_while_a_workflow_is_recovered_is_received_once(notified: bool) -> None:
    @workflow
    async def order() -> list[Any]:
        await step(hold.wait)
        return [await wait_for("go"), await wait_for("go")]

    class Signalled(MemoryStore):
        async def take(self, id: str, owner: str, **settings: Any) -> Snapshot:  # noqa: A002  # the name in the base class
            await flows.signal(id, "go", "before")
            snapshot = await super().take(id, owner, **settings)
            if notified:
                await flows.signal(id, "go", "after")
            else:
                await self.signal(SignalRow(id, "go", '"after"'))
            return snapshot

    hold, store = asyncio.Event(), Signalled()
    async with Flows(store=store, stop_timeout=0.0) as flows:
        await flows.start(order, id="one").stored()
    hold.set()
    async with Flows(store=store, stop_timeout=0.0) as flows:
        (run,) = await flows.recover(order)
        assert await run == ["before", "after"]
    assert [row.taken for row in await store.signals("one")] == [True, True]


async def test_two_branches_receive_one_signal_each(flows: Flows) -> None:
    @workflow
    async def order() -> list[Any]:
        return await gather(wait_for("go"), wait_for("go"))

    run = flows.start(order, id="one")
    await parked(run)
    await flows.signal("one", "go", "a")
    await until(lambda: run.running)
    await flows.signal("one", "go", "b")
    assert sorted(await run) == ["a", "b"]


async def test_a_wait_with_a_limit_raises_live_and_after_a_restart(reopened: Callable[[], Flows]) -> None:
    @workflow
    async def order() -> str:
        try:
            await wait_for("approval", timeout=1.5)
        except TimeoutError:
            await sleep(1.5)
            return "late"
        return "approved"

    async with reopened() as flows:
        run = flows.start(order, id="one")
        await until(lambda: "2 sleep" in run.steps)
        await parked(run)
        assert await run == "late"
        await run.again()
        assert await run == "late"


@pytest.mark.usefixtures("clock")
async def test_a_wait_without_time_to_wait_raises_even_at_virtual_time_zero() -> None:
    @workflow
    async def order() -> None:
        await wait_for("approval", timeout=0)

    async with Flows() as flows, asyncio.timeout(LIMIT):
        with pytest.raises(TimeoutError, match="no signal 'approval' in time"):
            await flows.start(order)


async def test_signals_that_cannot_be_received_are_refused(flows: Flows) -> None:
    @workflow
    async def order() -> None: ...

    await flows.start(order, id="one")
    with pytest.raises(InvalidState, match="has ended as SUCCESS"):
        await flows.signal("one", "approval")
    with pytest.raises(FlowError, match="no flow in this store has the id 'two'"):
        await flows.signal("two", "approval")
    with pytest.raises(FlowError, match="cannot be stored as JSON"):
        await flows.signal("one", "approval", {1})
    for name in ("", "lifecycle.cancel"):
        with pytest.raises(ValueError, match="must not be empty or begin with"):
            await flows.signal("one", name)


# -- cancellation ------------------------------------------------------------------------------------------------------


async def _waits_for_ever() -> None:
    CALLS.append("slow")
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    "operation",
    [
        lambda: step(_waits_for_ever),
        lambda: sleep(0.5),
        lambda: sleep(1000),
        lambda: wait_for("approval"),
        lambda: child(approvals, 1),
        lambda: gather(sleep(1000), step(_waits_for_ever), wait_for("approval")),
        lambda: step(note, 1, retry=Times(2, 1000, on=TypeError)),
    ],
    ids=["step", "short sleep", "sleep", "wait", "child", "gather", "between"],
)
async def test_a_workflow_is_cancelled_at_each_operation(flows: Flows, operation: Callable[[], Any]) -> None:
    @workflow
    async def order() -> None:
        undo(note, "undone")
        await step(note, "begin")
        while True:
            await operation()

    run = flows.start(order, id="one")
    await until(lambda: "begin" in CALLS)
    await flows.cancel("one")
    with pytest.raises(FlowCancelled, match="workflow 'one' was cancelled"):
        await run
    assert run.state is FlowState.CANCELLED
    assert [CALLS.count("undone"), CALLS[-1]] == [1, "undone"]
    await flows.cancel("one")


@pytest.mark.parametrize("restart", [False, True])
async def test_a_parked_workflow_is_cancelled_with_its_child(
    reopened: Callable[[], Flows], restart: bool
) -> None:  # a parameter of the test
    @workflow
    async def inner() -> None:
        undo(note, "inner undone")
        await wait_for("never")

    @workflow
    async def outer() -> None:
        undo(note, "outer undone")
        await child(inner, id="in")

    async with reopened() as flows:
        run = flows.start(outer, id="out")
        await parked(run)
        if not restart:
            await flows.cancel("out")
            with pytest.raises(FlowCancelled):
                await run
    if restart:
        async with reopened() as flows:
            await flows.recover(outer, inner)
            await flows.cancel("out")
            with pytest.raises(FlowCancelled):
                await flows.wait("out")
            assert (await flows.get("in")).state is FlowState.CANCELLED
    assert CALLS == ["inner undone", "outer undone"]


async def test_the_result_of_a_step_that_ends_while_it_is_cancelled_is_undone(flows: Flows) -> None:
    begun = asyncio.Event()

    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return "charge"
        return ""

    @workflow
    async def order() -> None:
        charge = await step(stubborn)
        undo(note, charge)
        await step(note, "ship")

    run = flows.start(order, id="one")
    await begun.wait()
    await flows.cancel("one")
    with pytest.raises(FlowCancelled):
        await run
    assert CALLS == ["charge"]


async def test_a_cancelled_workflow_can_start_over(flows: Flows) -> None:
    run = flows.start(approvals, 1, id="one")
    await parked(run)
    await flows.cancel("one")
    with pytest.raises(FlowCancelled):
        await run
    await run.again()
    await until(lambda: run.state is not FlowState.CANCELLED)
    await flows.signal("one", "approval", 5)
    assert await run == [5]


async def test_a_cancellation_that_came_too_late_does_not_cancel_the_next_run(flows: Flows) -> None:
    undoing, go = asyncio.Event(), asyncio.Event()

    async def clean_up() -> None:
        undoing.set()
        await go.wait()

    @workflow
    async def order() -> str:
        undo(clean_up)
        if not go.is_set():
            await wait_for("never")
        return "done"

    run = flows.start(order, id="one")
    await until(lambda: bool(run.steps))
    await flows.cancel("one")
    await undoing.wait()
    # As from a process whose message is late.
    await flows.store.signal(SignalRow("one", CANCEL, "null"))
    go.set()
    with pytest.raises(FlowCancelled):
        await run
    await run.again()
    assert await run == "done"


async def test_a_flow_of_tasks_cannot_be_cancelled(flows: Flows) -> None:
    await flows.start(linear("f", task(note)), id="one", value=1)
    with pytest.raises(FlowError, match="is not a workflow, so it cannot be cancelled"):
        await flows.cancel("one")
    with pytest.raises(FlowError, match="no flow in this store"):
        await flows.cancel("two")


# -- children ----------------------------------------------------------------------------------------------------------


class AbsentStore(MemoryStore):
    """A store that fails ``failures`` times to return a flow."""

    failures = 0

    async def get(self, id: str) -> FlowRow | None:  # noqa: A002  # as in the protocol
        if self.failures:
            self.failures -= 1
            raise JournalError("the server is away")
        return await super().get(id)


@pytest.mark.usefixtures("clock")
async def test_a_store_that_is_away_while_a_child_starts_is_not_an_outcome() -> None:
    store = AbsentStore()

    @workflow
    async def inner() -> str:
        return "inner"

    @workflow
    async def outer() -> str:
        undo(note, "undone")
        store.failures = min(1, 1 - len(CALLS))
        CALLS.append("called")
        return await child(inner, id="in")

    async with Flows(store=store) as flows:
        run = flows.start(outer, id="out")
        await until(lambda: run.stopped or run.ended)
        assert (await flows.get("out")).state not in ENDS
        await run.resume()
        assert await run == "inner"
    assert CALLS == ["called", "called"]


@workflow
async def invoice(n: int) -> int:
    await sleep(0.1)
    if n < 0:
        raise ValueError("negative")
    return await step(note, n)


@pytest.mark.parametrize("wait", [0.1, 2.5])
async def test_a_child_has_its_own_id_and_returns_its_result(flows: Flows, wait: float) -> None:
    @workflow
    async def inner(n: int) -> int:
        await sleep(wait)
        return await step(note, n)

    @workflow
    async def outer() -> list[Any]:
        both = await gather(child(inner, 1), child(inner, 2, id="mine"))
        return [*both, await child(linear("f", task(note, name="result")), value=3)]

    run = flows.start(outer, id="out")
    assert await run == [1, 2, {"result": 3}]
    rows = await flows.store.flows()
    assert [(row.id, row.parent, row.state) for row in rows] == [
        ("out", "", "SUCCESS"),
        ("out/1", "out", "SUCCESS"),
        ("mine", "out", "SUCCESS"),
        ("out/4", "out", "SUCCESS"),
    ]


async def test_a_child_that_fails_raises_and_continues_when_its_parent_does(flows: Flows) -> None:
    failures = iter([OSError("x")])

    async def failing() -> str:
        CALLS.append("failing")
        for error in failures:
            raise error
        return "done"

    @workflow
    async def inner() -> str:
        await step(note, "once")
        return await step(failing)

    @workflow
    async def outer() -> str:
        return await child(inner)

    run = flows.start(outer, id="out")
    with pytest.raises(StepFailed, match=r"^'1 inner' failed: StepFailed: '2 failing' failed: OSError: x$"):
        await run
    assert run.state is FlowState.FAILURE
    await run.again()
    assert await run == "done"
    assert CALLS == ["once", "failing", "failing"]


async def test_children_continue_after_a_restart_with_their_parent(reopened: Callable[[], Flows]) -> None:
    begun = asyncio.Event()

    async def slow() -> str:
        begun.set()
        if len(CALLS) == 1:
            await asyncio.get_running_loop().create_future()
        return "done"

    @workflow
    async def inner() -> str:
        await step(note, "once")
        if begun.is_set():
            CALLS.append("run")
        return await step(slow)

    @workflow
    async def outer() -> str:
        return await child(inner)

    async with reopened() as flows:
        flows.start(outer, id="out")
        await begun.wait()
    async with reopened() as flows:
        (run,) = await flows.recover(outer)
        assert await run == "done"
    assert CALLS == ["once", "run"]


async def test_workflows_that_are_recovered_twice_at_the_same_time_run_once(reopened: Callable[[], Flows]) -> None:
    closed = asyncio.Event()
    ids = [str(n) for n in range(10)]

    async def slow(name: str) -> str:
        CALLS.append(name)
        if not closed.is_set():
            await asyncio.get_running_loop().create_future()
        return name

    @workflow
    async def order(name: str, inner: bool) -> str:
        return await step(slow, name) if inner else await child(order, name, True)

    async with reopened() as flows:
        for name in ids:
            flows.start(order, name, False, id=name)
        await until(lambda: len(CALLS) == len(ids))
        closed.set()
    async with reopened() as flows:
        await asyncio.gather(flows.recover(order), flows.recover(order))
        assert await asyncio.gather(*(flows.wait(name) for name in ids)) == ids
    assert sorted(CALLS) == sorted(2 * ids)


class Interrupted:
    """A workflow with a child and a grandchild. Its step runs until it is cancelled, unless ``closed`` is set."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

        @workflow
        async def innermost() -> str:
            return await step(self._slow, "step")

        @workflow
        async def inner() -> str:
            return await child(innermost)

        @workflow
        async def outer() -> str:
            return await child(inner)

        self.outer, self.inner, self.innermost = outer, inner, innermost

    async def _slow(self, value: str) -> str:
        CALLS.append(value)
        if not self.closed.is_set():
            await asyncio.get_running_loop().create_future()
        return value

    async def until_waiting(self, flows: Flows) -> None:
        """Wait until only the grandchild runs."""
        await until(lambda: CALLS and [run.name for run in flows.runs] == ["innermost"])
        self.closed.set()


@pytest.mark.parametrize("all_names", [True, False])
async def test_recover_continues_the_interrupted_child_of_a_workflow_that_waits(
    reopened: Callable[[], Flows], all_names: bool
) -> None:
    each = Interrupted()
    async with reopened() as flows:
        flows.start(each.outer, id="out")
        await each.until_waiting(flows)
    async with reopened() as flows:
        rows = await flows.store.flows()
        assert [row.state for row in rows] == [FlowState.WAITING, FlowState.WAITING, FlowState.SUSPENDED]
        await flows.recover(each.outer, *([each.inner, each.innermost] if all_names else []))
        assert await flows.wait("out") == "step"
    assert CALLS == ["step", "step"]


async def test_a_worker_continues_the_interrupted_child_of_a_job_that_waits(reopened: Callable[[], Flows]) -> None:
    each = Interrupted()
    async with reopened() as flows:
        queue = JobQueue(flows)
        working = asyncio.create_task(queue.work({"outer": each.outer}))
        await queue.enqueue("outer", id="out")
        await each.until_waiting(flows)
        working.cancel()
        await asyncio.wait([working])
    async with reopened() as flows:
        working = asyncio.create_task(JobQueue(flows).work({"outer": each.outer}))
        assert await flows.wait("out") == "step"
        working.cancel()
        await asyncio.wait([working])
    assert CALLS == ["step", "step"]


async def test_a_child_whose_id_is_taken_fails(flows: Flows) -> None:
    await flows.start(approvals, 0, id="taken")

    @workflow
    async def outer() -> None:
        await child(approvals, 0, id="taken")

    with pytest.raises(FlowError, match="belongs to another flow, not to a child of 'out'"):
        await flows.start(outer, id="out")


async def test_a_workflow_that_was_taken_stops_at_its_next_write_and_continues_later(
    flows: Flows, caplog: pytest.LogCaptureFixture
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        CALLS.append("slow")
        begun.set()
        await go.wait()
        return "done"

    @workflow
    async def order() -> str:
        result = await step(slow)
        await sleep(0.1)
        return result

    run = flows.start(order, id="one")
    await begun.wait()
    taken = await flows.store.take("one", "other process", seen=1)
    go.set()
    with pytest.raises(ClaimLost):
        await run
    assert "flow order 'one' stopped, and can be resumed: flow 'one' was taken by another process" in caplog.text
    assert (await flows.store.load("one")).flow == taken.flow
    # The other process parks the workflow, and dies.
    row = taken.flow
    await flows.store.commit(Batch("one", row.epoch, "WAITING", row.seq, 0.0, [], [], kind="workflow", due=DUE_NOW))
    flows.presence.notify(WAKE)
    await until(lambda: run.ended)
    assert await run == "done"
    assert CALLS == ["slow", "slow"]


# -- patches -----------------------------------------------------------------------------------------------------------


async def test_a_patch_keeps_the_old_code_for_workflows_that_were_past_it(reopened: Callable[[], Flows]) -> None:
    patched = False

    @workflow
    async def order() -> str:
        await step(note, "first")
        old = "old" if not patched else ("new" if patch("check") else "old")
        await step(note, old)
        await wait_for("go")
        return f"{old} {patched and patch('check')}"

    async with reopened() as flows:
        await parked(flows.start(order, id="before"))
    patched = True
    async with reopened() as flows:
        await flows.recover(order)
        await parked(flows.start(order, id="after"))
        for each in ("before", "after"):
            await flows.signal(each, "go")
        assert await flows.wait("before") == "old False"
        assert await flows.wait("after") == "new True"
    assert CALLS == ["first", "old", "first", "new"]


# -- jobs --------------------------------------------------------------------------------------------------------------


async def test_a_job_whose_workflow_waits_is_parked_and_continues(flows: Flows) -> None:
    @workflow
    async def order(n: int) -> list[Any]:
        await sleep(1.5)
        return [n, await wait_for("approval")]

    queue = JobQueue(flows, max_attempts=1)
    working = asyncio.create_task(queue.work({"order": order}, concurrency=1))
    jobs = [await queue.enqueue("order", id=str(n), n=n) for n in range(3)]
    for job in jobs:
        await flows.signal(job.id, "approval", "yes")
    assert [await job for job in jobs] == ["SUCCESS"] * 3
    assert [await flows.wait(str(n)) for n in range(3)] == [[n, "yes"] for n in range(3)]
    assert [(await queue.get(str(n))).attempts for n in range(3)] == [1, 1, 1]
    working.cancel()
    await asyncio.wait([working])


async def test_a_job_is_cancelled_before_it_starts_and_while_it_waits(flows: Flows) -> None:
    queue = JobQueue(flows)
    jobs = [await queue.enqueue("approvals", id=each, count=1) for each in ("early", "late")]
    await flows.cancel("early")
    working = asyncio.create_task(queue.work({"approvals": approvals}))
    assert await jobs[0] == "CANCELLED"
    async with asyncio.timeout(LIMIT):
        while (row := await flows.store.get("late")) is None or row.state != FlowState.WAITING:
            await asyncio.sleep(0.05)
    await flows.cancel("late")
    assert await jobs[1] == "CANCELLED"
    working.cancel()
    await asyncio.wait([working])

"""Workflows: steps and their results, replay after a crash, retries, undo, timers, signals, children and changes."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Self

import pytest

from lifecycle.errors import FlowError, StepFailed, WorkflowChanged
from lifecycle.flows import (
    Flows,
    FlowState,
    Options,
    Times,
    current_task,
    gather,
    send,
    sleep,
    step,
    task,
    undo,
    workflow,
)
from tests.flows.noted_calls import CALLS, note
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lifecycle.flows import Run, Store, Workflow

# The timer of open Flows may look for workflows that are due when a test ends.
pytestmark = [pytest.mark.keeps_tasks, pytest.mark.usefixtures("calls")]


def note_in_thread(value: Any) -> Any:
    CALLS.append(value)
    return value


class Failing:
    """A step function that fails ``times`` times."""

    def __init__(self, times: int, error: Exception) -> None:
        self.left, self.error = times, error

    async def __call__(self) -> str:
        CALLS.append(current_task().attempt)
        if self.left:
            self.left -= 1
            raise self.error
        return "done"


async def outcome_of(run: Run[Any]) -> Any:
    """Return the result of a run, or the text of its error."""
    try:
        return await run
    except Exception as error:  # noqa: BLE001  # compared by the test
        return f"{type(error).__name__}: {error}"


# -- steps and results -------------------------------------------------------------------------------------------------


async def test_a_workflow_returns_the_value_of_its_function(flows: Flows) -> None:
    @workflow
    async def order(id: str, amount: int = 1) -> list[Any]:  # noqa: A002  # the name of a user
        return [await step(note, id), await step(note_in_thread, amount), (await step(note, (1, 2)))]

    run = flows.start(order, "o-1", amount=5, id="one")
    # Live and after a restart, a step returns what the codec makes of its result.
    assert await run == ["o-1", 5, [1, 2]]
    assert (run.state, CALLS) == (FlowState.SUCCESS, ["o-1", 5, (1, 2)])
    assert list(run.steps) == ["1 note", "2 note_in_thread", "3 note"]


if sys.version_info >= (3, 12):

    async def test_a_workflow_runs_where_tasks_start_eagerly(flows: Flows) -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)

        @workflow
        async def both() -> list[int]:
            return await gather(step(note, 1), step(note, 2))

        assert await flows.start(both) == [1, 2]


async def test_a_workflow_can_be_called_by_another_as_a_part_of_it(flows: Flows) -> None:
    @workflow
    async def inner(n: int) -> int:
        return await step(note, n)

    @workflow
    async def outer() -> int:
        return await inner(1) + await inner(2)

    run = flows.start(outer)
    assert await run == 3
    assert list(run.steps) == ["1 note", "2 note"]


async def test_loops_branches_and_names_number_the_steps_in_order(flows: Flows) -> None:
    @workflow
    async def loops() -> int:
        total = 0
        for item in await step(note, [1, 2, 3]):
            if item != 2:
                total += await step(note, item, name=f"item {item}")
        return total

    run = flows.start(loops)
    assert await run == 4
    assert list(run.steps) == ["1 note", "2 item 1", "3 item 3"]


async def test_gather_numbers_the_operations_of_each_branch_separately(flows: Flows) -> None:
    async def pair(n: int) -> int:
        await sleep(0.2 / n)
        return int(await step(note, n)) + int(await step(note, n))

    @workflow
    async def fan() -> list[int]:
        return await gather(step(note, 7), *(pair(n) for n in (1, 2)))

    run = flows.start(fan)
    assert await run == [7, 2, 4]
    assert sorted(CALLS) == [1, 1, 2, 2, 7]
    assert [name for name in run.steps if "note" in name] == [
        "1 note",
        "2.2.2 note",
        "2.2.3 note",
        "2.3.2 note",
        "2.3.3 note",
    ]


async def test_gather_lets_all_branches_end_and_raises_the_first_error_in_order(flows: Flows) -> None:
    async def branch(n: int) -> None:
        await sleep(1 / n)
        await step(note, n)
        raise ValueError(f"branch {n}")

    @workflow
    async def fan() -> None:
        assert await gather() == []
        await gather(branch(1), branch(2))

    with pytest.raises(ValueError, match="branch 1"):
        await flows.start(fan)
    assert CALLS == [2, 1]


async def test_a_step_sends_events_once_and_has_a_key(flows: Flows) -> None:
    keys: list[str] = []

    async def sending() -> None:
        keys.append(current_task().key)
        send("paid", len(keys))
        if len(keys) == 1:
            raise ConnectionError

    @workflow
    async def order() -> None:
        await step(sending, retry=Times(2))

    await flows.start(order, id="one")
    assert keys == ["one/1 sending/1"] * 2
    rows = await flows.store.outbox().take(10, now=0.0, until=1.0)
    assert [(row.topic, row.data) for row in rows] == [("paid", "2")]


@pytest.mark.parametrize("operation", [lambda: step(note, 1), lambda: sleep(1), lambda: undo(note), gather])
async def test_operations_outside_a_workflow_are_refused(operation: Callable[[], object]) -> None:
    with pytest.raises(LookupError, match="outside a workflow"):
        operation()


async def test_operations_in_a_step_or_in_an_unknown_task_are_refused(flows: Flows) -> None:
    async def nested() -> None:
        await step(note, 1)

    @workflow
    async def in_step() -> None:
        await step(nested)

    @workflow
    async def in_task() -> None:
        await asyncio.gather(nested())

    @workflow
    async def awaited_in_task() -> None:
        await asyncio.gather(step(note, 1))

    assert "was called in step '1 nested'" in await outcome_of(flows.start(in_step))
    assert "use gather" in await outcome_of(flows.start(in_task))
    assert "use gather" in await outcome_of(flows.start(awaited_in_task))
    assert CALLS == []


async def test_wrong_arguments_are_refused_at_the_call(flows: Flows) -> None:
    @workflow
    async def order(amount: int) -> None: ...

    with pytest.raises(TypeError, match=r"order\(.*missing a required argument: 'amount'"):
        flows.start(order)
    with pytest.raises(TypeError, match="must be an async function"):
        workflow(print)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises(TypeError, match="by name only"):
        flows.start(task(note), 1)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]

    @workflow
    async def wrong() -> None:
        await step(order, 1)

    assert "run flows and workflows with child" in await outcome_of(flows.start(wrong))


# -- failures and retries ----------------------------------------------------------------------------------------------


async def test_a_step_is_tried_again_and_its_waits_are_stored(flows: Flows) -> None:
    failing = Failing(2, ConnectionError("down"))

    @workflow
    async def order() -> str:
        return await step(failing, name="pay", retry=Times(5, 0.5, on=ConnectionError))

    run = flows.start(order, id="one")
    assert await run == "done"
    assert CALLS == [1, 2, 3]
    changes = [(each.name, each.new) for each in await flows.store.changes("one")]
    assert changes == [
        ("order", "RUNNING"),
        ("1 pay", "RETRYING"),
        ("1 pay", "RETRYING"),
        ("1 pay", "SUCCESS"),
        ("order", "SUCCESS"),
    ]


@pytest.mark.parametrize(("error", "attempts"), [(ConnectionError("down"), 3), (KeyError("x"), 1)])
async def test_a_step_that_fails_raises_the_same_error_live_and_after_a_restart(
    flows: Flows, reopened: Callable[[], Flows], error: Exception, attempts: int
) -> None:
    failing = Failing(9, error)
    seen: list[tuple[str, str, str]] = []
    causes: set[BaseException | None] = set()

    @workflow
    async def order() -> str:
        try:
            await step(failing, name="pay", retry=Times(3, on=OSError))
        except StepFailed as failed:
            seen.append((failed.step, failed.type, failed.message))
            causes.add(failed.__cause__)
        await step(note, "after")
        raise RuntimeError("ends")

    with pytest.raises(RuntimeError, match="ends"):
        await flows.start(order, id="one")
    run = (await again(reopened, order)) if isinstance(error, ConnectionError) else None
    assert run is None or run.state is FlowState.FAILURE
    assert [*range(1, attempts + 1), "after"] == CALLS
    assert len(set(seen)) == 1
    assert seen[0][:2] == ("1 pay", type(error).__name__)


async def test_a_workflow_whose_step_failed_raises_the_same_error_after_a_restart(
    reopened: Callable[[], Flows],
) -> None:
    @workflow
    async def order() -> None:
        await step(Failing(9, OSError("no route")), name="ship")

    for _ in range(2):
        async with reopened() as flows:
            with pytest.raises(StepFailed, match=r"^'1 ship' failed: OSError: no route"):
                await flows.start(order, id="one")


async def again(reopened: Callable[[], Flows], flow: Workflow[..., Any]) -> Run[Any]:
    """Run the flow ``one`` again in other Flows, and return the run when it has ended."""
    async with reopened() as flows:
        run = flows.start(flow, id="one")
        await outcome_of(run)
        await run.again()
        await outcome_of(run)
        return run


async def test_a_step_that_takes_too_long_fails(flows: Flows) -> None:
    @workflow
    async def order() -> None:
        await step(asyncio.sleep, 30.0, timeout=1.5)

    with pytest.raises(StepFailed, match=r"TimeoutError: step '1 sleep' took longer than 1\.5 s"):
        await flows.start(order)


async def test_a_result_that_cannot_be_stored_fails_the_step(flows: Flows) -> None:
    @workflow
    async def order() -> None:
        await step(note, {1, 2})

    with pytest.raises(StepFailed, match="cannot be stored as JSON"):
        await flows.start(order)


async def test_a_step_that_cancels_itself_fails(flows: Flows) -> None:
    async def cancelling() -> None:
        raise asyncio.CancelledError

    @workflow
    async def order() -> None:
        await step(cancelling)

    with pytest.raises(StepFailed, match="CancelledError"):
        await flows.start(order)


@pytest.mark.usefixtures("clock")
async def test_a_step_that_ignores_its_cancellation_is_logged_once(
    flows: Flows, caplog: pytest.LogCaptureFixture
) -> None:
    async def stubborn() -> str:
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(30.0)
        return "done"

    @workflow
    async def order() -> None:
        await step(asyncio.sleep, 1.0, timeout=1.5)
        await step(stubborn, timeout=1.5)

    with pytest.raises(StepFailed, match=r"'2 .*stubborn' took longer than 1\.5 s"):
        await flows.start(order, id="one")
    assert caplog.text.count("flow one: step '2 stubborn' was cancelled after its timeout but does not finish") == 1
    assert "step '1 " not in caplog.text


async def test_a_task_brings_its_name_its_retry_and_its_timeout(flows: Flows) -> None:
    failing = Failing(1, OSError("x"))
    pay = task(failing, name="pay", retry=Times(2))

    @workflow
    async def order() -> str:
        result: str = await step(pay)
        return result

    run = flows.start(order)
    assert await run == "done"
    assert list(run.steps) == ["1 pay"]


# -- replay ------------------------------------------------------------------------------------------------------------


@workflow
async def shop(n: int) -> list[Any]:
    """A workflow with a loop, a branch, concurrency, a retry, a sleep, and a caught failure."""
    done: list[Any] = [await step(note, "begin")]
    for place in range(n):
        done += [await step(note, place, name=f"item {place}")]
    done += await gather(*(step(note, f"ship {place}") for place in range(2)), _packed())
    await sleep(0.25)
    try:
        await step(_refuse)
    except StepFailed as error:
        done.append(error.message)
    return done


async def _packed() -> list[Any]:
    return [await step(note, "pack"), await step(note_in_thread, "seal")]


async def _refuse() -> None:
    CALLS.append("refuse")
    raise ValueError("no")


class Dying:
    """A store that stops to answer after a number of writes, as if the process had died then."""

    def __init__(self, store: Store, writes: int) -> None:
        self._store, self.left = store, writes
        self.dead = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in ("commit", "create"):
            return method

        async def write(*args: Any) -> Any:
            if not self.left:
                self.dead.set()
                await asyncio.get_running_loop().create_future()
            self.left -= 1
            return await method(*args)

        return write

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._store.__aexit__(None, None, None)


async def killed_after(make_store: Callable[[], Store], writes: int, flow: Workflow[..., Any], *args: Any) -> bool:
    """Run a workflow until its store has made a number of writes. Return True if it was interrupted."""
    store = Dying(make_store(), writes)
    async with Flows(store=store, stop_timeout=0.0) as flows:  # pyright: ignore[reportArgumentType]  # it has all methods
        run = flows.start(flow, *args, id="one")
        ending = asyncio.ensure_future(outcome_of(run))
        dying = asyncio.ensure_future(store.dead.wait())
        await asyncio.wait([ending, dying], return_when=asyncio.FIRST_COMPLETED)
        dying.cancel()
        if store.dead.is_set():
            await run.abandon(FlowError("killed"))
        await ending
    return store.dead.is_set()


async def test_a_workflow_killed_after_any_write_repeats_no_step_that_was_stored(
    make_store: Callable[[], Store],
) -> None:
    undisturbed = ["begin", 0, 1, "ship 0", "ship 1", ["pack", "seal"], "no"]
    writes = 0
    interrupted = True
    while interrupted:
        CALLS.clear()
        store = make_store()
        async with store:
            await store.delete("one")
        interrupted = await killed_after(make_store, writes, shop, 2)
        async with Flows(store=make_store(), stop_timeout=0.0) as flows:
            recovered = await flows.recover(shop)
            run = recovered[0] if recovered else flows.start(shop, 2, id="one")
            assert await run == undisturbed
            counts = {str(call): CALLS.count(call) for call in CALLS}
        # Only the steps whose results were not stored when the process died run again.
        assert sum(counts.values()) - len(counts) <= 3
        writes += 1
    assert writes > 8


async def test_a_changed_workflow_stops_and_continues_once_it_is_mended(reopened: Callable[[], Flows]) -> None:
    go = asyncio.Event()

    def made(first: str) -> Workflow[[], list[Any]]:
        @workflow(name="order")
        async def order() -> list[Any]:
            done = [await step(note, 1, name=first)]
            await step(go.wait)
            return done

        return order

    async with reopened() as flows:
        run = flows.start(made("pay"), id="one")
        await until(lambda: len(run.steps) == 2)
    async with reopened() as other:
        changed = other.start(made("charge"), id="one")
        with pytest.raises(WorkflowChanged, match="it calls step '1 charge' where step '1 pay' is recorded"):
            await changed
        assert changed.stopped
        go.set()
        await changed.again(made("pay"))
        assert await changed == [1]
    assert CALLS == [1]


async def test_a_workflow_that_no_longer_calls_a_recorded_step_stops(flows: Flows) -> None:
    long = True

    @workflow
    async def order() -> None:
        await step(note, 1)
        if long:
            await step(note, 2)
        raise ValueError("x")

    run = flows.start(order, id="one")
    await outcome_of(run)
    long = False
    await run.again()
    with pytest.raises(WorkflowChanged, match="ended without calling step '2 note'"):
        await run


@pytest.mark.parametrize("recorded", ["recorded", "by an earlier version"])
@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3), (3, 0)])
async def test_a_changed_number_of_branches_stops_a_workflow_before_new_effects(
    tmp_path: Path, recorded: str, before: int, after: int
) -> None:
    go = asyncio.Event()

    async def branch(n: int) -> Any:
        return await step(note, n)

    def made(branches: int) -> Workflow[[], list[Any]]:
        @workflow(name="order")
        async def order() -> list[Any]:
            done = await gather(*(branch(n) for n in range(branches)))
            await step(go.wait)
            await step(note, "effect")
            return done

        return order

    file = tmp_path / "flows.db"
    async with Flows(file, stop_timeout=0.0) as flows:
        run = flows.start(made(before), id="one")
        await until(lambda: len(run.steps) == before + 1)
    go.set()
    if recorded == "by an earlier version":
        # Earlier versions did not record the number of branches.
        with closing(sqlite3.connect(file)) as db:
            assert db.execute("DELETE FROM lifecycle_flow_steps WHERE kind = 'gather'").rowcount == 1
            db.commit()
    if recorded == "recorded" or after < before:
        async with Flows(file) as flows:
            with pytest.raises(WorkflowChanged, match=f"'1 gather' has {after} branches, but .* are recorded"):
                await flows.start(made(after), id="one")
            assert "effect" not in CALLS
    async with Flows(file) as flows:
        assert await flows.start(made(before), id="one") == list(range(before))
    assert [*range(before), "effect"] == CALLS


async def test_a_gather_that_was_replaced_stops_a_workflow(reopened: Callable[[], Flows]) -> None:
    go = asyncio.Event()

    async def branch(n: int) -> Any:
        return await step(note, n)

    def made(first: Callable[[], Any]) -> Workflow[[], None]:
        @workflow(name="order")
        async def order() -> None:
            await first()
            await step(go.wait)

        return order

    async with reopened() as flows:
        run = flows.start(made(lambda: gather(branch(1), branch(2))), id="one")
        await until(lambda: len(run.steps) == 3)
    async with reopened() as flows:
        with pytest.raises(WorkflowChanged, match="calls step '1 note' where gather '1 gather' is recorded"):
            await flows.start(made(lambda: step(note, 3)), id="one")
    assert CALLS == [1, 2]


async def test_check_replay_finds_a_function_that_does_not_repeat_itself(make_store: Callable[[], Store]) -> None:
    numbers = iter(range(100))

    @workflow
    async def returns() -> int:
        return next(numbers)

    @workflow
    async def steps() -> None:
        for _ in range(next(numbers)):
            await step(note, 1)

    @workflow
    async def fails() -> None:
        raise ValueError(next(numbers))

    @workflow
    async def steady() -> int:
        await sleep(0.1)
        return await step(note, 5)

    async with Flows(store=make_store(), options=Options(check_replay=True)) as flows:
        for each in (returns, steps, fails):
            with pytest.raises(WorkflowChanged):
                await flows.start(each)
        assert await flows.start(steady) == 5


# -- undo --------------------------------------------------------------------------------------------------------------


async def test_undo_runs_in_reverse_order_and_is_recorded(flows: Flows) -> None:
    @workflow
    async def order() -> None:
        for n in range(3):
            await step(note, n)
            undo(note, -n, name=f"undo {n}")
        raise ValueError("no")

    run = flows.start(order, id="one")
    with pytest.raises(ValueError, match="no"):
        await run
    assert (run.state, CALLS) == (FlowState.REVERTED, [0, 1, 2, -2, -1, 0])
    assert [view.state for name, view in run.steps.items() if "undo" in name] == ["SUCCESS"] * 3


async def test_undo_continues_after_a_failed_function_and_again_repeats_only_that(flows: Flows) -> None:
    failing = Failing(1, OSError("x"))

    @workflow
    async def order() -> None:
        undo(note, "first")
        undo(failing)
        undo(note, "last")
        await step(note, "step")
        raise ValueError("no")

    run = flows.start(order, id="one")
    await outcome_of(run)
    assert (run.state, CALLS) == (FlowState.FAILURE, ["step", "last", 1, "first"])
    await run.again()
    assert await outcome_of(run) in ("StepFailed: 'order' failed: ValueError: no", "ValueError: no")
    assert (run.state, CALLS) == (FlowState.REVERTED, ["step", "last", 1, "first", 2])


async def test_a_failed_workflow_repeats_only_its_failed_step(flows: Flows) -> None:
    failing = Failing(1, OSError("x"))

    @workflow
    async def order() -> str:
        await step(note, "pay")
        return await step(failing)

    run = flows.start(order, id="one")
    with pytest.raises(StepFailed):
        await run
    assert run.state is FlowState.FAILURE
    await run.again()
    assert await run == "done"
    assert CALLS == ["pay", 1, 2]


async def test_an_undone_workflow_starts_over_with_new_keys(flows: Flows) -> None:
    keys: list[str] = []

    async def pay() -> None:
        keys.append(current_task().key)

    @workflow
    async def order() -> None:
        await step(pay)
        undo(note, "refund")
        if len(keys) == 1:
            raise ValueError("no")

    run = flows.start(order, id="one")
    await outcome_of(run)
    await run.again()
    await run
    assert keys == ["one/1 pay/1", "one/1 pay/2"]
    await run.reset()
    assert run.state is FlowState.PENDING
    await run.resume()
    await run
    assert keys[2:] == ["one/1 pay/3"]


async def test_a_workflow_killed_while_it_is_undone_repeats_no_undo_that_was_stored(
    make_store: Callable[[], Store],
) -> None:
    @workflow
    async def order() -> None:
        for n in range(3):
            await step(note, n)
            undo(note, n + 10)
        raise ValueError("no")

    for writes in range(12):
        CALLS.clear()
        store = make_store()
        async with store:
            await store.delete("one")
        if not await killed_after(make_store, writes, order):
            break
        async with Flows(store=make_store(), stop_timeout=0.0) as flows:
            recovered = await flows.recover(order)
            run = recovered[0] if recovered else flows.start(order, id="one")
            assert "no" in await outcome_of(run)
            assert run.state is FlowState.REVERTED
        assert len(CALLS) <= 7
        assert list(dict.fromkeys(CALLS)) == [0, 1, 2, 12, 11, 10]
    else:
        pytest.fail("it never ended")


# -- suspension --------------------------------------------------------------------------------------------------------


async def test_a_suspended_workflow_lets_its_step_finish_and_continues_later(flows: Flows) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        CALLS.append("slow")
        begun.set()
        await go.wait()

    @workflow
    async def order() -> int:
        await step(slow)
        return await step(note, 1)

    run = flows.start(order, id="one")
    await begun.wait()
    resting = run.suspend()
    go.set()
    assert await resting == FlowState.SUSPENDED
    assert CALLS == ["slow"]
    await run.resume()
    assert await run == 1
    assert CALLS == ["slow", 1]


async def test_closing_suspends_a_workflow_and_recover_continues_it(reopened: Callable[[], Flows]) -> None:
    begun = asyncio.Event()

    async def slow() -> None:
        begun.set()
        if not CALLS:
            CALLS.append(1)
            await asyncio.get_running_loop().create_future()

    @workflow
    async def order() -> int:
        await step(slow)
        return 5

    async with reopened() as flows:
        run = flows.start(order, id="one")
        await begun.wait()
    assert run.state is FlowState.SUSPENDED
    async with reopened() as flows:
        (run,) = await flows.recover(order)
        assert await run == 5

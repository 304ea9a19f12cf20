"""The engine: phases and transactions, functions in tasks and threads, and results that do not depend on timing."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from contextlib import nullcontext
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import hooks
from lifecycle.errors import ClaimLost
from lifecycle.flows import (
    Batch,
    Change,
    Flow,
    Flows,
    MemoryStore,
    Options,
    Run,
    Times,
    current_task,
    linear,
    task,
    unordered,
)
from lifecycle.flows.client import registry_of
from lifecycle.flows.plan import compile_flow
from lifecycle.flows.records import FlowRow, Snapshot
from tests.flows.numbered_flows import NumberedFlow, left_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lifecycle.testing import Clock


class Noting(MemoryStore):
    """A store that records which changes were written together."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []

    async def commit(self, batch: Batch) -> None:
        if batch.changes:
            self.batches.append([f"{each.name} {each.new}" for each in batch.changes])
        await super().commit(batch)


def two() -> Flow:
    return linear("f", *[task(lambda: 1, name=name) for name in "ab"])


def ignore(_: Any, **_arguments: Any) -> None:
    """Ignore a change."""


@pytest.mark.parametrize(
    "listening",
    [
        nullcontext,
        lambda: hooks.flow_changed.connected_to(ignore),
        lambda: hooks.state_changed.connected_to(ignore),
    ],
)
async def test_a_transaction_ends_only_before_a_task_starts_or_while_one_runs(
    listening: Callable[[], Any],
) -> None:
    async with Flows(store=(store := Noting())) as flows:
        with listening():
            await flows.start(two())
    assert store.batches == [["f RUNNING", "a RUNNING"], ["a SUCCESS", "b RUNNING"], ["b SUCCESS", "f SUCCESS"]]


@pytest.mark.parametrize("in_thread", [True, False])
async def test_no_task_starts_once_the_claim_on_the_flow_has_expired(in_thread: bool) -> None:
    calls: list[str] = []

    async def pay(name: str) -> None:
        calls.append(name)

    def first() -> None:
        calls.append("first")

    def second() -> None:
        calls.append("second")

    tasks: list[Any] = [first, second] if in_thread else [partial(pay, "first"), partial(pay, "second")]
    flow = linear("f", *[task(each, name=name) for each, name in zip(tasks, "ab", strict=True)])
    async with Flows() as flows:
        row = FlowRow("one", "f", epoch=1, store="{}")
        await flows.store.create(row)
        run = registry_of(flows).adopt(compile_flow(flow), Snapshot(row, {}), lambda: not calls)
        with pytest.raises(ClaimLost):
            await run
    assert calls == ["first"]


async def test_a_receiver_can_suspend_a_flow_before_its_first_task(
    flows: Flows,
) -> None:
    heard: list[str] = []

    def suspend(run: Run, *, change: Change) -> None:
        heard.append(f"{change.name} {change.new}")
        if (change.name, change.new) == ("f", "RUNNING") and len(heard) == 1:
            run.suspend()

    with hooks.flow_changed.connected_to(suspend):
        run = flows.start(two(), id="one")
        assert [state.value async for state in run.states()][-1] == "SUSPENDED"
        assert heard == ["f RUNNING", "f SUSPENDING", "f SUSPENDED"]
        stored = await flows.store.load("one")
        assert (stored.flow.state, stored.steps["a"].state, stored.steps["a"].attempt) == ("SUSPENDED", "PENDING", 0)
        assert [f"{each.name} {each.new}" for each in await flows.store.changes("one")] == heard
        await run.resume()
        await run
    assert run.steps["a"].attempt == 1


async def test_a_flow_suspended_at_the_end_of_its_last_task_ends(flows: Flows) -> None:
    def suspend(run: Run, *, change: Change) -> None:
        if (change.name, change.new) == ("b", "SUCCESS"):
            run.suspend()

    with hooks.flow_changed.connected_to(suspend):
        run = flows.start(two(), id="one")
        await run
    assert (run.state, (await flows.store.load("one")).flow.state) == ("SUCCESS", "SUCCESS")


async def test_a_receiver_can_suspend_a_flow_between_two_tasks(
    flows: Flows,
) -> None:
    calls: list[str] = []
    heard: list[str] = []

    def suspend(run: Run, *, change: Change) -> None:
        heard.append(f"{change.name} {change.new}")
        if (change.name, change.new) == ("a", "SUCCESS"):
            run.suspend()

    flow = linear("f", *[task(lambda name=name: calls.append(name), name=name) for name in "ab"])
    with hooks.flow_changed.connected_to(suspend):
        run = flows.start(flow, id="one")
        assert [state.value async for state in run.states()][-1] == "SUSPENDED"
    assert heard == ["f RUNNING", "a RUNNING", "a SUCCESS", "f SUSPENDING", "f SUSPENDED"]
    assert (run.state, run.steps["b"].state, run.steps["b"].attempt) == ("SUSPENDED", "PENDING", 0)
    stored = await flows.store.load("one")
    assert (stored.steps["b"].state, stored.steps["b"].attempt) == ("PENDING", 0)
    assert [f"{each.name} {each.new}" for each in await flows.store.changes("one")] == heard
    await run.resume()
    await run
    assert calls == ["a", "b"]


async def test_a_retry_suspended_before_its_next_attempt_makes_it_when_resumed(flows: Flows) -> None:
    keys = 0

    def fails_once() -> int:
        nonlocal keys
        keys += 1
        if keys == 1:
            raise OSError("no connection")
        return keys

    def suspend(run: Run, *, change: Change) -> None:
        if (change.name, change.new) == ("a", "REVERTED"):
            run.suspend()

    flow = linear("f", task(fails_once, name="a"), retry=Times(3))
    with hooks.flow_changed.connected_to(suspend):
        run = flows.start(flow, id="one")
        assert [state.value async for state in run.states()][-1] == "SUSPENDED"
    stored = await flows.store.load("one")
    assert {name: row.state for name, row in stored.steps.items()} == {"a": "REVERTED", "f_retry": "SUCCESS"}
    await run.resume()
    assert (await run)["a"] == 2


async def woot() -> None:
    raise RuntimeError("woot")


async def gotcha() -> None:
    raise RuntimeError("gotcha")


async def failed(run: Run, words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        await run


async def states(run: Run) -> list[str]:
    return [state.value async for state in run.states()]


async def test_a_task_without_revert_needs_no_separate_phase_to_be_reverted(flows: Flows) -> None:
    async def undo() -> None: ...

    async def one() -> int:
        return 1

    items = [task(one, name="a"), task(one, name="b").revert(undo), task(woot, name="c")]
    run = flows.start(unordered("f", *items))
    phases = ["SCHEDULING", "WAITING", "ANALYZING"]
    assert await states(run) == ["RESUMING", *phases, *phases, "REVERTED"]
    await failed(run, "woot")


#: Timeout in seconds for a function that waits for the event loop. A blocked loop makes the wait fail.
LONG = 10.0


async def test_a_plain_task_and_a_plain_revert_do_not_block_the_loop(flows: Flows) -> None:
    loop, answered = asyncio.get_running_loop(), list[bool]()

    def ask() -> None:
        answer = threading.Event()
        loop.call_soon_threadsafe(answer.set)
        answered.append(answer.wait(LONG))

    def work() -> None:
        ask()
        raise RuntimeError("woot")

    with pytest.raises(RuntimeError, match="woot"):
        await flows.start(linear("f", task(work).revert(ask)))
    assert answered == [True, True]


async def test_a_plain_task_has_the_context_variables_of_the_task(flows: Flows) -> None:
    colour = contextvars.ContextVar("colour", default="none")
    colour.set("blue")

    def work() -> tuple[str, str]:
        return current_task().key, colour.get()

    assert await flows.start(linear("f", task(work)), id="one") == {"work": ["one/work/1", "blue"]}


async def test_no_more_than_32_plain_tasks_run_at_once(flows: Flows) -> None:
    barrier, most, now, lock = threading.Barrier(32), 0, 0, threading.Lock()

    def work() -> None:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        barrier.wait(LONG)
        with lock:
            now -= 1

    await flows.start(unordered("f", *[task(work, name=f"t{number}") for number in range(64)]))
    assert most == 32


async def test_a_cancelled_plain_task_is_awaited_and_not_done_again(
    reopened: Callable[[], Flows],
) -> None:
    begun, calls = threading.Event(), list[int]()

    def work() -> str:
        calls.append(1)
        begun.set()
        threading.Event().wait(0.1)
        return "done"

    flow = linear("f", task(work))
    async with reopened() as flows:
        flows.start(flow, id="one")
        while not begun.is_set():
            await asyncio.sleep(0.001)
    async with reopened() as flows:
        assert await flows.start(flow, id="one") == {"work": "done"}
    assert len(calls) == 1


async def test_a_plain_task_waiting_for_a_thread_is_cancelled_at_once(flows: Flows) -> None:
    go_on, begun = threading.Event(), list[str]()

    def work() -> None:
        begun.append(current_task().name)
        go_on.wait(LONG)

    flow = unordered("f", *[task(work, name=f"t{number}") for number in range(40)])
    run = flows.start(flow)
    while len(begun) < 32:
        await asyncio.sleep(0.001)
    suspended = run.suspend(cancel_after=0)
    while run.steps["t39"].state != "PENDING":
        await asyncio.sleep(0.001)
    go_on.set()
    assert await suspended == "SUSPENDED"
    assert len(begun) == 32
    states = [str(view.state) for view in run.steps.values()]
    assert (states.count("SUCCESS"), states.count("PENDING")) == (32, 8)


async def test_a_plain_task_that_exceeds_its_timeout_fails(flows: Flows) -> None:
    def work() -> str:
        threading.Event().wait(0.1)
        return "late"

    with pytest.raises(TimeoutError, match="'work' took longer"):
        await flows.start(linear("f", task(work, timeout=0.01)))


async def test_waiting_for_a_thread_does_not_count_as_timeout_or_delay_large_results(flows: Flows) -> None:
    go_on, begun = threading.Event(), list[str]()

    def hold() -> None:
        begun.append(current_task().name)
        go_on.wait(LONG)

    async def large() -> str:
        return "x" * 1_000_000

    try:
        run = flows.start(unordered("f", *[task(hold, name=f"t{number}") for number in range(32)]))
        while len(begun) < 32:
            await asyncio.sleep(0.001)
        waiting = flows.start(linear("g", task(lambda: "done", name="quick", timeout=0.4)))
        async with asyncio.timeout(LONG / 2):
            assert len((await flows.start(linear("h", task(large))))["large"]) == 1_000_000
        # The function runs for longer than the task's timeout.
        asyncio.get_running_loop().call_later(0.6, go_on.set)
        assert await waiting == {"quick": "done"}
    finally:
        go_on.set()
    await run


async def test_an_awaitable_returned_by_a_plain_task_is_awaited_without_a_thread(flows: Flows) -> None:
    barrier = asyncio.Barrier(40)

    def meet() -> Awaitable[int]:
        return barrier.wait()

    run = flows.start(unordered("f", *[task(meet, name=f"t{number}") for number in range(40)]))
    async with asyncio.timeout(LONG):
        assert len(await run) == 40


async def end(number: int, concurrency: int | None, pace: Random | None) -> tuple[Any, ...]:
    """Return the result of a flow whose tasks take as long as ``pace`` specifies."""

    async def take_time() -> None:
        if pace is not None:
            await asyncio.sleep(pace.random())

    numbered = NumberedFlow(number, take_time)
    async with Flows(options=Options(concurrency=concurrency)) as flows:
        run = flows.start(numbered.flow)
        try:
            given = await run
        except Exception:  # noqa: BLE001  # the states show the error
            given = None
        return run.state, left_of(run.steps, run.state, exactly=numbered.sequential), given


@pytest.mark.parametrize("concurrency", [None, 1, 2])
async def test_a_flow_ends_the_same_at_any_pace_and_concurrency(clock: Clock, concurrency: int | None) -> None:
    for number in range(40):
        wanted = await end(number, None, None)
        for seed in range(2):
            assert await end(number, concurrency, Random(seed)) == wanted, number

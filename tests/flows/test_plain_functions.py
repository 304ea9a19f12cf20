"""Tasks that are plain functions: they run in threads and do not hold up the loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import TYPE_CHECKING

import pytest

from lifecycle.flows import Flows, current_task, linear, task, unordered

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

#: Seconds that a function waits for the loop; where the loop is blocked, in vain.
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


async def test_a_plain_task_that_is_cancelled_is_waited_for_and_not_done_again(
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


async def test_a_plain_task_that_waits_for_a_thread_is_cancelled_at_once(flows: Flows) -> None:
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


async def test_a_plain_task_that_takes_longer_than_its_time_out_fails(flows: Flows) -> None:
    def work() -> str:
        threading.Event().wait(0.1)
        return "late"

    with pytest.raises(TimeoutError, match="'work' took longer"):
        await flows.start(linear("f", task(work, timeout=0.01)))


async def test_the_wait_for_a_thread_is_no_part_of_the_time_out_and_delays_no_large_result(flows: Flows) -> None:
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
        waiting = flows.start(linear("g", task(lambda: "done", name="quick", timeout=0.01)))
        async with asyncio.timeout(LONG / 2):
            assert len((await flows.start(linear("h", task(large))))["large"]) == 1_000_000
        # Longer than its time-out.
        asyncio.get_running_loop().call_later(0.1, go_on.set)
        assert await waiting == {"quick": "done"}
    finally:
        go_on.set()
    await run


async def test_an_awaitable_that_a_plain_task_returns_is_awaited_without_a_thread(flows: Flows) -> None:
    barrier = asyncio.Barrier(40)

    def meet() -> Awaitable[int]:
        return barrier.wait()

    run = flows.start(unordered("f", *[task(meet, name=f"t{number}") for number in range(40)]))
    async with asyncio.timeout(LONG):
        assert len(await run) == 40

"""Functions as workers: tasks, their gates, and threads. Tasks run in virtual time, and threads in real time."""

from __future__ import annotations

import asyncio
import math
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.errors import InvalidTransition
from lifecycle.workers import Gate, Status, TaskWorker, ThreadWorker, handover, stop_and_wait

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lifecycle.testing import Clock


async def forever() -> None:
    await asyncio.Event().wait()


async def test_runs_until_its_function_returns(clock: Clock) -> None:
    worker = TaskWorker("nap", partial(asyncio.sleep, 3))
    await worker.start()
    assert worker.state().kind == "task"
    exit_ = await worker.wait()
    assert (exit_.status, exit_.error, exit_.exit_code, exit_.duration) == ("finished", None, None, 3)


async def test_an_error_of_the_function_ends_the_worker(clock: Clock) -> None:
    async def crash() -> None:
        raise ValueError("boom")

    worker = TaskWorker("crash", crash)
    await worker.start()
    exit_ = await worker.wait()
    assert exit_.status is Status.FAILED
    assert isinstance(exit_.error, ValueError)
    assert worker.state().error == "boom"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
async def test_a_system_exit_in_a_task_ends_only_that_worker(clock: Clock, error: BaseException) -> None:
    async def leave() -> None:
        raise error

    worker = TaskWorker("leaver", leave)
    await worker.start()
    exit_ = await worker.wait()
    assert (exit_.status, exit_.error) == ("failed", error)


async def test_a_stop_cancels_it(clock: Clock) -> None:
    worker = TaskWorker("w", forever)
    await worker.start()
    exit_ = await stop_and_wait(worker)
    assert (exit_.status, exit_.error) == ("stopped", None)


async def test_an_unrequested_cancellation_fails_the_worker(clock: Clock) -> None:
    async def odd() -> None:
        raise asyncio.CancelledError

    worker = TaskWorker("odd", odd)
    await worker.start()
    assert (await worker.wait()).status is Status.FAILED


async def test_an_error_while_stopping_fails_it(clock: Clock) -> None:
    async def clumsy() -> None:
        try:
            await forever()
        finally:
            raise OSError("cannot flush")

    async with TaskWorker("clumsy", clumsy) as worker:
        await clock.settle()
    assert (await worker.wait()).status is Status.FAILED


async def test_returning_on_request_is_a_stop(clock: Clock) -> None:
    async def polite() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            return

    async with TaskWorker("polite", polite) as worker:
        await clock.settle()
    assert (await worker.wait()).status is Status.STOPPED


async def test_a_task_that_swallows_cancellation_is_abandoned_on_time_and_reported_with_its_stack(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    release = asyncio.Event()

    async def deep_down() -> None:
        await release.wait()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await deep_down()
            except asyncio.CancelledError:
                continue

    worker = TaskWorker("mule", stubborn, stop_timeout=2)
    await worker.start()
    await clock.settle()
    exit_ = await stop_and_wait(worker)
    stopped_at = clock.time()
    # Release the task before the assertions, because it would never finish if one of them failed first.
    release.set()
    await clock.settle()

    assert (exit_.status, worker.state().abandoned, stopped_at) == ("killed", True, 2)
    assert "'mule' did not stop in time and was abandoned" in str(exit_.error)
    assert "'mule' could not be killed and was abandoned: mule, at" in caplog.text
    assert "in deep_down" in caplog.text


async def test_a_second_cancellation_at_the_end_of_the_grace_period_may_end_it(clock: Clock) -> None:
    async def slow() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(math.inf)

    worker = TaskWorker("slow", slow, stop_timeout=2)
    await worker.start()
    await clock.settle()
    exit_ = await stop_and_wait(worker)
    assert (exit_.status, worker.state().abandoned, clock.time()) == ("killed", False, 2)


async def test_its_grace_period_can_be_zero_or_infinite(clock: Clock) -> None:
    async def tidy() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(10_000)

    worker = TaskWorker("tidy", tidy, stop_timeout=math.inf)
    await worker.start()
    await clock.settle()
    assert (await stop_and_wait(worker)).status is Status.STOPPED
    assert clock.time() == 10_000


async def test_a_task_reads_its_handover(clock: Clock) -> None:
    seen: list[Any] = []

    async def work() -> None:
        seen.append(handover())

    worker = TaskWorker("w", work)
    worker.set_env("LIFECYCLE_RESUME_ID", "abc")
    worker.set_env("LIFECYCLE_PREV_EXIT", "-9")
    worker.set_env("LIFECYCLE_ATTEMPT", "2")
    await worker.start()
    await worker.wait()
    assert (seen[0].resume_id, seen[0].prev_exit, seen[0].attempt) == ("abc", -9, 2)
    assert seen[0]["LIFECYCLE_PREV_EXIT"] == "-9"
    assert dict(handover()) == {}
    assert (handover().resume_id, handover().prev_exit, handover().attempt) == ("", 0, 1)


# -- suspension ---------------------------------------------------------------------------------------------------


class Counter:
    """Run a loop with a gate, one step per second."""

    def __init__(self) -> None:
        self.steps = 0

    async def run(self, gate: Gate) -> None:
        while True:
            await gate.checkpoint()
            await asyncio.sleep(1)
            self.steps += 1


async def test_suspension_stops_its_loop_at_the_gate_and_keeps_its_state(clock: Clock) -> None:
    counter = Counter()
    async with TaskWorker("counter", counter.run) as worker:
        assert worker.suspendable
        await clock.advance(3.5)
        await worker.suspend()
        assert (clock.time(), counter.steps, worker.status) == (4, 4, "suspended")
        await clock.advance(100)
        assert counter.steps == 4
        await worker.resume()
        await clock.advance(2)
        assert (counter.steps, worker.status) == (6, "running")


async def test_repeated_suspends_and_resumes_have_no_further_effect(clock: Clock) -> None:
    async with TaskWorker("counter", Counter().run) as worker:
        await asyncio.gather(worker.suspend(), worker.suspend())
        await worker.suspend()
        await worker.resume()
        await worker.resume()
        assert worker.status == "running"


async def test_a_stop_ends_a_suspension_at_once(clock: Clock) -> None:
    async with TaskWorker("counter", Counter().run) as worker:
        await worker.suspend()
        began = clock.time()
    assert ((await worker.wait()).status, clock.time()) == ("stopped", began)


async def test_a_cancelled_suspend_leaves_the_task_running(clock: Clock) -> None:
    counter = Counter()

    async def busy(gate: Gate) -> None:
        await asyncio.sleep(10)
        await counter.run(gate)

    async with TaskWorker("busy", busy) as worker:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await worker.suspend()
        assert worker.status == "running"
        await clock.advance(15)
        assert counter.steps == 6


async def test_suspend_fails_if_the_task_ends_before_its_gate(clock: Clock) -> None:
    async def short(gate: Gate) -> None:
        await asyncio.sleep(1)

    worker = TaskWorker("short", short)
    await worker.start()
    with pytest.raises(InvalidTransition, match="'short' finished before it reached its gate"):
        await worker.suspend()
    assert (await worker.wait()).status is Status.FINISHED


async def test_without_a_gate_it_cannot_be_suspended(clock: Clock) -> None:
    async with TaskWorker("w", forever) as worker:
        assert not worker.suspendable
        with pytest.raises(InvalidTransition, match="does not take a gate"):
            await worker.suspend()
        assert worker.status == "running"


async def test_a_worker_that_is_not_running_cannot_be_suspended() -> None:
    worker = TaskWorker("w", Counter().run)
    with pytest.raises(InvalidTransition, match="'w' cannot go from created to suspended"):
        await worker.suspend()


# -- bad input ----------------------------------------------------------------------------------------------------


async def two(a: int, b: int) -> None: ...
async def keyword(*, a: int) -> None: ...
def plain() -> None: ...


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (plain, "requires an async function"),
        (None, "requires an async function"),
        (two, "must take either no arguments or only a Gate"),
        (keyword, "must take either no arguments or only a Gate"),
    ],
)
async def test_functions_that_it_cannot_call_are_refused(fn: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        TaskWorker("w", fn)


# -- gates -----------------------------------------------------------------------------------------------------------


async def loop(gate: Gate, step: float, log: list[float]) -> None:
    while True:
        await gate.checkpoint()
        await asyncio.sleep(step)
        log.append(asyncio.get_running_loop().time())


async def test_suspend_waits_for_every_loop_that_shares_it(clock: Clock) -> None:
    gate, log = Gate(), list[float]()
    async with asyncio.TaskGroup() as group:
        loops = [group.create_task(loop(gate, step, log)) for step in (1, 3, 7)]
        await clock.advance(0.5)
        await gate.suspend()
        assert (clock.time(), gate.suspended) == (7, True)
        steps = len(log)
        await clock.advance(100)
        assert len(log) == steps
        gate.resume()
        await clock.advance(8)
        assert len(log) > steps
        for each in loops:
            each.cancel()


async def test_a_loop_that_has_ended_is_not_waited_for(clock: Clock) -> None:
    gate = Gate()

    async def once() -> None:
        await gate.checkpoint()
        await asyncio.sleep(5)

    task = asyncio.create_task(once())
    await clock.settle()
    await gate.suspend()
    assert (clock.time(), task.done()) == (5, True)


async def test_a_gate_that_no_loop_has_reached_yet_waits_for_the_first(clock: Clock) -> None:
    gate, log = Gate(), list[float]()
    suspension = asyncio.create_task(gate.suspend())
    await clock.advance(1)
    assert not suspension.done()
    task = asyncio.create_task(loop(gate, 1, log))
    await suspension
    assert (gate.suspended, log) == (True, [])
    task.cancel()


async def test_a_suspension_that_timed_out_leaves_nothing_behind(clock: Clock) -> None:
    gate, log = Gate(), list[float]()
    task = asyncio.create_task(loop(gate, 10, log))
    await clock.advance(0.5)
    with pytest.raises(TimeoutError):
        await gate.suspend(timeout=2)
    assert not gate.suspended
    await clock.advance(50)
    assert len(log) == 5
    task.cancel()


async def test_a_cancelled_suspend_does_not_open_the_gate_for_another(clock: Clock) -> None:
    gate, log = Gate(), list[float]()
    task = asyncio.create_task(loop(gate, 10, log))
    await clock.settle()
    patient = asyncio.create_task(gate.suspend())
    with pytest.raises(TimeoutError):
        await gate.suspend(timeout=2)
    await patient
    assert (clock.time(), gate.suspended) == (10, True)
    task.cancel()


async def test_a_suspend_right_after_a_resume_waits_until_the_loop_reaches_the_gate_again(clock: Clock) -> None:
    gate, log = Gate(), list[float]()
    task = asyncio.create_task(loop(gate, 10, log))
    await gate.suspend()
    gate.resume()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await gate.suspend()
    assert (clock.time(), gate.suspended) == (10, True)
    task.cancel()


async def test_a_resume_overtakes_a_suspension(clock: Clock) -> None:
    gate, log = Gate(), list[float]()
    task = asyncio.create_task(loop(gate, 10, log))
    await clock.settle()
    suspension = asyncio.create_task(gate.suspend())
    await clock.advance(1)
    gate.resume()
    with pytest.raises(InvalidTransition, match="resumed before all loops had reached it"):
        await suspension
    task.cancel()


async def test_a_loop_that_awaits_only_its_gate_lets_other_tasks_run(clock: Clock) -> None:
    gate, rounds = Gate(), 0

    async def spin() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await gate.checkpoint()

    task = asyncio.create_task(spin())
    await gate.suspend()
    held = rounds
    await clock.advance(1)
    assert held == rounds > 0
    task.cancel()


async def test_a_cancelled_loop_leaves_at_once(clock: Clock) -> None:
    gate = Gate()
    task = asyncio.create_task(loop(gate, 1, []))
    await gate.suspend()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert repr(gate) == "<Gate: suspended>"


# -- threads ---------------------------------------------------------------------------------------------------------


async def test_runs_in_its_own_thread_until_it_is_stopped() -> None:
    ran: list[str] = []

    def work(stop: threading.Event) -> None:
        ran.append(threading.current_thread().name)
        stop.wait(30)

    async with ThreadWorker("crunch", work) as worker:
        assert (worker.state().kind, worker.status) == ("thread", "running")
    exit_ = await worker.wait()
    assert (exit_.status, exit_.error, ran) == ("stopped", None, ["crunch"])


@pytest.mark.parametrize("error", [None, ValueError("boom"), SystemExit(2)])
async def test_a_thread_ends_as_its_function_does(error: BaseException | None) -> None:
    def work(_: threading.Event) -> None:
        if error:
            raise error

    worker = ThreadWorker("t", work)
    await worker.start()
    exit_ = await worker.wait()
    assert (exit_.status, exit_.error) == (("failed" if error else "finished"), error)


async def test_a_thread_that_ignores_the_request_is_abandoned_and_reported_with_its_stack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = threading.Event()

    def deaf(_: threading.Event) -> None:
        release.wait(30)

    worker = ThreadWorker("deaf", deaf, stop_timeout=0.05)
    await worker.start()
    exit_ = await stop_and_wait(worker)
    assert (exit_.status, worker.state().abandoned) == (Status.KILLED, True)
    assert "'deaf' could not be killed and was abandoned: deaf, at" in caplog.text
    assert "in deaf" in caplog.text
    release.set()


async def test_a_thread_reads_its_handover() -> None:
    seen: list[Mapping[str, str]] = []
    worker = ThreadWorker("t", lambda _stop: seen.append(handover()))
    worker.set_env("LIFECYCLE_ATTEMPT", "7")
    worker.set_env("OTHER", "not told")
    await worker.start()
    await worker.wait()
    assert dict(seen[0]) == {"LIFECYCLE_ATTEMPT": "7"}


async def test_the_function_of_a_thread_may_have_optional_arguments() -> None:
    seen: list[tuple[object, ...]] = []

    async with ThreadWorker("t", lambda *given: seen.append(given)) as worker:
        await worker.wait()
    (given,) = seen
    assert [type(each) for each in given] == [threading.Event]


async def asynchronous(stop: object) -> None: ...
def nothing() -> None: ...


@pytest.mark.parametrize(
    ("fn", "message"),
    [(asynchronous, "requires a plain function"), ("x", "requires a plain function"), (nothing, "one argument")],
)
async def test_functions_that_a_thread_cannot_call_are_refused(fn: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ThreadWorker("t", fn)

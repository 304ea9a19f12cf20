"""Background tasks: `go`, `do`, `do_detached` and `Group`."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import hooks
from lifecycle.runtime import Group, current, do, do_detached, go, lifetime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.testing import Clock


@contextmanager
def announcements(hook: hooks.Hook) -> Iterator[list[dict[str, Any]]]:
    seen: list[dict[str, Any]] = []

    def note(_sender: object, **arguments: Any) -> None:
        seen.append(arguments)

    hook.connect(note)
    try:
        yield seen
    finally:
        hook.disconnect(note)


async def fail(message: str = "boom", after: float = 0) -> None:
    await asyncio.sleep(after)
    raise ValueError(message)


# -- go -----------------------------------------------------------------------------------------------------------


async def test_a_crash_is_logged_announced_counted_and_kills_nothing(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[BaseException] = []
    with announcements(hooks.task_crashed) as crashes:
        async with lifetime() as life:
            task = go(fail, on_error=errors.append, name="poll")
            await clock.advance(1)
            assert not life.stopping
            assert life.state().tasks_crashed == 1
    assert "poll" in caplog.text
    assert [(each["name"], str(each["error"])) for each in crashes] == [("poll", "boom")]
    assert [str(error) for error in errors] == ["boom"]
    with pytest.raises(ValueError, match="boom"):
        await task


async def test_on_error_may_be_async_and_may_fail(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    async def report(error: BaseException) -> None:
        raise OSError("cannot report")

    async with lifetime():
        go(fail, on_error=report)
        await clock.advance(1)
    assert "cannot report" in caplog.text


async def test_a_task_is_cancelled_at_the_end_without_a_log_message(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with announcements(hooks.task_crashed) as crashes, announcements(hooks.task_finished) as finished:
        async with lifetime():
            task = go(asyncio.sleep, 100)
            await clock.advance(1)
    assert task.cancelled()
    assert not crashes
    assert [each["duration"] for each in finished] == [1.0]
    assert not caplog.records


async def test_an_unrequested_cancellation_is_a_crash(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    async def gives_up() -> None:
        raise asyncio.CancelledError

    async with lifetime() as life:
        go(gives_up)
        await clock.advance(1)
        assert life.state().tasks_crashed == 1
    assert "gives_up" in caplog.text


async def test_a_plain_function_runs_in_a_thread_that_knows_the_lifetime(clock: Clock) -> None:
    def work(number: int) -> tuple[int, bool, Any]:
        return number, threading.current_thread() is threading.main_thread(), current()

    async with lifetime() as life:
        assert await go(work, 3) == (3, False, life)


async def held_in_a_thread(begun: threading.Event) -> None:
    """Wait until the thread has started, without advancing virtual time."""
    while not begun.is_set():
        await asyncio.sleep(0)


async def test_the_end_waits_for_a_plain_function_before_its_hooks_run(clock: Clock) -> None:
    order, begun, released = list[str](), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        released.wait()
        order.append("thread")

    async with lifetime(signals=False) as life:
        life.on_shutdown(lambda: order.append("hook"))
        task = life.go(work)
        await held_in_a_thread(begun)
        asyncio.get_running_loop().call_soon(release_once_cancelled, task, released)
    assert order == ["thread", "hook"]
    assert task.cancelled()


async def test_an_error_of_a_plain_function_that_was_cancelled_is_reported(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    begun, released, errors = threading.Event(), threading.Event(), list[BaseException]()

    def work() -> None:
        begun.set()
        released.wait()
        raise ValueError("the disk is full")

    async with lifetime(signals=False) as life:
        task = life.go(work, on_error=errors.append)
        await held_in_a_thread(begun)
        asyncio.get_running_loop().call_soon(release_once_cancelled, task, released)
    assert "the disk is full" in caplog.text
    assert [str(error) for error in errors] == ["the disk is full"]
    assert life.state().tasks_crashed == 1


async def test_a_plain_function_that_raises_stop_iteration_fails(clock: Clock) -> None:
    def work() -> object:
        return next(iter(()))

    async with lifetime(signals=False) as life:
        task = life.go(work)
        await asyncio.wait([task], timeout=10)
        with pytest.raises(RuntimeError, match="work raised StopIteration"):
            await task
        with pytest.raises(RuntimeError, match="work raised StopIteration"):
            async with Group() as group:
                await group.go(work)
    assert life.state().tasks_crashed == 1


async def test_a_plain_function_whose_thread_has_not_begun_is_not_called_after_a_cancellation(clock: Clock) -> None:
    calls, begun, released = list[str](), threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        released.wait()

    with ThreadPoolExecutor(1) as only:
        asyncio.get_running_loop().set_default_executor(only)
        async with lifetime(signals=False) as life:
            task = life.go(hold)
            await held_in_a_thread(begun)
            life.go(calls.append, "called")
            asyncio.get_running_loop().call_soon(release_once_cancelled, task, released)
    assert not calls


def release_once_cancelled(task: asyncio.Task[None], released: threading.Event) -> None:
    if task.cancelling():
        released.set()
    else:
        asyncio.get_running_loop().call_soon(release_once_cancelled, task, released)


async def test_go_must_be_called_in_the_thread_of_the_loop(clock: Clock) -> None:
    async with lifetime():
        with pytest.raises(RuntimeError, match="thread"):
            await asyncio.to_thread(go, asyncio.sleep, 0)


@pytest.mark.parametrize("call", ["go", "do", "do_detached", "group"])
async def test_a_non_function_is_refused_and_a_coroutine_is_closed(clock: Clock, call: str) -> None:
    async def hand_over(fn: Any) -> None:
        async with lifetime(), Group() as group:
            calls: dict[str, Any] = {"go": go, "do": do, "do_detached": do_detached, "group": group.go}
            result = calls[call](fn)
            await result

    with pytest.raises(TypeError, match="cannot be called"):
        await hand_over("poll")
    with pytest.raises(TypeError, match="is a coroutine"):
        await hand_over(fail())


# -- do -----------------------------------------------------------------------------------------------------------


async def test_do_runs_in_the_calling_task_and_is_announced(clock: Clock) -> None:
    async def add(a: int, b: int) -> int:
        await asyncio.sleep(2)
        return a + b

    with announcements(hooks.critical_finished) as ends:
        assert await do(add, 1, 2) == 3
        assert await do(max, 1, 2) == 2
        with pytest.raises(ValueError, match="boom"):
            await do(fail)
    assert [(each["duration"], type(each["error"])) for each in ends] == [
        (2.0, type(None)),
        (0.0, type(None)),
        (0.0, ValueError),
    ]


async def test_do_can_be_cancelled(clock: Clock) -> None:
    task = asyncio.create_task(do(asyncio.sleep, 100))
    await clock.advance(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.time() < 2


# -- do_detached --------------------------------------------------------------------------------------------------


async def test_detached_work_finishes_before_the_cancellation_is_raised(clock: Clock) -> None:
    log: list[str] = []

    async def save() -> None:
        await asyncio.sleep(5)
        log.append(f"saved at {clock.time()}")

    async def caller() -> None:
        try:
            await do_detached(save)
        finally:
            log.append("caller is cancelled")

    task = asyncio.create_task(caller())
    await clock.advance(1)
    task.cancel()
    await clock.advance(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["saved at 5.0", "caller is cancelled"]


async def test_an_error_of_detached_work_replaces_the_cancellation(clock: Clock) -> None:
    task = asyncio.create_task(do_detached(fail, "disk full", 5))
    await clock.advance(1)
    task.cancel()
    with pytest.raises(ValueError, match="disk full"):
        await task


async def test_a_time_out_around_detached_work_waits_for_it(clock: Clock) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await do_detached(asyncio.sleep, 5)
    assert clock.time() == 5


async def test_detached_work_returns_its_result_and_may_be_plain(clock: Clock) -> None:
    assert await do_detached(max, 1, 2) == 2
    result: Any = await do_detached(asyncio.sleep, 1, "slept")
    assert result == "slept"


async def test_the_end_of_the_program_waits_for_detached_work(clock: Clock) -> None:
    log: list[str] = []

    async def save() -> None:
        await asyncio.sleep(1)
        log.append("saved")

    async with lifetime() as life:
        life.on_shutdown(lambda: log.append("hook"))
        go(do_detached, save)
        await asyncio.sleep(0.5)
    assert log == ["saved", "hook"]


# -- Group --------------------------------------------------------------------------------------------------------


async def test_a_group_ends_when_all_have_ended(clock: Clock) -> None:
    async with Group() as group:
        tasks = [await group.go(asyncio.sleep, seconds, seconds) for seconds in (1, 3, 2)]
    assert clock.time() == 3
    assert [task.result() for task in tasks] == [1, 3, 2]


async def test_a_group_runs_no_more_than_its_limit(clock: Clock) -> None:
    started: list[float] = []

    async def work() -> None:
        started.append(clock.time())
        await asyncio.sleep(1)

    async with Group(limit=2) as group:
        for _ in range(5):
            await group.go(work)
    assert started == [0, 0, 1, 1, 2]


async def test_the_first_error_cancels_the_other_tasks_and_is_raised_unchanged(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def spoils_its_end() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            raise OSError("second")

    with pytest.raises(ValueError, match="first") as caught:
        async with Group() as group:
            await group.go(spoils_its_end)
            await group.go(fail, "first", 1)
            await asyncio.sleep(100)
    assert clock.time() == 1
    assert caught.value.__cause__ is None
    assert "second" in caplog.text


async def test_an_error_in_the_block_cancels_its_tasks_and_is_raised(clock: Clock) -> None:
    with pytest.raises(KeyError):
        async with Group() as group:
            task = await group.go(asyncio.sleep, 100)
            await asyncio.sleep(1)
            raise KeyError("block")
    assert task.cancelled()


async def test_an_error_frees_the_tasks_waiting_for_a_slot(clock: Clock) -> None:
    with pytest.raises(ValueError, match="boom"):
        async with Group(limit=1) as group:
            await group.go(fail, "boom", 1)
            await group.go(asyncio.sleep, 100)
    assert clock.time() == 1


async def test_a_group_whose_block_fails_waits_for_its_threads(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    order, begun, released = list[str](), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        released.wait()
        order.append("thread")
        raise ValueError("after the first")

    with pytest.raises(OSError, match="first"):
        async with Group() as group:
            task = await group.go(work)
            await held_in_a_thread(begun)
            asyncio.get_running_loop().call_soon(release_once_cancelled, task, released)
            raise OSError("first")
    assert order == ["thread"]
    assert "after the first" in caplog.text


async def test_a_cancelled_group_cancels_its_tasks(clock: Clock) -> None:
    inner: list[asyncio.Task[Any]] = []

    async def work() -> None:
        async with Group() as group:
            inner.append(await group.go(asyncio.sleep, 100))

    task = asyncio.create_task(work())
    await clock.advance(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert inner[0].cancelled()


async def test_a_group_that_has_ended_accepts_no_tasks(clock: Clock) -> None:
    async with Group() as group:
        pass
    with pytest.raises(RuntimeError):
        await group.go(asyncio.sleep, 1)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        Group(limit)

"""The order of the shutdown, and components that do not stop."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import Event, Router, hooks, run
from lifecycle.runtime import Interrupted, current, go, lifetime, on_shutdown, shutdown, sleep
from lifecycle.testing.virtual import VirtualLoop
from lifecycle.workers import Spec, Supervisor, TaskWorker

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from lifecycle._durations import Duration
    from lifecycle.testing.signals import FakeSignals

run_virtual = functools.partial(run, loop_factory=VirtualLoop)


def worker(name: str, log: list[str], *, stops_in: float = 0.0) -> TaskWorker:
    """Return a worker whose end is recorded."""

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            log.append(f"stop {name}")
            await asyncio.sleep(stops_in)

    return TaskWorker(name, work, stop_timeout=1000)


async def for_ever(name: str, log: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        log.append(f"cancel {name}")


def test_the_shutdown_runs_its_steps_in_order(signals: FakeSignals) -> None:
    log: list[str] = []
    router = Router()

    @router.on("a")
    async def handle(event: Event) -> None:
        await asyncio.sleep(1)
        log.append("drained")

    async def first() -> None:
        await worker("a", log).start()
        await worker("b", log).start()
        go(for_ever, "task", log)
        on_shutdown(lambda: log.append("hook 1"))
        await for_ever("first", log)

    async def second() -> None:
        await worker("c", log).start()

        @on_shutdown
        async def hook() -> None:
            log.append("hook 2")

        await router.emit(Event("a"))
        current().shutdown()
        await for_ever("second", log)

    run_virtual(router, first, second)
    assert log == [
        *("drained", "cancel second", "stop c", "cancel first", "stop b", "stop a", "cancel task"),
        *("hook 2", "hook 1"),
    ]


def test_a_router_run_by_go_is_drained_first_too() -> None:
    log: list[str] = []
    router = Router()

    @router.on("a")
    async def handle(event: Event) -> None:
        await asyncio.sleep(1)
        log.append("drained")

    async def main() -> None:
        go(router.run)
        await asyncio.sleep(0)
        await router.emit(Event("a"))
        shutdown()
        await for_ever("main", log)

    run_virtual(main)
    assert log == ["drained", "cancel main"]


def test_a_router_that_the_main_runs_itself_is_drained_before_the_main_is_cancelled() -> None:
    log: list[str] = []
    router = Router()

    @router.on("slow")
    async def slow(event: Event) -> None:
        await asyncio.sleep(1)
        log.append("handled")

    async def main() -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(router.run())
                await router.emit(Event("slow"))
                await asyncio.sleep(0.5)
                shutdown()
                await asyncio.sleep(1000)
        finally:
            log.append("main")

    run_virtual(main)
    assert log == ["handled", "main"]


def test_a_main_leaves_its_blocks_before_it_is_cancelled_if_its_router_was_drained() -> None:
    log: list[str] = []

    @asynccontextmanager
    async def block() -> AsyncGenerator[None]:
        yield
        await asyncio.sleep(5)
        log.append("left the block")

    async def main() -> None:
        async with block():
            asyncio.get_running_loop().call_later(1, shutdown)
            await Router().run()
        await for_ever("main", log)

    run_virtual(main)
    assert log == ["left the block", "cancel main"]


def test_a_main_whose_router_ended_earlier_is_cancelled_at_once() -> None:
    log: list[str] = []

    async def main() -> None:
        router = Router()
        asyncio.get_running_loop().call_later(1, router.stop)
        await router.run()
        asyncio.get_running_loop().call_later(1, shutdown)
        try:
            await asyncio.sleep(1000)
        finally:
            log.append(f"{asyncio.get_running_loop().time():.0f}")

    run_virtual(main)
    assert log == ["2"]


def test_workers_under_a_supervisor_are_stopped_by_it() -> None:
    log: list[str] = []

    async def main() -> None:
        await Supervisor("group", Spec("child", lambda: worker("child", log))).start()

    run_virtual(main)
    assert log == ["stop child"]


def test_workers_that_have_ended_are_not_stopped_again() -> None:
    log: list[str] = []

    async def main() -> None:
        async with worker("a", log):
            await asyncio.sleep(1)

    run_virtual(main)
    assert log == ["stop a"]


def test_workers_of_another_lifetime_are_not_adopted() -> None:
    log: list[str] = []

    async def main() -> None:
        async with lifetime():
            await worker("inner", log).start()
        log.append("inner is over")

    run_virtual(main)
    assert log == ["stop inner", "inner is over"]


def test_a_worker_is_killed_when_the_deadline_leaves_it_no_time(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []

    async def main() -> None:
        await worker("slow", log, stops_in=1000).start()
        on_shutdown(lambda: log.append("hook"))

    run_virtual(main, exit_timeout=10)
    assert log == ["stop slow", "hook"]
    assert "'slow'" in caplog.text


def test_a_worker_that_cannot_be_stopped_does_not_delay_others(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []

    class Broken(TaskWorker):
        async def stop(self, timeout: Duration | None = None) -> None:
            raise OSError("no such process")

    async def main() -> None:
        await worker("a", log).start()
        await Broken("broken", asyncio.Event().wait).start()

    run_virtual(main)
    assert log == ["stop a"]
    assert "no such process" in caplog.text


def test_tasks_that_ignore_cancellation_are_named_and_do_not_block_the_hooks(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    log: list[str] = []

    async def stubborn(name: str) -> None:
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < began + 9:
            try:
                await asyncio.sleep(began + 9 - asyncio.get_running_loop().time())
            except asyncio.CancelledError:
                log.append(f"{name} goes on")
        log.append(f"{name} ends")

    async def stubborn_main() -> None:
        await stubborn("main")

    async def main() -> None:
        on_shutdown(lambda: log.append("hook"))
        go(stubborn, "task", name="stubborn task")

    run_virtual(stubborn_main, main, exit_timeout=10)
    assert log[:3] == ["main goes on", "task goes on", "hook"]
    assert sorted(log[3:]) == ["main ends", "task ends"]
    assert "stubborn_main is not stopping" in caplog.text
    assert "stubborn task" in caplog.text


# -- hooks --------------------------------------------------------------------------------------------------------


def test_hooks_are_isolated_from_each_others_errors(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []
    ended: list[tuple[str, BaseException | None]] = []

    def watch(_sender: object, *, hook: str, error: BaseException | None, **_: object) -> None:
        ended.append((hook.rpartition(".")[2], error))

    async def cancelled() -> None:
        raise asyncio.CancelledError

    def broken() -> None:
        raise ValueError("broken hook")

    async def main() -> None:
        on_shutdown(lambda: log.append("first"))
        on_shutdown(broken)
        on_shutdown(cancelled)

    hooks.hook_finished.connect(watch)
    try:
        run_virtual(main)
    finally:
        hooks.hook_finished.disconnect(watch)
    assert log == ["first"]
    assert [name for name, _ in ended] == ["cancelled", "broken", "<lambda>"]
    assert isinstance(ended[1][1], ValueError)
    assert "broken hook" in caplog.text


def test_a_hook_that_a_hook_adds_runs_next() -> None:
    log: list[str] = []

    async def main() -> None:
        on_shutdown(lambda: log.append("first"))
        on_shutdown(lambda: on_shutdown(lambda: log.append("added")))

    run_virtual(main)
    assert log == ["added", "first"]


def test_a_hook_may_be_an_object_that_runs() -> None:
    class Hook:
        ran = False

        async def run(self) -> None:
            self.ran = True

    hook = Hook()

    async def main() -> None:
        assert on_shutdown(hook) is hook

    run_virtual(main)
    assert hook.ran


@pytest.mark.parametrize("given", [None, 1, "hook"])
def test_invalid_shutdown_hook_is_rejected_at_once(given: Any) -> None:
    async def main() -> None:
        on_shutdown(given)

    with pytest.raises(TypeError, match="a shutdown hook must be a function"):
        run_virtual(main)


def test_a_slow_hook_is_named_while_it_runs(caplog: pytest.LogCaptureFixture) -> None:
    named: list[bool] = []

    async def slow() -> None:
        await asyncio.sleep(4.9)
        named.append("slow" in caplog.text)
        await asyncio.sleep(0.2)
        named.append("slow" in caplog.text)

    async def main() -> None:
        on_shutdown(slow)

    run_virtual(main)
    assert named == [False, True]


def test_a_hook_that_blocks_the_loop_is_named_when_it_returns(caplog: pytest.LogCaptureFixture) -> None:
    def blocks() -> None:
        time.sleep(0.02)

    async def main() -> None:
        on_shutdown(blocks)

    run(main, hook_timeout=0.001)
    assert "blocks" in caplog.text


def test_a_quick_hook_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        on_shutdown(lambda: None)

    with caplog.at_level(logging.INFO):
        run_virtual(main)
    assert not caplog.records


def test_requests_after_the_end_of_a_lifetime_are_refused() -> None:
    late: list[Any] = []

    async def main() -> None:
        late.append(current())

    run_virtual(main)
    with pytest.raises(RuntimeError, match="too late"):
        late[0].on_shutdown(lambda: None)
    with pytest.raises(RuntimeError):
        late[0].go(asyncio.sleep, 0)


def test_a_task_that_a_hook_starts_is_awaited() -> None:
    log: list[str] = []

    async def main() -> None:
        @on_shutdown
        async def hook() -> None:
            go(for_ever, "late task", log)
            await asyncio.sleep(1)

    run_virtual(main)
    assert log == ["cancel late task"]


# -- the stack dump ------------------------------------------------------------------------------------------------


def test_stacks_of_threads_and_tasks_are_dumped_once_when_it_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []

    async def needle_in_a_stack() -> None:
        await asyncio.sleep(1.9)
        seen.append(capsys.readouterr().err)
        await asyncio.sleep(50)

    async def main() -> None:
        on_shutdown(needle_in_a_stack)

    run_virtual(main, exit_timeout=1000)
    dump = capsys.readouterr().err
    assert seen == [""]
    assert "Thread 0x" in dump
    assert "needle_in_a_stack" in dump
    assert dump.count("not stopped after 2 s") == 1


def test_no_stacks_are_dumped_when_it_ends_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        @on_shutdown
        async def hook() -> None:
            await asyncio.sleep(1.9)

    run_virtual(main)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("how", ["returns", "shuts down"])
def test_waits_for_the_stop_in_background_tasks_end_before_anything_is_cancelled(how: str) -> None:
    ended: list[str] = []

    async def wait() -> None:
        ended.append(f"stop: {await current().wait_stopping()}")

    async def pause() -> None:
        try:
            await sleep(1000)
        except Interrupted:
            ended.append("sleep: Interrupted")

    async def main() -> None:
        go(wait)
        go(pause)
        await asyncio.sleep(1)
        if how == "shuts down":
            current().shutdown()
            await asyncio.sleep(1000)

    run_virtual(main)
    assert ended == [f"stop: {'stop' if how == 'returns' else 'cancel'}", "sleep: Interrupted"]

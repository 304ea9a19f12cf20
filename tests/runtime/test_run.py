"""`run`: its arguments, how a program exits, and the result."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import Event, ProcessWorker, Router, run
from lifecycle.errors import SourceFailed, UsageError, WorkerFailed
from lifecycle.runtime import Reason, current, go, on_shutdown, shutdown, sleep
from lifecycle.testing.virtual import VirtualLoop

if TYPE_CHECKING:
    from lifecycle.testing.signals import FakeSignals

run_virtual = functools.partial(run, loop_factory=VirtualLoop)


class Ended:
    def __init__(self, status: str, error: BaseException | None = None) -> None:
        self.status, self.error = status, error


class Worker:
    """The minimal worker that `run` accepts."""

    def __init__(self, name: str, log: list[str], *, starts_in: float = 0.0, status: str = "stopped") -> None:
        self.name, self.status, self.log = name, "created", log
        self.starts_in, self.last_status = starts_in, status
        self.error: BaseException | None = None
        self.over = asyncio.Event()

    async def start(self) -> None:
        self.log.append(f"start {self.name}")
        self.status = "starting"
        await asyncio.sleep(self.starts_in)
        self.status = "running"
        self.log.append(f"started {self.name}")

    async def stop(self, timeout: float | None = None) -> None:
        self.log.append(f"stop {self.name}")
        self.end(self.last_status)

    def end(self, status: str, error: BaseException | None = None) -> None:
        self.status, self.error = status, error
        self.over.set()

    async def wait(self) -> Ended:
        await self.over.wait()
        return Ended(self.status, self.error)


def waiting(name: str, log: list[str]) -> Any:
    async def main() -> None:
        log.append(f"start {name}")
        try:
            await asyncio.Event().wait()
        finally:
            log.append(f"stop {name}")

    return main


def test_run_returns_the_result_of_the_async_function() -> None:
    async def main() -> int:
        await asyncio.sleep(1)
        return 42

    assert run_virtual(main) == 42


def test_run_raises_the_error_of_the_async_function() -> None:
    error = ZeroDivisionError("boom")

    async def main() -> None:
        raise error

    with pytest.raises(ZeroDivisionError) as caught:
        run_virtual(main)
    assert caught.value is error


def test_an_error_keeps_its_traceback() -> None:
    async def somewhere_deep() -> None:
        raise ZeroDivisionError("boom")

    async def main() -> None:
        await somewhere_deep()

    with pytest.raises(ZeroDivisionError) as caught:
        run(main)
    assert [frame.name for frame in caught.traceback][-2:] == ["main", "somewhere_deep"]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_system_exit_in_a_main_is_raised_after_the_shutdown(kind: type[BaseException]) -> None:
    log: list[str] = []

    async def main() -> None:
        on_shutdown(lambda: log.append("hook"))
        raise kind(3)

    with pytest.raises(kind) as caught:
        run_virtual(waiting("other", log), main)
    assert caught.value.args == (3,)
    assert log == ["start other", "stop other", "hook"]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_system_exit_in_a_background_task_is_raised_after_the_shutdown(kind: type[BaseException]) -> None:
    log: list[str] = []

    async def leave() -> None:
        raise kind(3)

    async def main() -> None:
        on_shutdown(lambda: log.append("hook"))
        go(leave)
        await waiting("main", log)()

    with pytest.raises(kind):
        run_virtual(main)
    assert log == ["start main", "stop main", "hook"]


def test_mains_start_left_to_right_and_stop_right_to_left() -> None:
    log: list[str] = []

    async def main() -> str:
        log.append("main")
        return "done"

    first, second = Worker("first", log, starts_in=5), Worker("second", log)
    assert run_virtual(first, waiting("third", log), second, main) == "done"
    assert log == [
        *("start first", "started first", "start third", "start second", "started second", "main"),
        *("stop second", "stop third", "stop first"),
    ]


def test_run_returns_when_all_mains_have_ended() -> None:
    log: list[str] = []
    first, second = Worker("first", log), Worker("second", log)

    class Ends:
        async def run(self) -> None:
            await asyncio.sleep(1)
            first.end("finished")
            await asyncio.sleep(1)
            assert not current().stopping
            second.end("finished")

    assert run_virtual(first, second, Ends()) is None


def test_a_worker_that_fails_ends_the_program_with_its_error() -> None:
    log: list[str] = []
    worker = Worker("db", log)

    class Breaks:
        async def run(self) -> None:
            worker.end("failed", OSError("disk"))
            await asyncio.Event().wait()

    with pytest.raises(OSError, match="disk"):
        run_virtual(worker, Breaks())


@pytest.mark.parametrize("status", ["failed", "killed"])
def test_a_worker_that_fails_without_an_error_is_named(status: str) -> None:
    worker = Worker("db", [])

    async def main() -> None:
        worker.end(status)
        await asyncio.Event().wait()

    with pytest.raises(WorkerFailed, match=f"db.*{status}"):
        run_virtual(worker, main)


def test_a_worker_that_cannot_start_ends_the_program_before_the_next_main_starts() -> None:
    log: list[str] = []

    class Broken(Worker):
        async def start(self) -> None:
            raise WorkerFailed("no such command")

    with pytest.raises(WorkerFailed, match="no such command"):
        run_virtual(waiting("one", log), Broken("two", log), waiting("three", log))
    assert log == ["start one", "stop one"]


@pytest.mark.parametrize("turns", range(12))
def test_a_main_may_return_in_any_turn_of_the_loop(turns: int) -> None:
    async def main() -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        return "over"

    assert run(main) == "over"


def test_real_workers_run_and_stop_with_the_program() -> None:
    sleeper = ProcessWorker("sleeper", sys.executable, "-c", "import time; time.sleep(60)")

    async def main() -> str:
        return str(sleeper.status)

    assert run(sleeper, main) == "running"
    assert sleeper.status == "stopped"


def test_a_router_runs_until_the_program_stops_and_drains() -> None:
    handled: list[str] = []
    router = Router()

    @router.on("a")
    async def handle(event: Event) -> None:
        await asyncio.sleep(1)
        handled.append(event.topic)

    async def main() -> None:
        await asyncio.sleep(1)
        for _ in range(3):
            await router.emit(Event("a"))

    run_virtual(router, main)
    assert handled == ["a"] * 3


def test_a_source_that_cannot_start_ends_the_program() -> None:
    router = Router()

    class Broken:
        async def __aenter__(self) -> None:
            raise OSError("port taken")

        async def __aexit__(self, *_: object) -> None: ...

        async def run(self, emit: object) -> None: ...

    router.add_source(Broken())
    with pytest.raises(SourceFailed, match="port taken"):
        run_virtual(router)


def test_a_main_with_stop_is_stopped_and_others_are_cancelled() -> None:
    log: list[str] = []

    class Server:
        def __init__(self) -> None:
            self.ending = asyncio.Event()

        def stop(self) -> None:
            self.ending.set()

        async def run(self) -> None:
            await self.ending.wait()
            await asyncio.sleep(1)
            log.append("drained")

    class Loop:
        async def run(self) -> None:
            await waiting("loop", log)()

    async def main() -> None:
        await asyncio.sleep(1)

    run_virtual(Server(), Loop(), main)
    assert log == ["start loop", "drained", "stop loop"]


def test_errors_after_the_first_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def spoils_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("later")

    async def main() -> None:
        await asyncio.sleep(1)
        raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        run_virtual(spoils_the_end, main)
    assert "later" in caplog.text


def test_a_main_that_raises_its_own_cancellation_has_failed() -> None:
    async def main() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_virtual(main)


def test_a_cancellation_that_we_caused_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        go(asyncio.sleep, 100)
        await asyncio.sleep(1)
        shutdown()
        await asyncio.Event().wait()

    with caplog.at_level(logging.INFO):
        assert run_virtual(main) is None
    assert not [record for record in caplog.records if record.name.startswith("lifecycle")]


def test_the_reason_is_the_first_cause(signals: FakeSignals) -> None:
    seen: list[Any] = []

    def program(cause: Any) -> Any:
        async def main() -> None:
            life = current()
            on_shutdown(lambda: seen.append((life.reason, life.signum)))
            cause()
            shutdown(Reason.TIMEOUT)
            await asyncio.sleep(1)

        run_virtual(main)
        return seen.pop()

    assert program(shutdown) == (Reason.CANCEL, None)
    assert program(lambda: signals.send(signal.SIGTERM)) == (Reason.TERMINATE, signal.SIGTERM)
    assert program(lambda: signals.send(signal.SIGINT)) == (Reason.INTERRUPT, signal.SIGINT)
    assert program(lambda: shutdown("terminate")) == (Reason.TERMINATE, None)


def test_a_program_that_ends_by_itself_logs_so() -> None:
    seen: list[Reason] = []

    async def main() -> None:
        life = current()
        on_shutdown(lambda: seen.append(life.reason))

    async def late() -> None:
        await main()
        raise TimeoutError

    run_virtual(main)
    with pytest.raises(TimeoutError):
        run_virtual(late)
    assert seen == [Reason.STOP, Reason.TIMEOUT]


def test_a_signal_in_the_middle_of_the_start_stops_what_has_started_and_starts_no_more(signals: FakeSignals) -> None:
    log: list[str] = []

    class Slow(Worker):
        async def start(self) -> None:
            asyncio.get_running_loop().call_later(1, signals.send, signal.SIGTERM)
            await super().start()

        async def stop(self, timeout: float | None = None) -> None:
            await super().stop(timeout)

    assert run_virtual(waiting("one", log), Slow("two", log, starts_in=60), waiting("three", log)) is None
    assert log == ["start one", "start two", "stop two", "stop one"]


def test_signals_in_the_middle_of_the_stop_are_counted_and_force_it(signals: FakeSignals) -> None:
    log: list[str] = []

    async def main() -> None:
        @on_shutdown
        async def hook() -> None:
            await asyncio.sleep(1)
            signals.send(signal.SIGINT)
            log.append(f"forced {signals.exits}")

        signals.send(signal.SIGINT)
        await asyncio.sleep(1)

    run_virtual(main, force_exit=2, cancel_on_interrupt=True)
    assert log == ["forced [1]"]


def test_run_works_outside_the_main_thread_without_signals() -> None:
    results: list[int] = []

    async def main() -> int:
        await asyncio.sleep(0.01)
        return 7

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=lambda: results.append(run(main)))
    thread.start()
    thread.join(30)
    assert results == [7]
    assert signal.getsignal(signal.SIGINT) is before


def test_signal_handlers_are_restored() -> None:
    signums = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(signum) for signum in signums]
    during: list[Any] = []

    async def main() -> None:
        during.extend(signal.getsignal(signum) for signum in signums)
        raise RuntimeError("also on errors")

    with pytest.raises(RuntimeError, match="also on errors"):
        run(main)
    assert [signal.getsignal(signum) for signum in signums] == before
    assert not set(before) & set(during)


async def test_run_inside_a_running_loop_recommends_lifetime() -> None:
    async def main() -> None: ...

    with pytest.raises(RuntimeError, match="lifetime"):
        run(main)


async def takes_one(argument: int) -> None: ...


def plain() -> None: ...


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (plain, "plain function"),
        (Router, "class"),
        (takes_one, "argument"),
        (None, "None cannot be run"),
        ("main", "'main' cannot be run"),
        (threading.Thread(), "cannot be run"),
    ],
)
def test_an_invalid_main_is_named_with_the_valid_kinds(given: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        run_virtual(given)


def test_a_coroutine_in_place_of_its_function_is_refused_and_closed() -> None:
    with pytest.raises(TypeError, match="without calling it"):
        run_virtual(takes_one(1))  # type: ignore[arg-type]  # type checkers refuse it too


def test_run_without_a_main_is_refused() -> None:
    with pytest.raises(TypeError, match="nothing to run"):
        run_virtual()


def test_arguments_are_given_by_partial() -> None:
    async def main(a: int, b: int) -> int:
        return a + b

    assert run_virtual(functools.partial(main, 1, 2)) == 3


def test_a_sleep_that_the_stop_interrupts_is_not_an_error(
    signals: FakeSignals, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        go(sleep, 1000)
        asyncio.get_running_loop().call_later(1, signals.send, signal.SIGINT)
        await sleep(1000)

    assert run_virtual(main) is None
    assert not caplog.records


def test_a_loop_that_is_stopped_is_an_error_after_the_shutdown() -> None:
    log: list[str] = []

    async def main() -> None:
        on_shutdown(lambda: log.append("hook"))
        asyncio.get_running_loop().stop()
        await asyncio.sleep(1000)

    with pytest.raises(RuntimeError, match="stopped before"):
        run_virtual(main)
    assert log == ["hook"]


def test_without_a_deadline_the_shutdown_may_take_any_time() -> None:
    log: list[str] = []

    async def slow_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(10_000)
            log.append("ended")

    async def main() -> None:
        await asyncio.sleep(1)

    run_virtual(slow_end, main, exit_timeout=float("inf"))
    assert log == ["ended"]


def test_run_leaves_sys_excepthook_alone() -> None:
    before = sys.excepthook

    async def main() -> None:
        raise UsageError("wrong")

    with pytest.raises(UsageError) as caught:
        run_virtual(main)
    assert sys.excepthook is before
    assert vars(caught.value) == {}

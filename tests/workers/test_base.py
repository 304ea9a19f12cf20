"""A worker starts and exits only once, and can be stopped at any time. The tests control it through futures."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import hooks
from lifecycle.errors import InvalidTransition, WorkerFailed
from lifecycle.workers import BaseWorker, End, ProbeResult, Status, stop_and_wait

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from lifecycle.testing import Clock


class FakeWorker(BaseWorker):
    """A worker for which the test sets the durations of start, readiness and stop."""

    def __init__(
        self, name: str = "fake", *, launch: float = 0, ready: float = 0, stop_time: float = 0, **how: Any
    ) -> None:
        super().__init__(name, **how)
        self.launch, self.ready, self.stop_time = launch, ready, stop_time
        self.mortal = True
        self.life: asyncio.Future[End | None] = asyncio.get_running_loop().create_future()
        self.asked: list[bool] = []

    async def _launch(self) -> Awaitable[End | None]:
        if self.launch:
            await asyncio.sleep(self.launch)
        return self.life

    async def _until_ready(self) -> None:
        if self.ready:
            await asyncio.sleep(self.ready)

    async def _terminate(self, *, force: bool) -> None:
        self.asked.append(force)
        if force and self.mortal:
            self.end()
        elif not force:
            asyncio.get_running_loop().call_later(self.stop_time, self.end)

    def end(self, with_: End | None = None) -> None:
        if not self.life.done() and (self.mortal or with_):
            self.life.set_result(with_)


@pytest.fixture
def announced() -> Iterator[list[str]]:
    notified: list[str] = []
    receivers = {
        hook: lambda sender, _name=hook.name, **_: notified.append(_name)
        for hook in (hooks.worker_started, hooks.worker_failed, hooks.worker_killed)
    }
    for hook, receiver in receivers.items():
        hook.connect(receiver)
    yield notified
    for hook, receiver in receivers.items():
        hook.disconnect(receiver)


async def test_worker_runs_until_it_ends_by_itself(clock: Clock, announced: list[str]) -> None:
    worker = FakeWorker()
    assert worker.state().status == "created"
    await worker.start()
    assert worker.state().status == "running"
    await clock.advance(5)
    worker.end()
    exit_ = await worker.wait()

    assert (exit_.status, exit_.error, exit_.duration) == ("finished", None, 5)
    assert announced == ["worker_started"]
    assert worker.asked == []


async def test_leaving_the_block_stops_the_worker(clock: Clock) -> None:
    async with FakeWorker(stop_time=1) as worker:
        assert worker.state().status == "running"
    assert worker.status is Status.STOPPED
    assert worker.asked == [False]


async def test_worker_is_killed_after_its_grace_period(clock: Clock, announced: list[str]) -> None:
    async with FakeWorker(stop_time=math.inf, stop_timeout=3) as worker:
        pass
    exit_ = await worker.wait()
    assert (exit_.status, exit_.duration) == ("killed", 3)
    assert "did not stop in time and was killed" in str(exit_.error)
    assert worker.asked == [False, True]
    assert announced == ["worker_started", "worker_killed"]


async def test_end_with_an_error_is_a_failure(clock: Clock, announced: list[str]) -> None:
    worker = FakeWorker()
    await worker.start()
    worker.life.set_exception(OSError("boom"))
    exit_ = await worker.wait()
    assert (exit_.status, str(exit_.error)) == ("failed", "boom")
    assert announced == ["worker_started", "worker_failed"]


async def test_unexpected_cancellation_is_a_failure(clock: Clock) -> None:
    worker = FakeWorker()
    await worker.start()
    worker.life.cancel()
    assert (await worker.wait()).status is Status.FAILED


async def test_cancellation_after_a_stop_counts_as_stopped(clock: Clock) -> None:
    worker = FakeWorker(stop_time=math.inf)
    await worker.start()
    stop = asyncio.create_task(worker.stop())
    await clock.settle()
    worker.life.cancel()
    await stop
    exit_ = await worker.wait()
    assert (exit_.status, exit_.error) == ("stopped", None)


async def test_a_start_that_swallows_its_cancellation_is_killed_after_the_grace_period(clock: Clock) -> None:
    """The start and the stop then wait for the same worker, and both learn of the end of the grace period."""

    class Stubborn(FakeWorker):
        async def _until_ready(self) -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)
            raise OSError("not ready")

        def _terminate(self, *, force: bool) -> None:  # type: ignore[override]  # most workers need not wait
            if force:
                self.end()

    worker = Stubborn(stop_timeout=5)
    start = asyncio.create_task(worker.start())
    await clock.settle()
    began = asyncio.get_running_loop().time()
    exit_ = await stop_and_wait(worker)
    assert asyncio.get_running_loop().time() - began == 5
    assert (exit_.status, str(exit_.error)) == ("failed", "'fake' cannot start: not ready")
    assert not worker.state().abandoned
    with pytest.raises(WorkerFailed, match="not ready"):
        await start


async def test_unkillable_worker_is_abandoned_and_logged(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    worker = FakeWorker("zombie", stop_time=math.inf, stop_timeout=2)
    worker.mortal = False
    await worker.start()
    began = clock.time()
    exit_ = await stop_and_wait(worker)

    assert (exit_.status, worker.state().abandoned) == ("killed", True)
    assert clock.time() - began <= 2 + 1
    assert "'zombie' could not be killed and was abandoned" in caplog.text


# -- starting ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["running", "stopped", "finished", "starting"])
async def test_second_start_names_the_state(clock: Clock, how: str) -> None:
    worker = FakeWorker(ready=1 if how == "starting" else 0)
    first = asyncio.create_task(worker.start())
    await clock.settle()
    if how == "stopped":
        await worker.stop()
    elif how == "finished":
        worker.end()
        await worker.wait()
    with pytest.raises(InvalidTransition, match=f"'fake' cannot go from {how} to starting"):
        await worker.start()
    await first
    await worker.stop()


async def test_launch_that_raises_fails_the_worker(clock: Clock, announced: list[str]) -> None:
    class Stillborn(FakeWorker):
        async def _launch(self) -> Awaitable[End | None]:
            raise OSError("no such thing")

    worker = Stillborn()
    with pytest.raises(WorkerFailed, match="'fake' cannot start: no such thing") as caught:
        await worker.start()
    assert isinstance(caught.value.__cause__, OSError)
    exit_ = await worker.wait()
    assert (exit_.status, exit_.error) == ("failed", caught.value)
    assert announced == ["worker_failed"]


async def test_worker_that_does_not_become_ready_is_ended_and_failed(clock: Clock) -> None:
    class Shy(FakeWorker):
        async def _until_ready(self) -> None:
            await asyncio.sleep(1)
            raise WorkerFailed("not today")

    worker = Shy(stop_time=2)
    with pytest.raises(WorkerFailed, match="not today"):
        await worker.start()
    assert (worker.asked, worker.status) == ([False], "failed")


@pytest.mark.parametrize("phase", ["launch", "ready"])
async def test_stop_while_starting_ends_the_start(clock: Clock, phase: str) -> None:
    worker = FakeWorker(stop_time=1, launch=math.inf) if phase == "launch" else FakeWorker(stop_time=1, ready=math.inf)
    start = asyncio.create_task(worker.start())
    await clock.advance(1)
    exit_ = await stop_and_wait(worker)

    assert exit_.status is Status.STOPPED
    assert worker.asked == ([] if phase == "launch" else [False])
    with pytest.raises(WorkerFailed, match="was stopped while starting"):
        await start


async def test_cancelling_start_stops_the_worker(clock: Clock) -> None:
    worker = FakeWorker(ready=math.inf, stop_time=3)
    start = asyncio.create_task(worker.start())
    await clock.advance(1)
    start.cancel()
    await asyncio.wait({start})
    assert start.cancelled()
    assert (worker.status, clock.time()) == ("stopped", 4)


async def test_stop_during_the_cleanup_of_a_failed_start_shares_its_end(clock: Clock) -> None:
    class Shy(FakeWorker):
        async def _until_ready(self) -> None:
            raise WorkerFailed("not today")

    worker = Shy(stop_time=5)
    start = asyncio.create_task(worker.start())
    await clock.advance(1)
    await worker.stop()
    assert worker.status is Status.STOPPED
    with pytest.raises(WorkerFailed):
        await start


# -- stopping ---------------------------------------------------------------------------------------------------


async def test_worker_that_never_started_can_be_stopped() -> None:
    worker = FakeWorker()
    await worker.stop()
    await worker.stop()
    exit_ = await worker.wait()
    assert (exit_.status, exit_.duration) == ("stopped", 0)
    with pytest.raises(InvalidTransition, match="stopped is final"):
        await worker.start()


async def test_pending_worker_can_be_stopped() -> None:
    worker = FakeWorker()
    worker._machine.to(Status.PENDING)
    await worker.stop()
    assert worker.status is Status.STOPPED


async def test_concurrent_stops_share_one_end(clock: Clock) -> None:
    worker = FakeWorker(stop_time=1)
    await worker.start()
    waiters = [asyncio.create_task(worker.wait()) for _ in range(3)]
    await asyncio.gather(*(worker.stop() for _ in range(5)))
    assert worker.asked == [False]
    assert len({id(exit_) for exit_ in await asyncio.gather(*waiters)}) == 1
    await worker.stop()


async def test_the_shortest_of_several_grace_periods_counts(clock: Clock) -> None:
    worker = FakeWorker(stop_time=math.inf, stop_timeout=100)
    await worker.start()
    patient = asyncio.create_task(worker.stop())
    await clock.advance(1)
    hasty = asyncio.create_task(worker.stop(2))
    patienter = asyncio.create_task(worker.stop(50))
    await asyncio.gather(patient, hasty, patienter)
    assert (worker.status, clock.time()) == ("killed", 3)


@pytest.mark.parametrize("timeout", [0, -1])
async def test_stop_without_grace_kills_immediately(clock: Clock, timeout: float) -> None:
    worker = FakeWorker(stop_time=10)
    await worker.start()
    await worker.stop(timeout)
    assert (worker.status, clock.time()) == ("killed", 0)


async def test_termination_continues_when_the_caller_of_stop_is_cancelled(clock: Clock) -> None:
    worker = FakeWorker(stop_time=5)
    await worker.start()
    stop = asyncio.create_task(worker.stop())
    await clock.advance(1)
    stop.cancel()
    with suppress(asyncio.CancelledError):
        await stop
    assert worker.status is Status.STOPPING
    assert (await worker.wait()).status is Status.STOPPED
    assert clock.time() == 5


async def test_error_of_an_async_terminate_is_logged_and_the_worker_is_killed(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    class Clumsy(FakeWorker):
        async def _terminate(self, *, force: bool) -> None:
            if not force:
                raise OSError("which button?")
            await super()._terminate(force=force)

    async with Clumsy(stop_timeout=1) as worker:
        pass
    assert worker.status is Status.KILLED
    assert "stopping 'fake' failed" in caplog.text


# -- hooks and state ----------------------------------------------------------------------------------------------


async def test_probe_of_any_worker_is_healthy_while_it_runs(clock: Clock) -> None:
    worker = FakeWorker()
    assert await worker.probe() == ProbeResult(healthy=False, message="is created")
    async with worker:
        assert await worker.probe() == ProbeResult(healthy=True)
    assert await worker.probe() == ProbeResult(healthy=False, message="is stopped")


async def test_state_can_be_written_as_json(clock: Clock) -> None:
    worker = FakeWorker()
    before = worker.state()
    assert (before.status, before.started_at, before.pid) == ("created", None, None)
    async with worker:
        running = worker.state()
    assert running.started_at is not None
    assert before.created_at <= running.started_at
    assert json.loads(json.dumps(dataclasses.asdict(worker.state())))["status"] == "stopped"
    with pytest.raises(dataclasses.FrozenInstanceError):
        running.status = Status.KILLED  # type: ignore[misc]  # the point of the test


async def test_environment_can_be_set_until_the_start(clock: Clock) -> None:
    worker = FakeWorker()
    worker.set_env("A", "1")
    async with worker:
        with pytest.raises(InvalidTransition, match="'fake' is running; set 'B' in its environment before calling"):
            worker.set_env("B", "2")


@pytest.mark.parametrize(("name", "value"), [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0")])
async def test_invalid_environment_variables_are_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="environment"):
        FakeWorker().set_env(name, value)


@pytest.mark.parametrize("how", [{"name": ""}, {"stop_timeout": -1}, {"stop_timeout": math.nan}])
async def test_invalid_settings_are_refused(how: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        FakeWorker(**how)


@pytest.mark.parametrize(
    ("how", "error_text"),
    [
        ({"name": 3}, "a worker's name must be a string, got 3"),
        ({"name": None}, "a worker's name must be a string, got None"),
        ({"name": b"api"}, "a worker's name must be a string, got b'api'"),
        ({"stop_timeout": None}, "stop_timeout must be 0 or more seconds, or a timedelta, got None"),
    ],
)
async def test_settings_of_a_wrong_type_are_refused_with_the_value(how: dict[str, Any], error_text: str) -> None:
    with pytest.raises(TypeError, match=error_text):
        FakeWorker(**how)


async def test_repr_shows_name_and_status() -> None:
    assert repr(FakeWorker("api")) == "<FakeWorker 'api': created>"

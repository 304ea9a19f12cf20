"""Stopping many workers at the same time, each with its own timeout."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.errors import WorkerFailed
from lifecycle.workers import BaseWorker, End, Spec, Status, Supervisor, TaskWorker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from datetime import timedelta

    from lifecycle.testing import Clock


async def obedient() -> None:
    await asyncio.get_running_loop().create_future()


def taking(seconds: float) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return a function that finishes ``seconds`` after its first cancellation and ignores further cancellations."""

    async def stubborn() -> None:
        loop = asyncio.get_running_loop()
        until = math.inf
        while loop.time() < until:
            try:
                await asyncio.sleep(min(until - loop.time(), 1000))
            except asyncio.CancelledError:
                until = min(until, loop.time() + seconds)

    return stubborn


def parallel(*specs: Spec) -> Supervisor:
    return Supervisor("s", *specs, stop_order="parallel")


def outcomes(supervisor: Supervisor) -> dict[str, str]:
    return {state.name: state.status for state in supervisor.workers()}


async def test_each_child_has_its_own_stop_timeout(clock: Clock) -> None:
    specs = [
        Spec("obedient", obedient),
        Spec("slow", taking(4), stop_timeout=5),
        Spec("deaf", taking(7), stop_timeout=2),
        Spec("patient", taking(30), stop_timeout=60),
    ]
    async with parallel(*specs) as supervisor:
        stop = asyncio.create_task(supervisor.stop())
        await clock.advance(1)
        ended = {name: supervisor[name].status for name in ("obedient", "slow", "deaf", "patient")}
        assert ended == {"obedient": "stopped", "slow": "stopping", "deaf": "stopping", "patient": "stopping"}
        await clock.advance(2)
        assert supervisor["deaf"].status is Status.KILLED
        await stop
    assert clock.time() == 30
    assert outcomes(supervisor) == {
        "obedient": "stopped",
        "slow": "stopped",
        "deaf": "killed",
        "patient": "stopped",
    }


async def test_stop_timeout_of_zero_kills_at_once(clock: Clock) -> None:
    async with parallel(Spec("a", taking(5), stop_timeout=0), Spec("b", obedient)) as supervisor:
        pass
    assert (clock.time(), outcomes(supervisor)) == (0, {"a": "killed", "b": "stopped"})
    await clock.advance(5)


async def test_shorter_timeout_of_a_requested_stop_counts(clock: Clock) -> None:
    async with parallel(Spec("a", taking(50), stop_timeout=20)) as supervisor:
        stop = asyncio.create_task(supervisor.stop())
        await clock.advance(1)
        await supervisor["a"].stop(2)
        assert clock.time() == 3
        await stop
    assert outcomes(supervisor) == {"a": "killed"}
    await clock.advance(50)


async def test_overridden_stop_is_called(clock: Clock) -> None:
    asked: list[Any] = []

    class Own(TaskWorker):
        async def stop(self, timeout: float | timedelta | None = None) -> None:
            asked.append(timeout)
            await super().stop(timeout)

    spec = Spec("own", lambda: Own("own", obedient), stop_timeout=3)
    async with parallel(spec, Spec("a", obedient)) as supervisor:
        pass
    assert (asked, outcomes(supervisor)) == ([3], {"own": "stopped", "a": "stopped"})


async def test_error_of_terminate_is_logged_and_the_worker_is_killed(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    class Clumsy(BaseWorker):
        async def _launch(self) -> Awaitable[End]:
            self.life: asyncio.Future[End] = asyncio.get_running_loop().create_future()
            return self.life

        def _terminate(self, *, force: bool) -> None:
            if not force:
                raise OSError("which button?")
            self.life.set_result(End())

    spec = Spec("clumsy", lambda: Clumsy("clumsy", stop_timeout=4))
    async with parallel(spec, Spec("a", obedient)) as supervisor:
        pass
    assert (clock.time(), outcomes(supervisor)) == (4, {"clumsy": "killed", "a": "stopped"})
    assert "stopping 'clumsy' failed" in caplog.text


async def test_child_that_is_starting_stops_with_the_others(clock: Clock) -> None:
    async def made() -> TaskWorker:
        await asyncio.sleep(100)
        return TaskWorker("slow", obedient)

    def slow() -> Awaitable[TaskWorker]:
        return made()

    async with parallel(Spec("a", obedient)) as supervisor:
        adding = asyncio.create_task(supervisor.add(Spec("slow", slow)))
        await clock.advance(1)
        await supervisor.stop()
        assert clock.time() == 1
        with pytest.raises(WorkerFailed, match="stopped"):
            await adding


async def test_cancelled_stop_of_a_supervisor_continues(clock: Clock) -> None:
    worker = TaskWorker("deaf", taking(9), stop_timeout=3)
    await worker.start()
    stop = asyncio.create_task(worker.stop())
    await clock.advance(1)
    stop.cancel()
    await asyncio.wait({stop})
    assert (await worker.wait()).status is Status.KILLED
    assert (clock.time(), worker.state().abandoned) == (3, True)
    await clock.advance(9)


async def test_watch_reports_no_changes_from_before_it_began(clock: Clock) -> None:
    inner = Supervisor("inner", Spec("below", obedient))
    async with Supervisor("outer", Spec("inner", lambda: inner), Spec("beside", obedient)) as outer:
        await inner.stop_child("below")
        watch = outer.watch()
        await outer.stop_child("beside")
        await inner.restart("below")
    changes = [(event.component, event.old, event.new) async for event in watch]
    assert changes[:2] == [("beside", "running", "stopping"), ("beside", "stopping", "stopped")]
    assert [each for each in changes if each[0] == "below"][:2] == [
        ("below", "stopped", "starting"),
        ("below", "starting", "running"),
    ]

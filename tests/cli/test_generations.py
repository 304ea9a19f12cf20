"""Runs of a command never overlap, no change is lost, and the last one always leads to a run."""

from __future__ import annotations

import asyncio
import io
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lifecycle.cli.failures import UsageError
from lifecycle.cli.generations import Generations
from lifecycle.cli.messages import Voice
from lifecycle.workers import Exit, Status, WorkerState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from lifecycle.cli.settings import Busy
    from lifecycle.events import Change
    from lifecycle.testing import Clock

pytestmark = pytest.mark.keeps_tasks  # the rig's


class FakeChild:
    """A process that takes ``stopping`` seconds to stop."""

    def __init__(self, stopping: float) -> None:
        self.status = Status.RUNNING
        self._stopping = stopping
        self._ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    async def start(self) -> None: ...

    async def stop(self, timeout: float | None = None) -> None:
        if not self._ended.done():
            self.status = Status.STOPPING
            await asyncio.sleep(self._stopping)
            self.end(Status.STOPPED, -15)

    def end(self, status: Status, code: int) -> None:
        self.status = status
        self._ended.set_result(Exit(status, None, code, -code if code < 0 else None))

    async def wait(self) -> Exit:
        return await asyncio.shield(self._ended)

    async def suspend(self) -> None:
        self.status = Status.SUSPENDED

    async def resume(self) -> None:
        self.status = Status.RUNNING

    def send_signal(self, signum: int, *, group: bool = False) -> None:
        raise AssertionError("the launcher sends signals")

    def state(self) -> WorkerState:
        return WorkerState("fake", "process", self.status)


class FakeLauncher:
    """Notes what was started with which changes, and fails the test if two run at once."""

    def __init__(self, stopping: float) -> None:
        self.stopping = stopping
        self.children: list[FakeChild] = []
        self.changes: list[dict[str, Change]] = []
        self.signals: list[signal.Signals] = []
        self.refuse = False
        self.interrupted = False

    async def start(self, changes: Mapping[Path, Change]) -> FakeChild:
        assert all(child.status in (Status.STOPPED, Status.FAILED, Status.FINISHED) for child in self.children)
        if self.refuse:
            raise UsageError("'app': no such file")
        self.changes.append({path.name: change for path, change in changes.items()})
        self.children.append(FakeChild(self.stopping))
        return self.children[-1]

    def signal(self, child: object, signum: signal.Signals) -> None:
        self.signals.append(signum)

    def ended(self, outcome: Exit) -> bool:
        return self.interrupted


class Rig:
    """Generations under test, running."""

    def __init__(self, busy: Busy, postpone: bool, stopping: float) -> None:
        self.said = io.StringIO()
        self.launcher = FakeLauncher(stopping)
        self.generations = Generations(self.launcher, Voice(stream=self.said), busy=busy, postpone=postpone)
        self.generations.begin()
        self.task = asyncio.get_running_loop().create_task(self.generations.run())

    @property
    def child(self) -> FakeChild:
        return self.launcher.children[-1]

    @property
    def starts(self) -> int:
        return len(self.launcher.children)

    def change(self, name: str) -> None:
        self.generations.note({Path(name): "modified"})
        self.generations.change(f"changed: {name}")


@pytest.fixture
async def rig(request: pytest.FixtureRequest, clock: Clock) -> AsyncIterator[Rig]:
    settings: tuple[Busy, bool, float] = getattr(request, "param", ("restart", False, 1.0))
    rig = Rig(*settings)
    await clock.settle()
    yield rig
    rig.task.cancel()
    await asyncio.wait([rig.task])


def having(busy: Busy = "restart", *, postpone: bool = False, stopping: float = 1.0) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("rig", [(busy, postpone, stopping)], indirect=True)


async def test_a_change_stops_the_old_and_starts_the_new(rig: Rig, clock: Clock) -> None:
    rig.change("app.py")
    await clock.advance(2)

    assert rig.launcher.changes == [{}, {"app.py": "modified"}]
    assert "changed: app.py; restarting" in rig.said.getvalue()


async def test_changes_while_stopping_lead_to_one_run_that_knows_them_all(rig: Rig, clock: Clock) -> None:
    for name in ("a", "b", "c"):
        rig.change(name)
        await clock.advance(0.3)
    await clock.advance(2)

    assert rig.launcher.changes == [{}, {"a": "modified", "b": "modified", "c": "modified"}]


async def test_a_child_that_crashed_is_shown_and_waits_for_the_next_change(rig: Rig, clock: Clock) -> None:
    rig.child.end(Status.FAILED, 3)
    await clock.advance(60)
    assert rig.starts == 1
    assert "exited with status 3 after 0.0 s; waiting for a change" in rig.said.getvalue()

    rig.change("app.py")
    await clock.settle()
    assert rig.starts == 2


async def test_a_child_that_died_of_a_signal_is_shown_with_its_name(rig: Rig, clock: Clock) -> None:
    rig.child.end(Status.FAILED, -signal.SIGSEGV)
    await clock.settle()
    assert "killed by SIGSEGV" in rig.said.getvalue()


async def test_a_child_that_cannot_start_waits_for_the_next_change_and_keeps_its_changes_to_itself(
    rig: Rig, clock: Clock
) -> None:
    rig.launcher.refuse = True
    rig.change("a")
    await clock.advance(2)
    assert "no such file; waiting for a change" in rig.said.getvalue()

    rig.launcher.refuse = False
    rig.change("b")
    await clock.advance(2)
    assert rig.launcher.changes[-1] == {"a": "modified", "b": "modified"}


@having(postpone=True)
async def test_postponed_it_waits_for_the_first_change(rig: Rig, clock: Clock) -> None:
    await clock.advance(10)
    assert rig.starts == 0

    rig.change("a")
    await clock.settle()
    assert rig.launcher.changes == [{"a": "modified"}]


@having("queue")
async def test_queued_changes_lead_to_one_run_after_the_end(rig: Rig, clock: Clock) -> None:
    rig.change("a")
    rig.change("b")
    await clock.advance(100)
    assert rig.starts == 1

    rig.child.end(Status.FINISHED, 0)
    await clock.advance(100)
    assert rig.launcher.changes == [{}, {"a": "modified", "b": "modified"}]


@having("drop")
async def test_dropped_changes_lead_to_no_run_but_are_told_to_the_next(rig: Rig, clock: Clock) -> None:
    rig.change("a")
    rig.child.end(Status.FINISHED, 0)
    await clock.advance(100)
    assert rig.starts == 1

    rig.change("b")
    await clock.settle()
    assert rig.launcher.changes == [{}, {"a": "modified", "b": "modified"}]


@having("drop")
async def test_restart_by_hand_is_above_every_policy(rig: Rig, clock: Clock) -> None:
    rig.generations.restart("restart")
    await clock.advance(2)
    assert rig.starts == 2


async def test_a_signal_goes_to_the_child_and_starts_one_where_none_runs(rig: Rig, clock: Clock) -> None:
    rig.generations.signal(signal.SIGHUP, "changed: a")
    await clock.advance(2)
    assert (rig.launcher.signals, rig.starts) == ([signal.SIGHUP], 1)

    rig.child.end(Status.FAILED, 1)
    await clock.settle()
    rig.generations.signal(signal.SIGHUP, "changed: b")
    await clock.settle()
    assert (rig.launcher.signals, rig.starts) == ([signal.SIGHUP], 2)


async def test_a_change_of_a_suspended_child_waits_for_resume(rig: Rig, clock: Clock) -> None:
    await rig.generations.suspend()
    rig.change("a")
    await clock.advance(10)
    assert (rig.starts, rig.child.status) == (1, Status.SUSPENDED)

    await rig.generations.resume()
    await clock.advance(2)
    assert rig.launcher.changes == [{}, {"a": "modified"}]


async def test_resume_without_a_change_goes_on(rig: Rig, clock: Clock) -> None:
    await rig.generations.suspend()
    await rig.generations.suspend()
    await rig.generations.resume()
    await rig.generations.resume()
    await clock.advance(2)
    assert (rig.starts, rig.child.status) == (1, Status.RUNNING)


async def test_a_suspended_child_restarts_by_hand(rig: Rig, clock: Clock) -> None:
    await rig.generations.suspend()
    rig.generations.restart("restart")
    await rig.generations.resume()
    await clock.advance(2)
    assert (rig.starts, rig.child.status) == (2, Status.RUNNING)


async def test_while_suspended_nothing_is_started(rig: Rig, clock: Clock) -> None:
    rig.child.end(Status.FAILED, 1)
    await rig.generations.suspend()
    rig.change("a")
    await clock.advance(10)
    assert rig.starts == 1

    await rig.generations.resume()
    await clock.settle()
    assert rig.starts == 2


async def test_cancelling_stops_the_child_first(rig: Rig, clock: Clock) -> None:
    rig.task.cancel()
    await clock.advance(2)
    assert rig.task.cancelled()
    assert rig.child.status is Status.STOPPED


async def test_an_end_that_the_user_wished_for_is_the_last(rig: Rig, clock: Clock) -> None:
    rig.launcher.interrupted = True
    rig.child.end(Status.FAILED, -signal.SIGINT)
    await clock.settle()
    assert rig.task.done()
    assert "killed by" not in rig.said.getvalue()

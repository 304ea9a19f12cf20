"""Runs of a command never overlap, no change is lost, and the last change always leads to a run."""

from __future__ import annotations

import asyncio
import io
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.cli.logs import logging_to
from lifecycle.cli.output import Console, UsageError
from lifecycle.cli.watch.launcher import Launcher
from lifecycle.cli.watch.runner import Runner
from lifecycle.cli.watch.settings import Settings
from lifecycle.errors import StopTree, WorkerFailed
from lifecycle.workers import BaseWorker, End, Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Mapping

    from lifecycle.events import Change
    from lifecycle.testing import Clock

pytestmark = pytest.mark.keeps_tasks  # from the runner under test


class FakeChild(BaseWorker):
    """A process that takes a while to stop, and may hang before it is ready."""

    _stop_signal = signal.SIGTERM

    def __init__(self, launcher: FakeLauncher) -> None:
        super().__init__("app")
        self._launcher = launcher
        self._process: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._ready = asyncio.Event()
        if not launcher.hangs:
            self._ready.set()

    async def _launch(self) -> Awaitable[End]:
        return self._process

    async def _until_ready(self) -> None:
        ready = asyncio.ensure_future(self._ready.wait())
        either: set[asyncio.Future[Any]] = {ready, self._process}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._process.done():
            raise WorkerFailed("'app' ended before it was ready")

    async def _terminate(self, *, force: bool) -> None:
        asyncio.get_running_loop().call_later(0 if force else self._launcher.stopping, self.end, -signal.SIGTERM)

    def end(self, code: int, error: Exception | None = None) -> None:
        if code and error is None:
            error = WorkerFailed(f"'app' exited with status {code}")
        if not self._process.done():
            self._process.set_result(End(error, code))

    def send_signal(self, signum: signal.Signals, *, group: bool) -> None:
        assert not group
        self._launcher.signals.append(signum)

    def be_ready(self) -> None:
        self._ready.set()

    async def suspend(self) -> None:
        self._machine.to(Status.SUSPENDED)

    async def resume(self) -> None:
        self._machine.to(Status.RUNNING)


class FakeLauncher(Launcher):
    """Records each start with its changes, and fails the test if two runs overlap."""

    name = "app"

    def __init__(self) -> None:
        self.stopping = 1.0
        self.children: list[FakeChild] = []
        self.changes: list[dict[str, Change]] = []
        self.signals: list[signal.Signals] = []
        self.hangs = False
        self.refuses = False

    def make(self, changes: Mapping[Path, Change]) -> FakeChild:  # type: ignore[override]  # no process
        assert all(child.status in (Status.STOPPED, Status.FAILED, Status.FINISHED) for child in self.children)
        if self.refuses:
            raise UsageError("'app': no such file")
        self.changes.append({path.name: change for path, change in changes.items()})
        self.children.append(FakeChild(self))
        return self.children[-1]

    def ends_all(self, exit_code: int | None) -> bool:
        return exit_code == -signal.SIGINT


class Rig:
    """The runner under test, while it runs."""

    def __init__(self, **given: Any) -> None:
        self.said = io.StringIO()
        self.console = Console(stream=self.said)
        self.launcher = FakeLauncher()
        self.runner = Runner(self.launcher, Settings(command=("app",), **given), self.console)
        self.task = asyncio.get_running_loop().create_task(self.runner.run())

    @property
    def child(self) -> FakeChild:
        return self.launcher.children[-1]

    @property
    def starts(self) -> int:
        return len(self.launcher.children)

    def change(self, name: str) -> None:
        self.runner.add_changes({Path(name): "modified"})
        self.runner.change(f"changed: {name}")

    def printed(self) -> str:
        """Return the messages since the last call."""
        printed = self.said.getvalue()
        self.said.truncate(0)
        self.said.seek(0)
        return printed


@pytest.fixture
async def rig(request: pytest.FixtureRequest, clock: Clock) -> AsyncIterator[Rig]:
    rig = Rig(**getattr(request, "param", {}))
    with logging_to(rig.console):
        await clock.settle()
        yield rig
        rig.task.cancel()
        await asyncio.wait([rig.task])


def having(**settings: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("rig", [settings], indirect=True)


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
    rig.child.end(3)
    await clock.advance(60)
    assert rig.starts == 1
    # The duration is real time.
    assert re.search(r"exited with status 3 after \d+\.\d s; waiting for a change", rig.said.getvalue())
    assert rig.said.getvalue().count("status 3") == 1

    rig.change("app.py")
    await clock.settle()
    assert rig.starts == 2


async def test_a_child_that_died_of_a_signal_is_shown_with_its_name(rig: Rig, clock: Clock) -> None:
    rig.child.end(-signal.SIGSEGV)
    await clock.settle()
    assert "killed by SIGSEGV" in rig.said.getvalue()


async def test_failed_start_waits_for_next_change_and_keeps_its_changes(rig: Rig, clock: Clock) -> None:
    rig.launcher.refuses = True
    rig.change("a")
    await clock.advance(2)
    assert "no such file; waiting for a change" in rig.said.getvalue()

    rig.launcher.refuses = False
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


@having(timeout=5.0)
async def test_run_beyond_its_time_limit_is_stopped_and_waits_for_a_change(rig: Rig, clock: Clock) -> None:
    await clock.advance(7)
    assert (rig.starts, rig.child.status) == (1, Status.STOPPED)
    assert "stopping the command after 5 s (--timeout); waiting for a change" in rig.printed()

    rig.change("a")
    await clock.advance(4)
    assert (rig.starts, rig.child.status) == (2, Status.RUNNING)


@having(timeout=5.0)
async def test_change_while_a_run_is_stopped_at_its_limit_leads_to_another(rig: Rig, clock: Clock) -> None:
    await clock.advance(5.5)
    rig.change("a")
    await clock.advance(4)
    assert (rig.starts, rig.child.status) == (2, Status.RUNNING)


@having(timeout=5.0)
async def test_time_limit_begins_again_with_each_run(rig: Rig, clock: Clock) -> None:
    await clock.advance(4)
    rig.change("a")
    await clock.advance(5)
    assert (rig.starts, rig.child.status) == (2, Status.RUNNING)


@having(timeout=5.0, restart="always")
async def test_run_beyond_its_time_limit_is_restarted_if_the_policy_restarts(rig: Rig, clock: Clock) -> None:
    await clock.advance(7)
    assert (rig.starts, rig.child.status) == (2, Status.RUNNING)


@having(exit_on_error=True)
async def test_exit_on_error_ends_with_the_status_of_the_run(rig: Rig, clock: Clock) -> None:
    rig.child.end(0)
    await clock.settle()
    rig.change("a")
    await clock.advance(2)
    assert rig.starts == 2

    rig.child.end(-signal.SIGSEGV)
    await clock.settle()
    assert rig.task.done()
    assert rig.runner.exit_status == 128 + signal.SIGSEGV


@having(exit_on_error=True, timeout=5.0)
async def test_exit_on_error_ends_at_the_time_limit(rig: Rig, clock: Clock) -> None:
    await clock.advance(7)
    assert rig.task.done()
    assert (rig.runner.exit_status, rig.child.status) == (1, Status.STOPPED)


@having(delay_run=3.0)
async def test_delayed_start_follows_once_after_several_changes(rig: Rig, clock: Clock) -> None:
    assert rig.starts == 0
    await clock.advance(4)
    rig.change("a")
    await clock.advance(2)
    rig.change("b")
    assert (rig.starts, rig.child.status) == (1, Status.RUNNING)
    await clock.advance(2.5)
    assert rig.launcher.changes == [{}, {"a": "modified", "b": "modified"}]


@having(delay_run=3.0, restart="always")
async def test_delay_also_applies_to_a_restart_after_an_exit(rig: Rig, clock: Clock) -> None:
    await clock.advance(3)
    rig.child.end(0)
    await clock.advance(2.9)
    assert rig.starts == 1
    await clock.advance(1)
    assert rig.starts == 2


async def test_forwarded_signal_reaches_only_a_running_child(rig: Rig, clock: Clock) -> None:
    rig.runner.forward(signal.SIGUSR1)
    rig.runner.forward(None)
    rig.child.end(0)
    await clock.settle()
    rig.runner.forward(signal.SIGUSR2)
    await clock.settle()
    assert (rig.launcher.signals, rig.starts) == ([signal.SIGUSR1], 1)


@having(busy="queue")
async def test_queued_changes_lead_to_one_run_after_the_end(rig: Rig, clock: Clock) -> None:
    rig.change("a")
    rig.change("b")
    await clock.advance(100)
    assert rig.starts == 1

    rig.child.end(0)
    await clock.advance(100)
    assert rig.launcher.changes == [{}, {"a": "modified", "b": "modified"}]


@having(busy="drop")
async def test_dropped_changes_start_nothing_but_reach_the_next_run(rig: Rig, clock: Clock) -> None:
    rig.change("a")
    rig.child.end(0)
    await clock.advance(100)
    assert rig.starts == 1

    rig.change("b")
    await clock.settle()
    assert rig.launcher.changes == [{}, {"a": "modified", "b": "modified"}]


@having(busy="drop")
async def test_manual_restart_overrides_every_policy(rig: Rig, clock: Clock) -> None:
    rig.runner.restart("restart")
    await clock.advance(2)
    assert rig.starts == 2


async def test_signal_goes_to_running_child_or_starts_one(rig: Rig, clock: Clock) -> None:
    rig.runner.signal(signal.SIGHUP, "changed: a")
    await clock.advance(2)
    assert (rig.launcher.signals, rig.starts) == ([signal.SIGHUP], 1)

    rig.child.end(1)
    await clock.settle()
    rig.runner.signal(signal.SIGHUP, "changed: b")
    await clock.settle()
    assert (rig.launcher.signals, rig.starts) == ([signal.SIGHUP], 2)


async def test_a_change_of_a_suspended_child_waits_for_resume(rig: Rig, clock: Clock) -> None:
    await rig.runner.suspend()
    rig.change("a")
    await clock.advance(10)
    assert (rig.starts, rig.child.status) == (1, Status.SUSPENDED)

    await rig.runner.resume()
    await clock.advance(2)
    assert rig.launcher.changes == [{}, {"a": "modified"}]


async def test_change_while_resuming_starts_no_extra_run(rig: Rig, clock: Clock) -> None:
    await rig.runner.suspend()
    rig.change("a")
    resuming = asyncio.create_task(rig.runner.resume())
    await clock.advance(0.5)
    rig.change("b")
    await clock.advance(2)
    await resuming
    assert rig.launcher.changes == [{}, {"a": "modified", "b": "modified"}]
    rig.child.end(1)
    await clock.advance(2)
    assert rig.starts == 2


async def test_resume_without_a_change_continues(rig: Rig, clock: Clock) -> None:
    await rig.runner.suspend()
    await rig.runner.suspend()
    await rig.runner.resume()
    await rig.runner.resume()
    await clock.advance(2)
    assert (rig.starts, rig.child.status) == (1, Status.RUNNING)


async def test_a_suspended_child_restarts_by_hand(rig: Rig, clock: Clock) -> None:
    await rig.runner.suspend()
    rig.runner.restart("restart")
    await rig.runner.resume()
    await clock.advance(2)
    assert (rig.starts, rig.child.status) == (2, Status.RUNNING)


async def test_while_suspended_nothing_is_started(rig: Rig, clock: Clock) -> None:
    rig.child.end(1)
    await rig.runner.suspend()
    rig.change("a")
    await clock.advance(10)
    assert rig.starts == 1

    await rig.runner.resume()
    await clock.settle()
    assert rig.starts == 2


async def test_cancelling_stops_the_child_first(rig: Rig, clock: Clock) -> None:
    rig.task.cancel()
    await clock.advance(2)
    assert rig.task.cancelled()
    assert rig.child.status is Status.STOPPED


@pytest.mark.parametrize("rig", [{}, {"restart": "always"}], indirect=True)
async def test_ctrl_c_in_the_foreground_ends_everything(rig: Rig, clock: Clock) -> None:
    rig.printed()
    rig.child.end(-signal.SIGINT, StopTree("Ctrl+C"))
    await clock.settle()
    assert rig.task.done()
    assert not rig.task.exception()
    assert (rig.starts, rig.printed()) == (1, "")


class TestThePolicy:
    @having(restart="on_failure")
    async def test_crash_restarts_after_growing_backoff(self, rig: Rig, clock: Clock) -> None:
        for wait in ("0.1", "0.2", "0.4"):
            starts = rig.starts
            rig.child.end(3)
            await clock.settle()
            assert rig.starts == starts
            assert f"'app' will be restarted in {wait} s: 'app' exited with status 3" in rig.printed()
            await clock.advance(float(wait) * 1.2)
            assert rig.starts == starts + 1

    @having(restart="on_failure")
    async def test_on_failure_does_not_restart_after_success(self, rig: Rig, clock: Clock) -> None:
        rig.child.end(0)
        await clock.advance(100)
        assert rig.starts == 1
        assert re.search(r"exited with status 0 after \d+\.\d s; waiting for a change", rig.printed())

    @having(restart="always")
    async def test_always_restarts_after_success(self, rig: Rig, clock: Clock) -> None:
        rig.child.end(0)
        await clock.advance(1)
        assert rig.starts == 2

    @having(restart="always")
    async def test_repeated_crashes_are_given_up_until_a_change(self, rig: Rig, clock: Clock) -> None:
        for retry in range(8):
            rig.child.end(1)
            await clock.advance(0.12 * 2**retry)
        assert rig.starts == 9
        rig.child.end(1)
        await clock.advance(1000)
        assert rig.starts == 9
        assert (
            "gave up on 'app' after more than 8 restarts within 60 s\n[lifecycle] waiting for a change\n"
            in rig.printed()
        )
        assert rig.runner.describe() == "waiting for a change"

        rig.change("app.py")
        await clock.settle()
        assert (rig.starts, rig.child.status) == (10, Status.RUNNING)
        rig.child.end(1)
        await clock.advance(1)
        assert rig.starts == 11

    @having(restart="always")
    async def test_change_does_not_wait_for_backoff(self, rig: Rig, clock: Clock) -> None:
        for _ in range(6):
            rig.child.end(1)
            await clock.advance(4)
        rig.child.end(1)
        await clock.settle()
        starts = rig.starts
        assert rig.runner.describe() == "waiting to restart"
        rig.change("app.py")
        await clock.settle()
        assert (rig.starts, rig.launcher.changes[-1]) == (starts + 1, {"app.py": "modified"})

    @having(restart="on_failure")
    async def test_failed_start_is_retried_with_its_changes(self, rig: Rig, clock: Clock) -> None:
        rig.launcher.refuses = True
        rig.change("a")
        await clock.advance(1.05)
        assert "will be restarted in 0.1 s: 'app': no such file" in rig.printed()
        rig.launcher.refuses = False
        await clock.advance(2)
        assert rig.launcher.changes == [{}, {"a": "modified"}]

    @having(restart="always", busy="queue")
    async def test_a_queued_run_does_not_wait_for_the_backoff(self, rig: Rig, clock: Clock) -> None:
        rig.change("a")
        rig.child.end(0)
        await clock.settle()
        assert rig.launcher.changes == [{}, {"a": "modified"}]
        await clock.advance(100)
        assert rig.starts == 2


class TestReadiness:
    async def hang(self, rig: Rig, clock: Clock) -> None:
        rig.launcher.hangs = True
        rig.printed()
        rig.change("a")
        await clock.advance(2)

    @having(ready="port:8000")
    async def test_ready_is_reported(self, rig: Rig, clock: Clock) -> None:
        await self.hang(rig, clock)
        assert "ready" not in rig.printed()
        rig.child.be_ready()
        await clock.settle()
        assert "ready: app" in rig.printed()

    @having(ready="port:8000")
    async def test_change_interrupts_hanging_start_and_keeps_its_changes(self, rig: Rig, clock: Clock) -> None:
        await self.hang(rig, clock)
        rig.launcher.hangs = False
        rig.change("b")
        await clock.advance(2)
        assert rig.launcher.changes == [{}, {"a": "modified"}, {"a": "modified", "b": "modified"}]
        assert (rig.starts, rig.child.status) == (3, Status.RUNNING)
        rig.change("c")
        await clock.advance(2)
        assert rig.launcher.changes[-1] == {"c": "modified"}

    @having(ready="port:8000", busy="queue")
    async def test_queued_the_change_waits_for_its_end(self, rig: Rig, clock: Clock) -> None:
        await self.hang(rig, clock)
        assert rig.starts == 1
        rig.child.end(0)
        await clock.advance(10)
        rig.change("b")
        await clock.advance(10)
        assert (rig.starts, rig.child.status) == (2, Status.STARTING)

    @having(ready="port:8000")
    async def test_run_that_ends_before_ready_waits_for_a_change(self, rig: Rig, clock: Clock) -> None:
        await self.hang(rig, clock)
        rig.child.end(1)
        await clock.advance(100)
        assert "'app' ended before it was ready; waiting for a change" in rig.printed()
        assert rig.starts == 2

    @having(ready="port:8000", restart="on_failure")
    async def test_end_before_ready_follows_the_restart_policy(self, rig: Rig, clock: Clock) -> None:
        await self.hang(rig, clock)
        rig.child.end(1)
        await clock.settle()
        assert "'app' will be restarted in 0.1 s: 'app' ended before it was ready" in rig.printed()
        rig.launcher.hangs = False
        await clock.advance(1)
        assert (rig.starts, rig.child.status) == (3, Status.RUNNING)

    @having(ready="port:8000")
    async def test_start_during_suspension_is_repeated_on_resume(self, rig: Rig, clock: Clock) -> None:
        await self.hang(rig, clock)
        suspending = asyncio.create_task(rig.runner.suspend())
        await clock.advance(2)
        await suspending
        rig.launcher.hangs = False
        await clock.advance(10)
        assert rig.starts == 2
        await rig.runner.resume()
        await clock.settle()
        assert rig.launcher.changes == [{}, {"a": "modified"}, {"a": "modified"}]


async def test_request_before_the_start_is_not_lost(clock: Clock) -> None:
    rig = Rig(postpone=True)
    rig.change("a")
    await clock.settle()
    rig.task.cancel()
    await clock.advance(2)
    assert rig.launcher.changes == [{"a": "modified"}]


async def test_change_during_shutdown_starts_nothing(rig: Rig, clock: Clock) -> None:
    rig.change("a")
    await clock.advance(0.5)
    rig.child.end(-signal.SIGINT, StopTree("Ctrl+C"))
    rig.change("b")
    await clock.advance(2)
    assert rig.task.done()
    assert not rig.task.exception()

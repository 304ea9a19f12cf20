"""With ``--keep-old``, a run starts next to the old one, and one of them remains."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.cli.logs import logging_to
from lifecycle.cli.output import UsageError
from lifecycle.cli.watch.settings import Settings
from lifecycle.errors import StopTree
from lifecycle.workers import Status
from tests.cli.watch import test_runner as one
from tests.cli.watch.test_runner import having

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from lifecycle.events import Change
    from lifecycle.testing import Clock

pytestmark = pytest.mark.keeps_tasks  # the runner under test still has tasks when a test returns

ENDED = (Status.STOPPED, Status.FAILED, Status.FINISHED, Status.KILLED)


class TwoAtATime(one.FakeLauncher):
    """A process that fails the test if a third one starts."""

    def make(self, changes: Mapping[Path, Change]) -> one.FakeChild:  # type: ignore[override]  # no process
        assert len(self.at_work) <= 1
        if self.refuses:
            raise UsageError("'app': no such file")
        self.changes.append({path.name: change for path, change in changes.items()})
        self.children.append(one.FakeChild(self))
        return self.children[-1]

    @property
    def at_work(self) -> list[int]:
        """Return the numbers of the running processes, from 1."""
        return [number for number, child in enumerate(self.children, 1) if child.status not in ENDED]


@pytest.fixture
async def rig(request: pytest.FixtureRequest, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[one.Rig]:
    monkeypatch.setattr(one, "FakeLauncher", TwoAtATime)
    given = {"keep_old": True, "ready": "notify"} | getattr(request, "param", {})
    rig = one.Rig(**given)
    with logging_to(rig.console):
        await clock.settle()
        yield rig
        rig.task.cancel()
        await asyncio.wait([rig.task])


def at_work(rig: one.Rig) -> list[int]:
    assert isinstance(rig.launcher, TwoAtATime)
    return rig.launcher.at_work


def statuses(rig: one.Rig) -> list[Status]:
    return [child.status for child in rig.launcher.children]


async def begin(rig: one.Rig, clock: Clock, name: str = "a") -> None:
    """Make a change. The new process takes a while to become ready."""
    rig.launcher.hangs = True
    rig.change(name)
    await clock.settle()


async def test_successor_starts_next_to_the_old_run_and_replaces_it_when_ready(rig: one.Rig, clock: Clock) -> None:
    await begin(rig, clock)
    await clock.advance(5)
    assert at_work(rig) == [1, 2]
    assert statuses(rig) == [Status.RUNNING, Status.STARTING]

    rig.child.be_ready()
    await clock.settle()
    assert statuses(rig) == [Status.STOPPING, Status.RUNNING]
    await clock.advance(1)
    assert at_work(rig) == [2]
    assert rig.launcher.changes == [{}, {"a": "modified"}]
    assert rig.printed().count("ready: app") == 2


async def test_repeated_replacement_works(rig: one.Rig, clock: Clock) -> None:
    for number in range(2, 6):
        rig.change(f"{number}")
        await clock.advance(2)
        assert at_work(rig) == [number]
    assert rig.launcher.changes[1:] == [{f"{number}": "modified"} for number in range(2, 6)]


async def test_successor_that_ends_before_ready_leaves_the_old_run_and_its_changes(rig: one.Rig, clock: Clock) -> None:
    await begin(rig, clock)
    rig.child.end(1)
    await clock.advance(10)
    assert at_work(rig) == [1]
    assert "'app' ended before it was ready; the old process keeps running" in rig.printed()
    assert rig.runner.alive

    rig.launcher.hangs = False
    rig.change("b")
    await clock.advance(2)
    assert (at_work(rig), rig.launcher.changes[-1]) == ([3], {"a": "modified", "b": "modified"})


async def test_successor_that_cannot_be_made_leaves_the_old_run(rig: one.Rig, clock: Clock) -> None:
    rig.launcher.refuses = True
    rig.change("a")
    await clock.advance(10)
    assert at_work(rig) == [1]
    assert "no such file; the old process keeps running" in rig.printed()

    rig.launcher.refuses = False
    rig.change("b")
    await clock.advance(2)
    assert at_work(rig) == [2]


async def test_change_replaces_successor_that_is_not_ready(rig: one.Rig, clock: Clock) -> None:
    await begin(rig, clock, "a")
    rig.launcher.hangs = False
    rig.change("b")
    await clock.advance(3)
    assert at_work(rig) == [3]
    assert rig.launcher.changes == [{}, {"a": "modified"}, {"a": "modified", "b": "modified"}]
    assert "the old process keeps running" not in rig.printed()


async def test_a_change_while_the_old_one_stops_waits_for_its_end(rig: one.Rig, clock: Clock) -> None:
    rig.change("a")
    await clock.advance(0.5)
    assert statuses(rig) == [Status.STOPPING, Status.RUNNING]
    rig.change("b")
    await clock.advance(3)
    assert at_work(rig) == [3]


async def test_end_of_the_old_run_does_not_end_the_new_one(rig: one.Rig, clock: Clock) -> None:
    await begin(rig, clock)
    rig.launcher.children[0].end(1)
    await clock.settle()
    assert "waiting for a change" not in rig.printed()
    rig.child.be_ready()
    await clock.advance(2)
    assert at_work(rig) == [2]


async def test_change_starts_a_run_after_both_have_ended(rig: one.Rig, clock: Clock) -> None:
    await begin(rig, clock)
    rig.launcher.children[0].end(1)
    await clock.settle()
    rig.child.end(1)
    await clock.settle()
    assert "'app' ended before it was ready; waiting for a change" in rig.printed()
    rig.launcher.hangs = False
    rig.change("b")
    await clock.advance(2)
    assert (at_work(rig), rig.launcher.changes[-1]) == ([3], {"a": "modified", "b": "modified"})


async def test_crashed_run_is_replaced_without_overlap(rig: one.Rig, clock: Clock) -> None:
    rig.change("a")
    await clock.advance(2)
    rig.child.end(3)
    await clock.settle()
    assert "exited with status 3" in rig.printed()
    rig.change("b")
    await clock.advance(2)
    assert at_work(rig) == [3]


@having(restart="on_failure")
async def test_restart_policy_applies_to_kept_and_new_runs(rig: one.Rig, clock: Clock) -> None:
    await begin(rig, clock)
    rig.child.end(1)
    await clock.advance(100)
    assert at_work(rig) == [1]
    rig.launcher.hangs = False
    rig.launcher.children[0].end(1)
    await clock.advance(1)
    assert at_work(rig) == [3]
    rig.change("b")
    await clock.advance(2)
    rig.child.end(1)
    await clock.advance(1)
    assert at_work(rig) == [5]


async def test_successor_starts_next_to_the_old_run_after_resume(rig: one.Rig, clock: Clock) -> None:
    await rig.runner.suspend()
    rig.change("a")
    rig.runner.restart("restart")
    await clock.advance(10)
    assert at_work(rig) == [1]
    rig.launcher.hangs = True
    await rig.runner.resume()
    await clock.settle()
    assert (at_work(rig), rig.launcher.children[0].status) == ([1, 2], Status.RUNNING)
    rig.child.be_ready()
    await clock.advance(2)
    assert at_work(rig) == [2]


async def test_suspend_drops_successor_and_resume_starts_it_again(rig: one.Rig, clock: Clock) -> None:
    await begin(rig, clock)
    suspending = asyncio.create_task(rig.runner.suspend())
    await clock.advance(2)
    await suspending
    assert (at_work(rig), rig.launcher.children[0].status) == ([1], Status.SUSPENDED)
    rig.launcher.hangs = False
    await rig.runner.resume()
    await clock.advance(2)
    assert (at_work(rig), rig.launcher.changes[-1]) == ([3], {"a": "modified"})


async def test_a_signal_goes_to_the_old_one_until_the_new_one_is_ready(rig: one.Rig, clock: Clock) -> None:
    await begin(rig, clock)
    rig.runner.signal(signal.SIGHUP, "changed: b")
    assert rig.launcher.signals == [signal.SIGHUP]


async def test_cancelling_ends_both_runs(rig: one.Rig, clock: Clock) -> None:
    await begin(rig, clock)
    rig.task.cancel()
    await clock.advance(3)
    assert rig.task.cancelled()
    assert at_work(rig) == []


async def test_shutdown_during_a_start_is_not_an_error(rig: one.Rig, clock: Clock) -> None:
    await begin(rig, clock)
    rig.launcher.children[0].end(-signal.SIGINT, StopTree("Ctrl+C"))
    await clock.advance(3)
    assert rig.task.done()
    assert not rig.task.exception()


class TestSettings:
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({}, "--ready is not given; use --ready notify or line:REGEX"),
            ({"ready": "http://127.0.0.1:8000"}, "the old run also responds to --ready http://127.0.0.1:8000"),
            ({"ready": "notify", "busy": "queue"}, "--busy queue does not"),
        ],
    )
    def test_commands_refuse_conflicting_settings(self, given: dict[str, Any], said: str) -> None:
        with pytest.raises(UsageError, match=said):
            Settings(command=("app",), keep_old=True, **given)

"""Supervision rules that need no event loop: truth tables, and the restart limit."""

from __future__ import annotations

import asyncio
import gc
import logging
import traceback
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.errors import DoNotRestart, RestartLimitReached, StopTree, WorkerFailed
from lifecycle.workers import Backoff, End, Intensity, Restart, Spec, Strategy, Supervisor
from lifecycle.workers.specs import AutoShutdown, Budget, affected, cause_of, ends_with

if TYPE_CHECKING:
    from lifecycle.testing import Clock
    from tests.workers.fake_workers import Fakes


@pytest.mark.parametrize(
    ("strategy", "who"), [("one_for_one", ["b"]), ("one_for_all", ["a", "b", "c"]), ("rest_for_one", ["b", "c"])]
)
def test_strategy_selects_the_children_that_restart_together(strategy: str, who: list[str]) -> None:
    assert affected(Strategy(strategy), ["a", "b", "c"], "b") == who


@pytest.mark.parametrize("word", ["on_failure", "on-failure"])
def test_a_policy_may_be_written_with_a_dash(word: Any) -> None:
    assert Spec("a", ["true"], restart=word).restart == Restart.ON_FAILURE == Restart(word)
    with pytest.raises(ValueError, match="restart must be one of 'always', 'on_failure', 'never', got 'on-fail'"):
        Spec("a", ["true"], restart="on-fail")  # type: ignore[arg-type]


@pytest.mark.parametrize("significant", [True, False])
@pytest.mark.parametrize("others", [[], ["b"]])
def test_auto_shutdown_decides_whether_a_supervisor_ends(significant: bool, others: list[str]) -> None:
    def ends(how: AutoShutdown) -> bool:
        return ends_with(how, significant=significant, others=others)

    assert ends(AutoShutdown.NEVER) is False
    assert ends(AutoShutdown.ANY_SIGNIFICANT) is significant
    assert ends(AutoShutdown.ALL_SIGNIFICANT) is (significant and not others)


def test_control_exception_is_found_inside_a_wrapping_error() -> None:
    plain, steering = ValueError("x"), StopTree("all of it")
    caused, wrapped, both = ValueError("y"), WorkerFailed("w"), DoNotRestart("enough")
    caused.__cause__, wrapped.__cause__, both.__cause__ = KeyError("k"), steering, steering

    assert cause_of(None) is None
    assert [cause_of(error) for error in (plain, caused, wrapped, both)] == [plain, caused, steering, both]


def test_an_exceeded_budget_names_the_last_child_and_its_errors() -> None:
    budget = Budget("s", Intensity(1, within=5))
    budget.spend(0, "old", ValueError("long ago"))
    budget.spend(100, "a", ValueError("first"))

    with pytest.raises(
        RestartLimitReached, match=r"'s' gave up after more than 1 restart within 5 s, most recently of 'b': se"
    ):
        budget.spend(101, "b", ValueError("second"))
    assert _last_of(budget, at=102) == ["second", "third"]


def test_large_budget_reports_all_errors() -> None:
    budget = Budget("s", Intensity(12, within=5))
    for number in range(12):
        budget.spend(0, "a", ValueError(str(number)))

    assert _last_of(budget, at=1) == [*map(str, range(12)), "third"]


def test_very_large_budget_reports_the_last_hundred_errors() -> None:
    budget = Budget("s", Intensity(1000, within=5))
    for number in range(1000):
        budget.spend(0, "a", ValueError(str(number)))

    assert _last_of(budget, at=1) == [*map(str, range(901, 1000)), "third"]


def _last_of(budget: Budget, *, at: float) -> list[str]:
    """Report one error more than the restart limit allows. Return the messages of all errors in the raised group."""
    with pytest.raises(RestartLimitReached) as caught:
        budget.spend(at, "c", ValueError("third"))
    group = caught.value.__cause__
    assert isinstance(group, ExceptionGroup)
    return [str(each) for each in group.exceptions]


def test_budget_reports_an_unexpected_cancellation_with_its_child() -> None:
    cancelled = asyncio.CancelledError()

    with pytest.raises(RestartLimitReached, match="'a' was cancelled, but not by its supervisor") as caught:
        Budget("s", Intensity(0, within=1)).spend(0, "a", cancelled)
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    assert caught.value.__cause__.exceptions[0].__cause__ is cancelled


class _Crash(Exception):
    """An exception that, unlike Python's own, supports weak references."""


def test_pausing_budget_keeps_a_bounded_number_of_errors() -> None:
    budget, kept = Budget("s", Intensity(1, within=1), pauses=True), list[weakref.ref[Exception]]()
    for number in range(30):
        error = _Crash(str(number))
        kept.append(weakref.ref(error))
        budget.spend(number, "a", error)
    del error
    gc.collect()

    assert sum(each() is not None for each in kept) <= 10


@pytest.mark.parametrize(
    ("most", "words"), [(1, "more than 1 restart within 60 s"), (2, "more than 2 restarts within")]
)
async def test_log_names_children_that_restart_and_that_are_given_up(
    clock: Clock, fakes: Fakes, caplog: pytest.LogCaptureFixture, most: int, words: str
) -> None:
    caplog.set_level(logging.WARNING, "lifecycle.workers")
    backoff = Backoff(initial=1, multiplier=1, jitter=0, max_restarts=most, within=60)
    async with Supervisor("s", fakes.spec("a", backoff=backoff)):
        for _ in range(most + 1):
            fakes.crash("a", OSError("no disk"))
            await clock.advance(2)

    logged = [record.getMessage() for record in caplog.records]
    assert logged[:most] == ["'a' will be restarted in 1.0 s: no disk"] * most
    assert logged[most].startswith(f"gave up on 'a' after {words}")


async def test_log_has_a_traceback_for_an_error_but_not_for_an_exit(
    clock: Clock, fakes: Fakes, caplog: pytest.LogCaptureFixture
) -> None:
    async def job() -> None:
        raise LookupError("no such row")

    backoff = Backoff(initial=1, jitter=0, max_restarts=1, within=60)
    async with Supervisor("s", Spec("job", job, backoff=backoff), fakes.spec("process")):
        await clock.advance(2)
        fakes.crash("process", WorkerFailed("'process' exited with status 3"))
        await clock.settle()

    job_restarts, job_given_up, process_restarts = caplog.records
    for record in (job_restarts, job_given_up):
        assert record.exc_info is not None
        assert [frame.name for frame in traceback.extract_tb(record.exc_info[2])][-1] == "job"
    assert process_restarts.getMessage().endswith("'process' exited with status 3")
    assert not process_restarts.exc_info


async def test_log_has_the_masked_end_of_the_stderr_of_a_failed_process(
    clock: Clock, fakes: Fakes, caplog: pytest.LogCaptureFixture
) -> None:
    stderr = "".join(f"line {number} {'x' * 90}\n" for number in range(30)) + "password=hunter2\nno such table\n"
    for restart in ("always", "never"):
        async with Supervisor("s", fakes.spec("web", restart=restart)):
            fakes["web"].life.set_result(End(WorkerFailed("'web' exited with status 1"), 1, stderr))
            await clock.settle()

    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    for message in messages:
        first, *more = message.splitlines()
        assert first.endswith("'web' exited with status 1; the end of its stderr:")
        assert more[0].startswith("line 2")
        assert more[-2:] == ["password=***", "no such table"]
        assert len(message) < 1200


async def test_log_has_the_failure_of_a_child_that_is_never_restarted(
    clock: Clock, fakes: Fakes, caplog: pytest.LogCaptureFixture
) -> None:
    """The log mentions no clean exits, no stops, and no child that raises DoNotRestart."""
    caplog.set_level(logging.WARNING, "lifecycle.workers")

    async def job() -> None:
        raise LookupError("no such row")

    async def done() -> None: ...

    async def unwilling() -> None:
        raise DoNotRestart("nothing to do")

    children = {"job": job, "done": done, "unwilling": unwilling, "stays": asyncio.Event().wait}
    specs = [Spec(name, child, restart="never") for name, child in children.items()]
    async with Supervisor("s", *specs, fakes.spec("process", restart="never")):
        await clock.settle()
        fakes.crash("process", WorkerFailed("'process' exited with status 3"))
        await clock.settle()

    of_job, of_process = caplog.records
    assert of_job.getMessage() == "'job' failed and will not be restarted: no such row"
    assert of_job.exc_info is not None
    assert [frame.name for frame in traceback.extract_tb(of_job.exc_info[2])][-1] == "job"
    assert of_process.getMessage() == "'process' failed and will not be restarted: 'process' exited with status 3"
    assert not of_process.exc_info
    assert {record.levelname for record in caplog.records} == {"ERROR"}


async def test_restart_after_a_resume_is_logged_with_its_reason(
    clock: Clock, fakes: Fakes, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = Supervisor("s", fakes.spec("a"), intensity=Intensity(1, within=60))
    await supervisor.start()
    fakes.crash("a", OSError("no disk"))
    await clock.settle()
    await supervisor.suspend()
    fakes.crash("a", OSError("no memory"))
    await clock.settle()
    await supervisor.resume()

    error = (await supervisor.wait()).error
    assert str(error).endswith("most recently of 'a': no memory")
    assert "'a' will be restarted in 0.0 s: no disk" in caplog.text

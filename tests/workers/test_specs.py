"""The pure parts of supervision, looked at by themselves: truth tables, and the sums of a budget."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from typing import TYPE_CHECKING

import pytest

from lifecycle.errors import DoNotRestart, RestartLimitReached, StopTree, WorkerFailed
from lifecycle.workers import Backoff, Intensity, Strategy, Supervisor
from lifecycle.workers.specs import AutoShutdown, Budget, affected, cause_of, ends_with

if TYPE_CHECKING:
    from lifecycle.testing import Clock
    from tests.workers.puppets import Crew


@pytest.mark.parametrize(
    ("strategy", "who"), [("one_for_one", ["b"]), ("one_for_all", ["a", "b", "c"]), ("rest_for_one", ["b", "c"])]
)
def test_who_is_started_again_with_the_one_in_the_middle(strategy: str, who: list[str]) -> None:
    assert affected(Strategy(strategy), ["a", "b", "c"], "b") == who


@pytest.mark.parametrize("significant", [True, False])
@pytest.mark.parametrize("others", [[], ["b"]])
def test_a_supervisor_ends_with_a_significant_child_as_it_was_told(significant: bool, others: list[str]) -> None:
    def ends(how: AutoShutdown) -> bool:
        return ends_with(how, significant=significant, others=others)

    assert ends(AutoShutdown.NEVER) is False
    assert ends(AutoShutdown.ANY_SIGNIFICANT) is significant
    assert ends(AutoShutdown.ALL_SIGNIFICANT) is (significant and not others)


def test_what_steers_is_found_also_where_it_was_wrapped_and_nothing_else_is() -> None:
    plain, steering = ValueError("x"), StopTree("all of it")
    caused, wrapped, both = ValueError("y"), WorkerFailed("w"), DoNotRestart("enough")
    caused.__cause__, wrapped.__cause__, both.__cause__ = KeyError("k"), steering, steering

    assert cause_of(None) is None
    assert [cause_of(error) for error in (plain, caused, wrapped, both)] == [plain, caused, steering, both]


def test_a_spent_budget_tells_of_the_restarts_that_spent_it_and_of_the_last_child() -> None:
    budget = Budget("s", Intensity(1, within=5))
    budget.spend(0, "old", ValueError("long ago"))
    budget.spend(100, "a", ValueError("first"))

    with pytest.raises(RestartLimitReached, match=r"'s' gives up: more than 1 restart within 5 s, the last of 'b': se"):
        budget.spend(101, "b", ValueError("second"))
    assert _last_of(budget, at=102) == ["second", "third"]


def test_a_large_budget_tells_of_all_of_them() -> None:
    budget = Budget("s", Intensity(12, within=5))
    for number in range(12):
        budget.spend(0, "a", ValueError(str(number)))

    assert _last_of(budget, at=1) == [*map(str, range(12)), "third"]


def test_a_very_large_budget_tells_of_the_last_hundred_errors() -> None:
    budget = Budget("s", Intensity(1000, within=5))
    for number in range(1000):
        budget.spend(0, "a", ValueError(str(number)))

    assert _last_of(budget, at=1) == [*map(str, range(901, 1000)), "third"]


def _last_of(budget: Budget, *, at: float) -> list[str]:
    """What the group says in which the next error is the one too many."""
    with pytest.raises(RestartLimitReached) as caught:
        budget.spend(at, "c", ValueError("third"))
    group = caught.value.__cause__
    assert isinstance(group, ExceptionGroup)
    return [str(each) for each in group.exceptions]


def test_a_cancellation_that_nobody_asked_for_is_told_with_whose_it_was() -> None:
    cancelled = asyncio.CancelledError()

    with pytest.raises(RestartLimitReached, match="'a' was cancelled, and its supervisor did not ask for it") as caught:
        Budget("s", Intensity(0, within=1)).spend(0, "a", cancelled)
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    assert caught.value.__cause__.exceptions[0].__cause__ is cancelled


class _Crash(Exception):
    """Unlike those of Python itself, it can be referred to weakly."""


def test_a_budget_that_pauses_keeps_no_more_errors_than_it_could_tell_of() -> None:
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
async def test_the_log_names_who_is_started_again_and_who_is_given_up(
    clock: Clock, crew: Crew, caplog: pytest.LogCaptureFixture, most: int, words: str
) -> None:
    caplog.set_level(logging.WARNING, "lifecycle.workers")
    backoff = Backoff(initial=1, multiplier=1, jitter=0, max_restarts=most, within=60)
    async with Supervisor("s", crew.spec("a", backoff=backoff)):
        for _ in range(most + 1):
            crew.crash("a", OSError("no disk"))
            await clock.advance(2)

    told = [record.getMessage() for record in caplog.records]
    assert told[:most] == ["'a' is started again in 1.0 s: no disk"] * most
    assert told[most].startswith(f"'a' is given up after {words}")


async def test_a_restart_that_waited_for_the_resume_is_still_told_with_its_reason(
    clock: Clock, crew: Crew, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = Supervisor("s", crew.spec("a"), intensity=Intensity(1, within=60))
    await supervisor.start()
    crew.crash("a", OSError("no disk"))
    await clock.settle()
    await supervisor.suspend()
    crew.crash("a", OSError("no memory"))
    await clock.settle()
    await supervisor.resume()

    error = (await supervisor.wait()).error
    assert str(error).endswith("the last of 'a': no memory")
    assert "'a' is started again in 0.0 s: no disk" in caplog.text

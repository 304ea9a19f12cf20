"""HealthCheckSource: an event for every result, or only for changes."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.control import Router
from lifecycle.sources import HealthCheckSource
from lifecycle.testing import running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lifecycle.events import HealthEvent
    from lifecycle.testing import Clock, Recorder


def answers(results: Iterable[bool]) -> Callable[[], Any]:
    """Return a check that returns ``results`` in order, and then repeats the last one."""
    coming = list(results)

    async def check() -> None:
        good = coming.pop(0) if len(coming) > 1 else coming[0]
        if not good:
            raise ConnectionError("refused")

    return check


async def events_of(clock: Clock, source: HealthCheckSource, seconds: float) -> list[tuple[float, HealthEvent]]:
    """Return the events that the source emits within ``seconds``, with their times."""
    events: list[tuple[float, HealthEvent]] = []

    async def emit(event: Any) -> Any:
        events.append((round(clock.time(), 6), event))

    run = asyncio.create_task(source.run(emit))
    await clock.advance(seconds)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    return events


@pytest.mark.parametrize(("good", "topic"), [(True, "health/db/up"), (False, "health/db/down")])
async def test_the_first_result_is_sent_immediately(clock: Clock, recorder: Recorder, good: bool, topic: str) -> None:
    router = Router()
    router.handle("health/*/*", recorder)
    router.add_source(HealthCheckSource("db", answers([good])))
    async with running(router):
        await clock.advance(100)
    assert recorder.topics == [topic]
    assert recorder.events[0].message == ("" if good else "refused")


@dataclass
class Probed:
    """The value that a worker's ``probe`` returns."""

    healthy: bool
    message: str


@pytest.mark.parametrize("healthy", [True, False])
async def test_a_result_with_healthy_is_used_directly(clock: Clock, healthy: bool) -> None:
    source = HealthCheckSource("app", lambda: Probed(healthy, "queue at 80 %"))
    ((_, event),) = await events_of(clock, source, 1)
    assert (event.healthy, event.message) == (healthy, "queue at 80 %")


async def test_edge_trigger_sends_changes_of_the_result(clock: Clock) -> None:
    source = HealthCheckSource("db", answers([True, True, False, False, True]), interval=10)
    events = await events_of(clock, source, 95)
    assert [(at, event.healthy) for at, event in events] == [(0, True), (20, False), (40, True)]


async def test_level_trigger_sends_every_result(clock: Clock) -> None:
    source = HealthCheckSource("db", answers([True, True, False]), interval=10, trigger="level")
    assert [event.healthy for _, event in await events_of(clock, source, 35)] == [True, True, False, False]


async def test_thresholds_count_consecutive_results_except_for_the_first(clock: Clock) -> None:
    results = [False, True, False, True, True, False, True, False, False, False]
    source = HealthCheckSource("db", answers(results), interval=1, failures=3, successes=2)
    events = await events_of(clock, source, 20.5)
    assert [(at, event.healthy) for at, event in events] == [(0, False), (4, True), (9, False)]


async def test_a_check_that_takes_too_long_is_down(clock: Clock) -> None:
    async def hang() -> None:
        await asyncio.sleep(1000)

    ((at, event),) = await events_of(clock, HealthCheckSource("db", hang, timeout=3), 20)
    assert (at, event.healthy, event.message) == (3, False, "no answer within 3 s")


async def test_a_timeout_error_of_the_check_keeps_its_message(clock: Clock) -> None:
    async def check() -> None:
        raise TimeoutError("the pool is empty")

    ((_, event),) = await events_of(clock, HealthCheckSource("db", check), 1)
    assert event.message == "the pool is empty"


@pytest.mark.parametrize(("answer", "healthy"), [(None, True), (True, True), (0, True), (False, False)])
async def test_plain_checks_run_in_a_thread_and_false_is_down(clock: Clock, answer: object, healthy: bool) -> None:
    threads: list[threading.Thread] = []

    def check() -> object:
        threads.append(threading.current_thread())
        return answer

    ((_, event),) = await events_of(clock, HealthCheckSource("disk", check), 1)
    assert event.healthy is healthy
    assert threading.main_thread() not in threads


async def test_an_error_without_text_is_named_by_its_type(clock: Clock) -> None:
    def check() -> None:
        raise ZeroDivisionError

    ((_, event),) = await events_of(clock, HealthCheckSource("disk", check), 1)
    assert event.message == "ZeroDivisionError"


async def test_a_plain_check_is_not_called_again_while_it_hangs() -> None:
    free, calls, events = threading.Event(), [0], asyncio.Queue[Any]()

    def check() -> None:
        calls[0] += 1
        free.wait()

    source = HealthCheckSource("disk", check, interval=0.01, timeout=0.01, trigger="level")
    run = asyncio.create_task(source.run(events.put))  # type: ignore[arg-type]  # the source ignores its result
    try:
        events_of = [await events.get() for _ in range(4)]
    finally:
        free.set()
    assert not any(event.healthy for event in events_of)
    assert calls == [1]
    assert "is still running" in events_of[-1].message
    while not (await events.get()).healthy:
        pass
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)


async def test_an_object_whose_call_is_async_is_awaited(clock: Clock) -> None:
    class Check:
        async def __call__(self) -> bool:
            return False

    ((_, event),) = await events_of(clock, HealthCheckSource("db", Check()), 1)
    assert not event.healthy


@pytest.mark.parametrize(
    "wrong",
    [{"interval": 0}, {"timeout": -1}, {"failures": 0}, {"successes": 0}, {"trigger": "sometimes"}, {"name": "a/b"}],
)
def test_invalid_settings_raise(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"use|leave out|must be"):
        HealthCheckSource(**{"name": "db", "check": answers([True]), **wrong})


def test_a_check_that_is_not_callable_raises() -> None:
    with pytest.raises(TypeError, match="pass a function"):
        HealthCheckSource("db", "http://localhost")  # type: ignore[arg-type]  # the mistake under test

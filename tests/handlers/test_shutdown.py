from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lifecycle.control import Event, ShutdownEvent, TerminateEvent
from lifecycle.handlers import ShutdownHandler, SuspendHandler, TerminateHandler

EVENT = ShutdownEvent("quit")


async def test_it_runs_once_also_while_it_runs() -> None:
    calls, go = [], asyncio.Event()

    async def leave() -> None:
        calls.append("leave")
        await go.wait()

    handler = ShutdownHandler(leave)
    first = asyncio.create_task(handler(EVENT))
    await asyncio.sleep(0)
    await handler(EVENT)
    go.set()
    await first
    await handler(EVENT)
    assert calls == ["leave"]


async def test_its_function_may_take_the_event() -> None:
    got: list[object] = []
    await ShutdownHandler(got.append)(EVENT)
    assert got == [EVENT]


async def test_without_a_function_and_a_lifetime_it_does_nothing() -> None:
    await ShutdownHandler()(EVENT)


async def test_an_error_of_the_function_is_raised() -> None:
    def fail() -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        await ShutdownHandler(fail)(EVENT)


def test_its_function_is_checked_when_given() -> None:
    with pytest.raises(TypeError):
        ShutdownHandler(lambda one, two: (one, two))


async def test_terminate_suspends_then_shuts_down() -> None:
    calls: list[str] = []
    suspend = SuspendHandler()
    suspend.on_suspend(lambda: calls.append("saved"))
    await TerminateHandler(suspend, ShutdownHandler(lambda: calls.append("down")))(TerminateEvent())
    assert calls == ["saved", "down"]
    assert suspend.suspended


async def test_terminate_waits_for_a_suspension_in_progress() -> None:
    calls, go = [], asyncio.Event()
    suspend = SuspendHandler()
    suspend.on_suspend(go.wait)
    suspend.on_suspend(lambda: calls.append("saved"))
    first = asyncio.create_task(suspend.suspend())
    await asyncio.sleep(0)
    last = asyncio.create_task(TerminateHandler(suspend, lambda _: calls.append("down"))(TerminateEvent()))
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(first, last)
    assert calls == ["saved", "down"]


async def test_handlers_get_the_events() -> None:
    got: list[Event] = []
    await TerminateHandler(got.append, got.append)(TerminateEvent())
    assert [event.topic for event in got] == ["lifecycle/suspend", "lifecycle/shutdown"]


async def test_either_may_be_missing() -> None:
    got: list[Event] = []
    await TerminateHandler(None, got.append)(TerminateEvent())
    await TerminateHandler(got.append, None)(TerminateEvent())
    assert [event.topic for event in got] == ["lifecycle/shutdown", "lifecycle/suspend"]


async def test_errors_of_both_are_raised_as_one_group() -> None:
    def fail(event: Event) -> None:
        raise (ValueError if event.topic == "lifecycle/suspend" else KeyError)(event.topic)

    with pytest.RaisesGroup(ValueError, KeyError):
        await TerminateHandler(fail, fail)(TerminateEvent())


async def test_terminate_shuts_down_after_a_failed_suspension() -> None:
    suspend = SuspendHandler()
    down: list[Any] = []

    @suspend.on_suspend
    def fail() -> None:
        raise OSError("no")

    with pytest.RaisesGroup(OSError):
        await TerminateHandler(suspend, down.append)(TerminateEvent())
    assert len(down) == 1


async def test_terminate_without_continue_on_failure_does_not_shut_down() -> None:
    suspend = SuspendHandler()
    down: list[Any] = []

    @suspend.on_suspend
    def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await TerminateHandler(suspend, down.append, continue_on_failure=False)(TerminateEvent())
    assert not down

"""A source that is held: nothing of it is taken, nothing of it is lost, and it does not hold up the end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.control import Event, RouteNotFound, Router
from lifecycle.sources import BaseSource
from lifecycle.testing import Clock, Recorder, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Suspending:
    """One that knows how to hold by itself."""

    name = "door"

    def __init__(self) -> None:
        self.calls: list[str] = []

    def suspend(self) -> None:
        self.calls.append("suspend")

    def resume(self) -> None:
        self.calls.append("resume")

    async def run(self, _: Any) -> None:
        await asyncio.Event().wait()


async def ticks() -> AsyncIterator[Event]:
    for number in range(1_000):
        await asyncio.sleep(1)
        yield Event(f"tick/{number}")


async def test_its_events_wait_and_none_is_lost(clock: Clock) -> None:
    router, seen = Router(), Recorder()
    router.add_source(ticks)
    router.handle("tick/*", seen)
    async with running(router):
        await clock.advance(2.5)
        router.hold_source("ticks")
        router.hold_source("ticks")
        assert [source.held for source in router.sources()] == [True]
        await clock.advance(100)
        assert seen.topics == ["tick/0", "tick/1"]
        router.release_source("ticks")
        router.release_source("ticks")
        await clock.advance(2.5)
    assert seen.topics == ["tick/0", "tick/1", "tick/2", "tick/3", "tick/4"]


async def test_one_that_can_suspend_itself_does_so() -> None:
    router, source = Router(), Suspending()
    router.add_source(source)
    async with running(router):
        router.hold_source("door")
        router.hold_source("door")
        router.release_source("door")
        router.release_source("door")
    assert source.calls == ["suspend", "resume"]


async def test_what_a_held_source_has_in_its_hands_is_delivered_at_the_end(clock: Clock) -> None:
    router, seen = Router(), Recorder()
    router.add_source(ticks)
    router.handle("tick/*", seen)
    async with running(router):
        router.hold_source("ticks")
        await clock.advance(3)
        assert seen.topics == []
    assert seen.topics == ["tick/0"]


async def test_a_hold_holds_for_one_that_is_pushed_into() -> None:
    router, seen, source = Router(), Recorder(), BaseSource("pushed")
    router.add_source(source)
    router.handle("**", seen)
    async with running(router):
        router.hold_source("pushed")
        pushed = asyncio.create_task(source.emit(Event("a")))
        for _ in range(5):
            await asyncio.sleep(0)
        assert seen.topics == []
        router.release_source("pushed")
        await pushed
    assert seen.topics == ["a"]


async def test_a_name_that_no_source_has_is_refused() -> None:
    with pytest.raises(RouteNotFound, match=r"no source of router 'router' is called 'x'; router.sources\(\) lists"):
        Router().hold_source("x")
    with pytest.raises(RouteNotFound, match="'x'"):
        Router().release_source("x")


async def test_what_a_held_source_has_in_its_hands_is_delivered_also_where_there_is_no_room_yet() -> None:
    router, seen, go_on = Router(buffer=1), Recorder(), asyncio.Event()

    async def numbers() -> AsyncIterator[Event]:
        yield Event("number/1")

    @router.on("**")
    async def slow(event: Event) -> None:
        await go_on.wait()
        seen(event)

    router.add_source(numbers)
    router.hold_source(router.sources()[0].name)
    async with running(router):
        first = router.emit_nowait(Event("busy"))
        await asyncio.sleep(0)
        second = router.emit_nowait(Event("full"))
        router.stop()
        for _ in range(10):
            await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(first, second)
    assert seen.topics == ["busy", "full", "number/1"]


async def test_the_end_of_the_router_ends_the_pause() -> None:
    router, source, silent = Router(), Suspending(), BaseSource("silent")
    router.add_source(source)
    router.add_source(silent)
    async with running(router):
        router.hold_source("door")
        router.hold_source("silent")
    assert source.calls == ["suspend", "resume"]
    assert not any(each.held for each in router.sources())


async def test_one_that_cannot_be_resumed_does_not_hold_up_the_others(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Suspending):
        def resume(self) -> None:
            raise ValueError("rusty")

    router, source = Router(), Suspending()
    source.name = "other"
    router.add_source(Stuck())
    router.add_source(source)
    async with running(router):
        router.hold_source("door")
        router.hold_source("other")
    assert source.calls == ["suspend", "resume"]
    assert "source 'door' could not be resumed" in caplog.text

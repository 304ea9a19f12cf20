"""Taps and subscriptions look on: they see everything and cannot stop or change anything."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lifecycle.control import Event, NotHandled, Router, notify
from lifecycle.testing import Clock, Recorder, running


async def test_a_tap_sees_every_matching_event_whoever_takes_it(clock: Clock) -> None:
    router, taken = Router(), Recorder()
    plain, awaited = Recorder(), Recorder()

    async def tap(event: Event) -> None:
        awaited(event)

    router.handle("a", taken)
    router.tap("*", plain)
    router.tap("*", tap)
    router.tap("other/*", plain)
    async with running(router):
        await (await router.emit(Event("a")))
        with pytest.raises(NotHandled):
            await router.emit(Event("nobody"))
        await router.dispatch(Event("a"))
        with pytest.raises(NotHandled):
            await router.dispatch(Event("nobody"))
    assert plain.topics == ["a", "nobody"] * 2
    assert sorted(awaited.topics) == sorted(plain.topics)
    assert taken.topics == ["a", "a"]


@pytest.mark.parametrize("error", [RuntimeError("tap"), NotHandled("tap"), asyncio.CancelledError()])
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_tap_that_raises_is_logged_and_stops_nothing(
    clock: Clock, recorder: Recorder, caplog: pytest.LogCaptureFixture, error: BaseException, kind: str
) -> None:
    router = Router()

    def plain(_event: Event) -> None:
        raise error

    async def awaited(_event: Event) -> None:
        raise error

    router.handle("a", recorder)
    router.tap("a", plain if kind == "plain" else awaited)
    async with running(router):
        await (await router.emit(Event("a")))
        await router.dispatch(Event("a"))
    assert len(recorder.events) == 2
    assert caplog.text.count("the tap") == 2
    assert router.state().failed == 0


async def test_a_tap_that_hangs_holds_up_no_lane_and_counts_what_it_missed(clock: Clock, recorder: Recorder) -> None:
    router = Router(buffer=2, drain_timeout=1)

    async def hangs(_event: Event) -> None:
        await asyncio.Event().wait()

    router.handle("a", recorder)
    tap = router.tap("a", hangs)
    async with running(router):
        for _ in range(10):
            await (await router.emit(Event("a")))
        assert len(recorder.events) == 10
        assert tap.missed > 0
    assert clock.time() < 5


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_tap_whose_handler_drops_an_event_counts_it_as_missed(
    clock: Clock, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    router, queue = Router(), asyncio.Queue[Any](1)
    put = notify(queue)

    async def put_later(event: Event) -> None:
        put(event)

    router.handle("a", Recorder())
    tap = router.tap("a", put if kind == "plain" else put_later)
    async with running(router):
        for _ in range(3):
            await (await router.emit(Event("a")))
        await clock.settle()
        await router.dispatch(Event("a"))
    assert (queue.qsize(), tap.missed, router.taps()[0].missed) == (1, 3, 3)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_removed_tap_sees_no_more(clock: Clock) -> None:
    router, seen = Router(), Recorder()
    router.handle("a", Recorder())
    taps = [router.tap("*", seen), router.tap("*", seen)]
    await router.dispatch(Event("a"))
    taps[0].remove()
    taps[0].remove()
    await router.dispatch(Event("a"))
    taps[1].remove()
    await router.dispatch(Event("a"))
    assert len(seen.events) == 3
    assert router.taps() == []


async def test_a_tap_may_come_and_go_while_events_flow(clock: Clock) -> None:
    router, seen = Router(), list[Any]()

    def once(event: Event) -> None:
        seen.append(event.data)
        tap.remove()

    router.handle("a", Recorder())
    tap = router.tap("a", once)
    async with running(router):
        for number in range(3):
            await (await router.emit(Event("a", number)))
    assert seen == [0]


# -- subscriptions -----------------------------------------------------------------------------------------------


async def test_a_subscription_is_the_matching_events_in_order(clock: Clock) -> None:
    router, got = Router(), list[Any]()
    router.handle("**", Recorder())
    async with running(router), router.subscribe("a/*") as events:
        for number in range(3):
            await router.emit(Event("a/x", number))
            await router.emit(Event("b/x", number))
        async for event in events:
            got.append(event)
            if len(got) == 3:
                break
    assert got == [Event("a/x", number) for number in range(3)]


async def test_a_full_subscription_drops_the_oldest_and_counts_it(clock: Clock) -> None:
    router = Router()
    router.handle("a", Recorder())
    async with running(router), router.subscribe(maxsize=3) as events:
        for number in range(10):
            await router.emit(Event("a", number))
        assert events.dropped == 7
        assert [await anext(events) for _ in range(3)] == [Event("a", number) for number in (7, 8, 9)]


async def test_a_subscription_ends_with_its_block_also_for_one_who_waits(clock: Clock) -> None:
    router, got = Router(), list[Any]()
    router.handle("a", Recorder())
    async with running(router):
        async with router.subscribe() as events:

            async def read() -> None:
                async for event in events:
                    got.append(event)

            reading = asyncio.create_task(read())
            await router.emit(Event("a"))
            await clock.settle()
        await reading
        await router.emit(Event("a"))
    assert len(got) == 1


async def test_a_subscription_without_its_block_says_so() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        async for _ in Router().subscribe():
            pass
    with pytest.raises(ValueError, match="maxsize=0"):
        Router().subscribe(maxsize=0)

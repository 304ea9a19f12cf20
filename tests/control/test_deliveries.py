"""Deliveries: awaiting a delivery returns or raises the result of its event."""

from __future__ import annotations

import asyncio
import gc
import traceback
import tracemalloc
import weakref
from typing import Any

import pytest

from lifecycle.control import Delivery, Event, NotHandled, Router, delivery
from lifecycle.errors import LifecycleError
from lifecycle.testing import Clock, Recorder, running


async def slow(_event: Event) -> None:
    await asyncio.sleep(1)


async def test_a_delivery_is_done_when_the_handler_has_ended(clock: Clock) -> None:
    router = Router()
    router.handle("a", slow)
    async with running(router):
        sent = await router.emit(Event("a", 7))
        assert (sent.done, sent.error, sent.event, sent.attempt) == (False, None, Event("a", 7), 1)
        await sent
        assert clock.time() == 1
        assert sent.done
        await sent  # a second await returns as well


async def test_cancelling_one_waiter_of_a_delivery_does_not_affect_the_others(clock: Clock) -> None:
    router = Router()
    router.handle("a", slow)

    async def wait_for(sent: Delivery) -> str:
        await sent
        return "told"

    async with running(router):
        sent = await router.emit(Event("a"))
        waiters = [asyncio.create_task(wait_for(sent)) for _ in range(4)]
        await clock.advance(0.5)
        waiters[1].cancel()
        await clock.advance(1)
        assert [waiter.cancelled() or waiter.result() for waiter in waiters] == ["told", True, "told", "told"]
    assert router.state().handled == 1


async def test_an_error_that_is_awaited_often_keeps_its_traceback(clock: Clock) -> None:
    router = Router()

    @router.on("a")
    async def failing(_event: Event) -> None:
        raise OSError("no disk")

    async with running(router):
        sent = await router.emit(Event("a"))
        await clock.settle()
        frames = list[list[str]]()
        for _ in range(3):
            with pytest.raises(OSError, match="no disk") as caught:
                await sent
            frames.append([each.name for each in traceback.extract_tb(caught.value.__traceback__)])
    assert frames[0][-1] == "failing"
    assert frames[0] == frames[1] == frames[2]


async def test_a_cancelled_wait_for_a_delivery_does_not_cancel_the_handler(clock: Clock) -> None:
    router = Router()
    router.handle("a", slow)
    async with running(router):
        sent = await router.emit(Event("a"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await sent
        await sent


async def test_deliveries_have_increasing_ids_and_parents(clock: Clock) -> None:
    router, seen = Router(), list[Delivery]()

    async def outer(_event: Event) -> None:
        seen.append(delivery())
        seen.append(await router.emit(Event("inner")))
        await seen[1]
        assert delivery() is seen[0]

    async def inner(_event: Event) -> None:
        assert delivery() is seen[1] or delivery().parent is seen[0]
        seen.append(await router.emit(Event("leaf")))
        await seen[-1]

    router.handle("outer", outer)
    router.handle("inner", inner)
    router.handle("leaf", Recorder())
    async with running(router):
        first = await router.emit(Event("outer"))
        await first
    assert seen[0] is first
    ids = [each.id for each in seen]
    assert ids == sorted(set(ids))
    assert first.parent is None
    assert [each.parent for each in seen[1:]] == [seen[0], seen[1]]


def test_outside_a_handler_the_current_delivery_is_none() -> None:
    with pytest.raises(LookupError, match="no event is being handled"):
        delivery()


async def test_concurrent_handlers_do_not_see_each_others_delivery(clock: Clock) -> None:
    router, seen = Router(), dict[int, bool]()

    async def check(event: Event) -> None:
        mine = delivery()
        await asyncio.sleep(1 - event.data / 10)
        seen[event.data] = delivery() is mine and mine.event is event

    router.handle("a", check, concurrency=5)
    async with running(router):
        for number in range(5):
            await router.emit(Event("a", number))
        await clock.advance(3)
    assert seen == dict.fromkeys(range(5), True)


async def test_a_source_started_by_a_handler_has_no_parent(clock: Clock) -> None:
    router, parents = Router(), list[object]()

    async def source() -> Any:
        yield Event("b")

    router.handle("a", lambda _: router.add_source(source))
    router.handle("b", lambda _: parents.append(delivery().parent))
    async with running(router):
        await (await router.emit(Event("a")))
        await clock.advance(1)
    assert parents == [None]


async def test_a_chain_of_events_does_not_keep_all_ancestors(clock: Clock) -> None:
    class Told(Event):
        __slots__ = ("__weakref__",)

    router, kept = Router(), weakref.WeakSet[Any]()
    most = 0

    async def cause(event: Told) -> None:
        nonlocal most
        kept.add(event)
        if event.data % 100 == 0:
            gc.collect()
            most = max(most, len(kept))
        if event.data < 2000:
            router.emit_nowait(Told("a", event.data + 1))

    router.handle("a", cause)
    async with running(router):
        await router.emit(Told("a", 0))
        await clock.settle()
    assert router.state().handled == 2001
    assert most < 100


async def test_an_event_that_waits_when_the_router_is_cancelled_is_dropped_and_logged(clock: Clock) -> None:
    router = Router()
    router.handle("a", slow)
    router.handle("b", Recorder(), debounce=5)
    task = asyncio.create_task(router.run())
    await clock.settle()
    sent = [await router.emit(Event(topic)) for topic in "aab"]
    await clock.settle()
    task.cancel()
    for each in sent:
        with pytest.raises(NotHandled, match="stopped"):
            await each
    await asyncio.wait([task])
    assert router.state().dropped == 3


async def test_the_repr_of_a_delivery_has_its_result(clock: Clock) -> None:
    router = Router()
    router.handle("a", lambda event: event.data())

    def fail() -> None:
        raise ValueError("no")

    async with running(router):
        good, bad = await router.emit(Event("a", int)), await router.emit(Event("a", fail))
        assert "pending" in repr(good)
        await good
        with pytest.raises(ValueError, match="no"):
            await bad
    assert "delivered" in repr(good)
    assert "ValueError('no')" in repr(bad)


async def test_the_handler_of_a_repeated_event_sees_the_attempt(clock: Clock) -> None:
    router, seen = Router(), []

    def look(_event: Event) -> None:
        seen.append(delivery().attempt)

    router.handle("a", look)
    router.handle("merged", look, debounce=1)
    async with running(router):
        (await router.emit(Event("a"))).again(3)
        for attempt in (1, 4, 2):
            sent = await router.emit(Event("merged"))
            sent.again(attempt)
            assert sent.attempt == attempt
        await clock.advance(2)
    assert seen == [3, 4]


def passing(router: Router, pattern: str, lane: str) -> None:
    @router.on(pattern, lane=lane)
    async def pass_on(_event: Event) -> None:
        await asyncio.sleep(1)
        raise NotHandled("not mine")


async def test_awaiting_an_event_that_is_passed_on_into_the_lane_of_the_waiting_handler_is_refused(
    clock: Clock,
) -> None:
    router = Router()
    passing(router, "b/1", lane="other")
    recorder = Recorder()
    router.handle("b/*", recorder, lane="own")

    @router.on("a", lane="own")
    async def wait(_event: Event) -> None:
        await (await router.emit(Event("b/1")))

    async with running(router):
        with pytest.raises(LifecycleError, match="lane 'own' can handle it only after"):
            async with asyncio.timeout(60):
                await (await router.emit(Event("a")))
        assert clock.time() == 1
    assert recorder.topics == ["b/1"]


async def test_awaiting_an_event_does_not_block_the_lane_that_it_has_left(clock: Clock) -> None:
    router = Router()
    passing(router, "b/1", lane="left")
    router.handle("b/*", slow, lane="entered")

    @router.on("a/*", lane="own")
    async def wait(event: Event) -> None:
        if event.topic == "a/1":
            await (await router.emit(Event("b/1")))

    @router.on("c", lane="left")
    async def call(_event: Event) -> None:
        await (await router.emit(Event("a/2")))

    async with running(router):
        first = await router.emit(Event("a/1"))
        await asyncio.sleep(1.5)
        second = await router.emit(Event("c"))
        await first
        await second
        assert clock.time() == 2


async def test_lanes_of_removed_routes_are_released(clock: Clock) -> None:
    router = Router()
    tracemalloc.start()
    try:
        async with running(router):
            for rounds in (100, 2000):
                before = tracemalloc.get_traced_memory()[0]
                for _ in range(rounds):
                    router.handle("a", slow, replace=True)
                    sent = await router.emit(Event("a"))
                    await sent
                    router.handle("b", slow, replace=True)
                    sent = await router.emit(Event("b"))
                    router.remove("b")
                    await sent
                gc.collect()
                grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 200_000, grown

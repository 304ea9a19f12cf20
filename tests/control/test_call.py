"""`Router.call`: emits an event, waits for its handler, and returns the handler's value."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.control import Dropped, Event, NotHandled, Router
from lifecycle.errors import LifecycleError
from lifecycle.testing import running

if TYPE_CHECKING:
    from lifecycle.testing import Clock


async def slow(event: Event) -> Any:
    await asyncio.sleep(1)
    return event.data


@pytest.mark.parametrize("settings", [{}, {"debounce": 1}, {"lane": lambda event: event.topic}, {"busy": "restart"}])
async def test_a_call_returns_the_value_of_the_handler(clock: Clock, settings: dict[str, Any]) -> None:
    router = Router()
    router.handle("a", slow, **settings)
    async with running(router):
        assert await router.call(Event("a", 7)) == 7
    assert router.state().handled == 1


async def test_a_call_raises_the_error_of_the_handler(clock: Clock) -> None:
    router = Router()

    @router.on("a")
    def fail(_event: Event) -> None:
        raise OSError("no disk")

    async with running(router):
        with pytest.raises(OSError, match="no disk"):
            await router.call(Event("a"))
        with pytest.raises(NotHandled, match="no route matches 'b'"):
            await router.call(Event("b"))


async def test_a_call_goes_through_the_lane_in_order(clock: Clock) -> None:
    router = Router()
    router.handle("a", slow)
    async with running(router):
        await router.emit(Event("a", 1))
        assert await router.call(Event("a", 2)) == 2
        assert clock.time() == 2


async def test_a_call_that_times_out_leaves_the_handler_running(clock: Clock) -> None:
    router = Router()
    router.handle("a", slow)
    async with running(router):
        with pytest.raises(TimeoutError):
            await router.call(Event("a"), timeout=0.5)
        assert clock.time() == 0.5
        await clock.advance(1)
    assert router.state().handled == 1


@pytest.mark.parametrize("wrong", [0, -1])
async def test_a_call_refuses_a_timeout_that_is_not_positive(wrong: float) -> None:
    router = Router()
    router.handle("a", slow)
    with pytest.raises(ValueError, match="timeout"):
        await router.call(Event("a"), timeout=wrong)
    assert router.state().routed == 0


async def test_a_handler_may_call_a_handler_of_another_lane(clock: Clock) -> None:
    router = Router()
    router.handle("inner", slow)

    @router.on("outer")
    async def outer(_event: Event) -> Any:
        return await router.call(Event("inner", 1)) + 1

    async with running(router):
        assert await router.call(Event("outer")) == 2


@pytest.mark.parametrize("settings", [{}, {"lane": lambda event: event.data, "concurrency": 3}])
async def test_a_call_into_the_own_lane_is_refused_at_once_and_sends_nothing(
    clock: Clock, settings: dict[str, Any]
) -> None:
    router = Router()

    async def handle(event: Event) -> Any:
        return await router.call(Event("a/2", event.data)) if event.topic == "a/1" else None

    router.handle("a/*", handle, **settings)
    async with running(router):
        with pytest.raises(LifecycleError, match="calls the handler of 'a/2', but lane"):
            await router.call(Event("a/1"))
        assert clock.time() == 0
    assert (router.state().routed, router.state().failed) == (1, 1)


async def test_a_call_in_a_cycle_of_lanes_is_refused(clock: Clock) -> None:
    router = Router()
    for topic, following in (("a", "b"), ("b", "c"), ("c", "a")):

        async def handle(_event: Event, following: str = following) -> Any:
            return await router.call(Event(following))

        router.handle(topic, handle)
    async with running(router):
        with pytest.raises(LifecycleError, match="calls the handler of 'a'"):
            await router.call(Event("a"))
    assert (router.state().routed, router.state().failed) == (3, 3)


async def test_a_handler_may_call_its_own_lane_while_the_lane_can_continue(clock: Clock) -> None:
    router = Router()

    @router.on("a", concurrency=2)
    async def handle(event: Event) -> Any:
        return await router.call(Event("a", event.data - 1)) if event.data == 1 else "done"

    async with running(router):
        assert await router.call(Event("a", 1)) == "done"


async def test_another_thread_emits_with_emit_threadsafe(clock: Clock) -> None:
    router = Router()
    router.handle("a", slow)
    with pytest.raises(RuntimeError, match="is not running"):
        router.emit_threadsafe(Event("a"))
    async with running(router):
        future = await asyncio.to_thread(router.emit_threadsafe, Event("a", 5))
        assert await (await asyncio.wrap_future(future)) == 5
        missing = await asyncio.to_thread(router.emit_threadsafe, Event("b"))
        with pytest.raises(NotHandled):
            await asyncio.wrap_future(missing)


async def test_a_call_of_an_event_that_is_dropped_raises(clock: Clock) -> None:
    router = Router()
    router.handle("a", slow, busy="drop")
    async with running(router):
        await router.emit(Event("a"))
        with pytest.raises(Dropped):
            await router.call(Event("a"))

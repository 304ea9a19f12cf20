"""Relays, which get events before their routes, and sources that receive their router."""

from __future__ import annotations

import asyncio

import pytest

from lifecycle.control import Event, LaneFull, NotHandled, Router
from lifecycle.control.router import add_relay, call_directly
from lifecycle.sources import Source
from lifecycle.testing import Clock, Recorder, running


def relaying(router: Router, *, goes_on: bool = True, concurrency: int = 1) -> Recorder:
    sent = Recorder()

    async def send(event: Event) -> bool:
        await asyncio.sleep(1)
        sent(event)
        return goes_on

    add_relay(router, "out/**", send, concurrency=concurrency)
    return sent


async def test_a_relay_gets_an_event_before_its_route(clock: Clock, recorder: Recorder) -> None:
    router = Router()
    sent = relaying(router)
    router.handle("out/a", recorder)
    router.handle("in/a", recorder)
    async with running(router):
        delivery = await router.emit(Event("out/a"))
        assert (sent.topics, recorder.topics) == ([], [])
        await delivery
        await (await router.emit(Event("in/a")))
        await call_directly(router, Event("out/a"))
    assert sent.topics == ["out/a"] * 2
    assert recorder.topics == ["out/a", "in/a", "out/a"]


async def test_a_relayed_event_counts_as_handled_without_a_route(clock: Clock) -> None:
    router = Router()
    sent = relaying(router)

    @router.on("out/declined")
    async def decline(event: Event) -> None:
        raise NotHandled("not mine")

    router.fallback(fallback := Recorder())
    async with running(router):
        for topic in ("out/nobody", "out/declined"):
            await (await router.emit(Event(topic)))
            await call_directly(router, Event(topic))
    assert sent.topics == ["out/nobody"] * 2 + ["out/declined"] * 2
    assert fallback.topics == []
    assert router.state().unrouted == 0


async def test_an_event_that_a_relay_keeps_counts_as_handled(clock: Clock, recorder: Recorder) -> None:
    router = Router()
    sent = relaying(router, goes_on=False)
    router.handle("out/a", recorder)
    async with running(router):
        await (await router.emit(Event("out/a")))
        await call_directly(router, Event("out/a"))
    assert (len(sent.events), len(recorder.events)) == (2, 0)


async def test_a_relay_that_raises_not_handled_does_not_affect_the_event(clock: Clock, recorder: Recorder) -> None:
    router = Router()

    async def decline(event: Event) -> bool:
        raise NotHandled("not mine")

    add_relay(router, "**", decline)
    router.handle("a", recorder)
    async with running(router):
        await (await router.emit(Event("a")))
        with pytest.raises(NotHandled):
            await (await router.emit(Event("nobody")))
        with pytest.raises(NotHandled):
            await call_directly(router, Event("nobody"))
    assert recorder.topics == ["a"]
    assert router.state().unrouted == 1


async def test_an_event_that_a_relay_cannot_send_fails_and_is_not_routed(clock: Clock, recorder: Recorder) -> None:
    router = Router()

    async def fail(event: Event) -> bool:
        raise OSError("no line")

    add_relay(router, "a", fail)
    router.handle("a", recorder)
    async with running(router):
        with pytest.raises(OSError, match="no line"):
            await (await router.emit(Event("a")))
        with pytest.raises(OSError, match="no line"):
            await call_directly(router, Event("a"))
    assert recorder.events == []
    assert router.state().failed == 1


async def test_relays_run_one_after_the_other_and_an_error_of_the_route_is_raised(clock: Clock) -> None:
    router, order = Router(), list[str]()

    def relay(name: str) -> None:
        async def take(event: Event) -> bool:
            order.append(name)
            return True

        add_relay(router, "a", take)

    relay("first")
    relay("second")

    @router.on("a")
    async def handle(event: Event) -> None:
        order.append("route")
        raise ValueError("handler")

    async with running(router):
        with pytest.raises(ValueError, match="handler"):
            await (await router.emit(Event("a")))
        with pytest.raises(ValueError, match="handler"):
            await call_directly(router, Event("a"))
    assert order == ["first", "second", "route"] * 2


async def test_a_relay_gets_each_event_of_a_burst_before_it_is_debounced(clock: Clock, recorder: Recorder) -> None:
    router = Router()
    sent = relaying(router)
    router.handle("out/a", recorder, debounce=5.0)
    async with running(router):
        deliveries = [await router.emit(Event("out/a", number)) for number in range(5)]
        for delivery in deliveries:
            await delivery
    assert [event.data for event in sent.events] == [0, 1, 2, 3, 4]
    assert [event.data for event in recorder.events] == [4]


async def test_a_stopping_router_relays_its_waiting_events(clock: Clock, recorder: Recorder) -> None:
    router = Router()
    sent = relaying(router)
    router.handle("out/a", recorder)
    async with running(router):
        for _ in range(3):
            await router.emit(Event("out/a"))
    assert (len(sent.events), len(recorder.events)) == (3, 3)


async def test_a_removed_relay_finishes_its_events_and_takes_no_more(clock: Clock, recorder: Recorder) -> None:
    router, sent = Router(), Recorder()

    async def send(event: Event) -> bool:
        await asyncio.sleep(1)
        sent(event)
        return True

    remove = add_relay(router, "out/*", send)
    router.handle("out/a", recorder)
    async with running(router):
        await router.emit(Event("out/a"))
        remove()
        remove()
        await (await router.emit(Event("out/a")))
        await asyncio.sleep(2)
    assert (len(sent.events), len(recorder.events)) == (1, 2)
    assert router.state().routed == 3


async def test_emit_waits_for_a_full_relay(clock: Clock) -> None:
    router = Router(buffer=1)
    sent = relaying(router)
    async with running(router):
        for _ in range(2):
            router.emit_nowait(Event("out/a"))
        with pytest.raises(LaneFull):
            router.emit_nowait(Event("out/a"))
        await (await router.emit(Event("out/a")))
    assert len(sent.events) == 3


def test_a_relay_needs_a_concurrency_above_zero() -> None:
    with pytest.raises(ValueError, match="concurrency=0"):
        relaying(Router(), concurrency=0)


async def test_a_source_with_use_router_gets_its_router() -> None:
    received: list[Router] = []

    class Both(Source):
        def use_router(self, router: Router) -> None:
            received.append(router)

        async def run(self, emit: object) -> None: ...

    router = Router()
    router.add_source(Both())
    assert received == [router]

"""Taps, subscriptions and relays: handlers that receive events in addition to routes, or before them."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from lifecycle.control import Event, LaneFull, NotHandled, Router, Tap, notify
from lifecycle.control.taps import add_relay
from lifecycle.testing import Clock, Recorder, running


async def test_a_tap_sees_every_matching_event_whichever_route_takes_it(clock: Clock) -> None:
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


async def test_a_tap_that_hangs_blocks_no_lane_and_counts_missed_events(clock: Clock, recorder: Recorder) -> None:
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


async def test_a_tap_that_is_a_lambda_around_an_async_function_runs_in_order_and_once(clock: Clock) -> None:
    router, calls, seen = Router(), list[int](), list[int]()

    async def audit(event: Event) -> None:
        await asyncio.sleep(1)
        seen.append(event.data)

    def tap(event: Event) -> Any:
        calls.append(event.data)
        return audit(event)

    router.handle("a", Recorder())
    tapped = router.tap("a", tap)
    router.emit_nowait(Event("a", 0))
    async with running(router):
        for number in (1, 2):
            await router.emit(Event("a", number))
        await clock.advance(5)
        await router.dispatch(Event("a", 3))
    assert calls == seen == [0, 1, 2, 3]
    assert tapped.missed == 0


async def test_a_tap_whose_lane_is_full_closes_the_coroutine_and_counts_the_event(clock: Clock) -> None:
    router, seen = Router(buffer=0), list[int]()

    async def audit(event: Event) -> None:
        seen.append(event.data)

    def tap(event: Event) -> Any:
        return audit(event)

    router.handle("a", Recorder(), concurrency=5)
    tapped = router.tap("a", tap)
    for number in range(3):
        router.emit_nowait(Event("a", number))
    assert tapped.missed == 2
    async with running(router):
        await clock.settle()
    assert seen == [0]


async def test_a_stopping_router_closes_the_coroutine_of_a_tap_that_waits(clock: Clock) -> None:
    router, seen = Router(drain_timeout=0), list[int]()

    async def audit(event: Event) -> None:
        seen.append(event.data)
        await asyncio.sleep(1)

    def tap(event: Event) -> Any:
        return audit(event)

    router.handle("a", Recorder())
    router.tap("a", tap)
    async with running(router):
        for number in range(3):
            await router.emit(Event("a", number))
        await clock.settle()
    gc.collect()  # a coroutine that was never awaited would warn
    assert seen == [0]


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


async def test_a_tap_has_not_missed_the_events_of_a_router_that_stops(clock: Clock) -> None:
    router = Router(drain_timeout=0.1)

    async def slow(_event: Event) -> None:
        await asyncio.sleep(60)

    router.handle("a", Recorder())
    tap = router.tap("a", slow)
    async with running(router):
        for _ in range(3):
            await router.emit(Event("a"))
        await clock.settle()
        assert tap.info().waiting == 2
    assert (tap.missed, tap.info().waiting) == (0, 0)


async def test_a_tap_that_another_tap_removes_sees_no_more(clock: Clock) -> None:
    router, seen = Router(), Recorder()

    async def second(event: Event) -> None:
        seen(event)

    router.handle("a", Recorder())
    router.tap("a", lambda _: removed.remove())
    removed: Tap = router.tap("a", second)
    async with running(router):
        await (await router.emit(Event("a")))
        await clock.settle()
    assert seen.topics == []


async def test_a_tap_can_be_added_and_removed_while_the_router_runs(clock: Clock) -> None:
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


async def test_a_subscription_ends_with_its_block_even_for_a_waiting_reader(clock: Clock) -> None:
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


async def test_a_subscription_without_its_block_raises() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        async for _ in Router().subscribe():
            pass
    with pytest.raises(ValueError, match="maxsize=0"):
        Router().subscribe(maxsize=0)


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
        await router.dispatch(Event("out/a"))
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
            await router.dispatch(Event(topic))
    assert sent.topics == ["out/nobody"] * 2 + ["out/declined"] * 2
    assert fallback.topics == []
    assert router.state().unrouted == 0


async def test_an_event_that_a_relay_keeps_counts_as_handled(clock: Clock, recorder: Recorder) -> None:
    router = Router()
    sent = relaying(router, goes_on=False)
    router.handle("out/a", recorder)
    async with running(router):
        await (await router.emit(Event("out/a")))
        await router.dispatch(Event("out/a"))
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
            await router.dispatch(Event("nobody"))
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
            await router.dispatch(Event("a"))
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
            await router.dispatch(Event("a"))
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

    class Both:
        def use_router(self, router: Router) -> None:
            received.append(router)

        async def run(self, emit: object) -> None: ...

    router = Router()
    router.add_source(Both())
    assert received == [router]

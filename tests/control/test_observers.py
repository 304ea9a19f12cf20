"""`Router.observe` and `Router.subscribe`: what sees an event in addition to the handler of its route."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.control import Event, NotHandled, Router, notify
from lifecycle.observe import EventLog
from lifecycle.testing import Recorder, running

if TYPE_CHECKING:
    from lifecycle.testing import Clock


async def test_an_observer_gets_every_event_whichever_route_takes_it(clock: Clock, recorder: Recorder) -> None:
    router, seen = Router(), Recorder()
    router.handle("a/*", recorder)
    router.observe("a/**", seen)
    router.observe("a/**", seen)
    router.observe("b", seen)
    async with running(router):
        for topic in ("a/x", "a/y"):
            await router.call(Event(topic))
        with pytest.raises(NotHandled):
            await router.emit(Event("a"))
    assert recorder.topics == ["a/x", "a/y"]
    assert sorted(seen.topics) == ["a", "a", "a/x", "a/x", "a/y", "a/y"]


@pytest.mark.parametrize("error", [RuntimeError("also"), asyncio.CancelledError()])
async def test_errors_of_an_observer_are_counted_and_change_no_delivery(
    clock: Clock, recorder: Recorder, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    router = Router()

    async def fail(_event: Event) -> None:
        raise error

    router.handle("a", recorder)
    router.observe("a", fail)
    async with running(router):
        for _ in range(2):
            await router.call(Event("a"))
    assert len(recorder.events) == 2
    assert (router.state().handled, router.state().failed) == (2, 2)
    assert caplog.text.count("fail failed on a (route 'a (observed by fail)')") == 2


async def test_an_observer_that_declines_passes_nothing_on(clock: Clock, recorder: Recorder) -> None:
    router = Router()

    async def decline(_event: Event) -> None:
        raise NotHandled("not mine")

    router.handle("a", Recorder())
    router.observe("a", decline)
    router.fallback(recorder)
    async with running(router):
        await router.call(Event("a"))
    assert recorder.events == []
    assert (router.state().failed, router.state().unrouted) == (0, 0)


async def test_a_full_observer_misses_events_and_emit_does_not_wait(clock: Clock, recorder: Recorder) -> None:
    router = Router(buffer=1, drain_timeout=0)

    async def hang(_event: Event) -> None:
        await asyncio.Event().wait()

    router.handle("a", recorder)
    also = router.observe("a", hang)
    async with running(router):
        for _ in range(5):
            await (await router.emit(Event("a")))
        assert (len(recorder.events), also.missed, also.info().dropped) == (5, 3, 3)
        assert [(lane.name, lane.waiting) for lane in router.lanes()] == [("a (observed by hang)", 1), ("a", 0)]


async def test_an_observer_has_its_own_debounce_and_middleware(clock: Clock, recorder: Recorder) -> None:
    router, seen, wrapped = Router(), Recorder(), list[str]()

    def note(handler):  # type: ignore[no-untyped-def]  # like a user's code
        async def call(event: Event) -> None:
            wrapped.append(event.topic)
            await handler(event)

        return call

    router.handle("a", recorder)
    router.observe("a", seen, debounce=1, middleware=[note])
    router.use(note)
    for _ in range(2):
        async with running(router):
            for number in range(3):
                await (await router.emit(Event("a", number)))
            assert len(seen.events) in {0, 1}
            await clock.advance(2)
    assert [event.data for event in seen.events] == [2, 2]
    assert len(wrapped) == 6 + 2 * 2


async def test_an_observer_restarts_by_key(clock: Clock) -> None:
    router, done = Router(), list[str]()

    async def index(event: Event) -> None:
        await asyncio.sleep(1)
        done.append(event.data)

    router.handle("a", Recorder())
    router.observe("a", index, busy="restart", lane=lambda event: event.data[0], concurrency=2)
    async with running(router):
        for data in ("a1", "b1", "a2"):
            await (await router.emit(Event("a", data)))
        await clock.advance(3)
    assert sorted(done) == ["a2", "b1"]


async def test_a_removed_observer_finishes_its_events(clock: Clock) -> None:
    router, seen = Router(), Recorder()
    router.handle("a", Recorder())
    also = router.observe("a", seen, debounce=5)
    async with running(router):
        await (await router.emit(Event("a", 1)))
        also.remove()
        also.remove()
        await (await router.emit(Event("a", 2)))
        await clock.settle()
        assert [event.data for event in seen.events] == [1]
    assert (len(router.routes()), router.state().routed) == (1, 3)


async def test_routes_and_explain_list_observers_last(clock: Clock) -> None:
    router = Router()

    async def audit(_event: Event) -> None:
        pass

    router.observe("**", audit)
    router.observe("**", audit)
    router.handle("order/*", audit)
    listed = [("order/*", False), ("** (observed by audit)", True), ("** (observed by audit 2)", True)]
    assert [(info.pattern, info.also) for info in router.routes()] == listed
    assert [(info.pattern, info.also) for info in router.explain("order/1")] == listed
    assert router.state().routes == 3
    async with EventLog() as log, running(router):
        explanation = log.explain("order/1")
        nothing = log.explain("nothing")
    assert [each.pattern for each in explanation.matches] == ["order/*"]
    assert "the event also goes to" in explanation.lines[1]
    assert nothing.verdict.startswith("no route matches")
    assert len(nothing.also) == 2


def test_wrong_settings_of_an_observer_are_refused() -> None:
    router = Router()
    with pytest.raises(ValueError, match="busy='skip'"):
        router.observe("a", Recorder(), busy="skip")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="concurrency=0"):
        router.observe("a", Recorder(), concurrency=0)
    with pytest.raises(TypeError, match="lane="):
        router.observe("a", Recorder(), lane=7)  # type: ignore[arg-type]
    assert router.routes() == []


async def test_an_observer_whose_handler_drops_an_event_counts_it_as_missed(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    router, queue = Router(), asyncio.Queue[Any](1)
    router.handle("a", Recorder())
    observed = router.observe("a", notify(queue))
    async with running(router):
        for _ in range(3):
            await (await router.emit(Event("a")))
        await clock.settle()
    assert (queue.qsize(), observed.missed) == (1, 2)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_an_observer_that_is_a_lambda_around_an_async_function_runs(clock: Clock) -> None:
    router, seen = Router(), list[int]()

    async def audit(event: Event) -> None:
        await asyncio.sleep(1)
        seen.append(event.data)

    router.handle("a", Recorder())
    router.observe("a", lambda event: audit(event))  # noqa: PLW0108  # a lambda is a separate kind of handler
    async with running(router):
        for number in range(3):
            await router.emit(Event("a", number))
        await clock.advance(5)
    assert seen == [0, 1, 2]


async def test_an_observer_may_remove_itself_and_others(clock: Clock) -> None:
    router, seen, later = Router(), list[int](), Recorder()

    def once(event: Event) -> None:
        seen.append(event.data)
        first.remove()
        second.remove()

    router.handle("a", Recorder())
    first = router.observe("a", once)
    second = router.observe("a", later)
    async with running(router):
        for number in range(3):
            await (await router.emit(Event("a", number)))
            await clock.settle()
    assert (seen, len(later.events)) == ([0], 1)
    assert len(router.routes()) == 1


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

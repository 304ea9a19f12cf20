"""`Router.also`: handlers that receive an event in addition to the handler of its route."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lifecycle.control import Event, NotHandled, Router
from lifecycle.observe import EventLog
from lifecycle.testing import Recorder, running

if TYPE_CHECKING:
    from lifecycle.testing import Clock


async def test_an_additional_route_gets_every_event_whichever_route_takes_it(clock: Clock, recorder: Recorder) -> None:
    router, seen = Router(), Recorder()
    router.handle("a/*", recorder)
    router.also("a/**", seen)
    router.also("a/**", seen)
    router.also("b", seen)
    async with running(router):
        await (await router.emit(Event("a/x")))
        await router.dispatch(Event("a/y"))
        with pytest.raises(NotHandled):
            await router.emit(Event("a"))
    assert recorder.topics == ["a/x", "a/y"]
    assert sorted(seen.topics) == ["a", "a", "a/x", "a/x", "a/y", "a/y"]


@pytest.mark.parametrize("error", [RuntimeError("also"), asyncio.CancelledError()])
async def test_errors_of_an_additional_route_are_counted_and_change_no_delivery(
    clock: Clock, recorder: Recorder, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    router = Router()

    async def fail(_event: Event) -> None:
        raise error

    router.handle("a", recorder)
    router.also("a", fail)
    async with running(router):
        await (await router.emit(Event("a")))
        await router.dispatch(Event("a"))
    assert len(recorder.events) == 2
    assert (router.state().handled, router.state().failed) == (1, 1)
    assert caplog.text.count("fail failed on a (route 'a (also fail)')") == 2


async def test_an_additional_route_that_declines_passes_nothing_on(clock: Clock, recorder: Recorder) -> None:
    router = Router()

    async def decline(_event: Event) -> None:
        raise NotHandled("not mine")

    router.handle("a", Recorder())
    router.also("a", decline)
    router.fallback(recorder)
    async with running(router):
        await (await router.emit(Event("a")))
        await router.dispatch(Event("a"))
    assert recorder.events == []
    assert (router.state().failed, router.state().unrouted) == (0, 0)


async def test_a_full_additional_route_misses_events_and_emit_does_not_wait(clock: Clock, recorder: Recorder) -> None:
    router = Router(buffer=1, drain_timeout=0)

    async def hang(_event: Event) -> None:
        await asyncio.Event().wait()

    router.handle("a", recorder)
    also = router.also("a", hang)
    async with running(router):
        for _ in range(5):
            await (await router.emit(Event("a")))
        assert (len(recorder.events), also.missed, also.info().waiting) == (5, 3, 1)
        assert [(lane.name, lane.waiting) for lane in router.lanes()] == [("a (also hang)", 1), ("a", 0)]


async def test_an_additional_route_has_its_own_debounce_and_middleware(clock: Clock, recorder: Recorder) -> None:
    router, seen, wrapped = Router(), Recorder(), list[str]()

    def note(handler):  # type: ignore[no-untyped-def]  # like a user's code
        async def call(event: Event) -> None:
            wrapped.append(event.topic)
            await handler(event)

        return call

    router.handle("a", recorder)
    router.also("a", seen, debounce=1, middleware=[note])
    router.use(note)
    for _ in range(2):
        async with running(router):
            for number in range(3):
                await (await router.emit(Event("a", number)))
            assert len(seen.events) in {0, 1}
            await clock.advance(2)
    assert [event.data for event in seen.events] == [2, 2]
    assert len(wrapped) == 6 + 2 * 2


async def test_an_additional_route_restarts_by_key(clock: Clock) -> None:
    router, done = Router(), list[str]()

    async def index(event: Event) -> None:
        await asyncio.sleep(1)
        done.append(event.data)

    router.handle("a", Recorder())
    router.also("a", index, busy="restart", lane=lambda event: event.data[0], concurrency=2)
    async with running(router):
        for data in ("a1", "b1", "a2"):
            await (await router.emit(Event("a", data)))
        await clock.advance(3)
    assert sorted(done) == ["a2", "b1"]


async def test_a_removed_additional_route_finishes_its_events(clock: Clock) -> None:
    router, seen = Router(), Recorder()
    router.handle("a", Recorder())
    also = router.also("a", seen, debounce=5)
    async with running(router):
        await (await router.emit(Event("a", 1)))
        also.remove()
        also.remove()
        await (await router.emit(Event("a", 2)))
        await clock.settle()
        assert [event.data for event in seen.events] == [1]
    assert (len(router.routes()), router.state().routed) == (1, 3)


async def test_routes_and_explain_list_additional_routes_last(clock: Clock) -> None:
    router = Router()

    async def audit(_event: Event) -> None:
        pass

    router.also("**", audit)
    router.also("**", audit)
    router.handle("order/*", audit)
    listed = [("order/*", False), ("** (also audit)", True), ("** (also audit 2)", True)]
    assert [(info.pattern, info.also) for info in router.routes()] == listed
    assert [(info.pattern, info.also) for info in router.explain("order/1")] == listed
    assert (router.state().routes, router.taps()) == (3, [])
    async with EventLog() as log, running(router):
        explanation = log.explain("order/1")
        nothing = log.explain("nothing")
    assert [each.pattern for each in explanation.matches] == ["order/*"]
    assert "the event also goes to" in explanation.lines[1]
    assert nothing.verdict.startswith("no route matches")
    assert len(nothing.also) == 2


def test_wrong_settings_of_an_additional_route_are_refused() -> None:
    router = Router()
    with pytest.raises(ValueError, match="busy='skip'"):
        router.also("a", Recorder(), busy="skip")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="concurrency=0"):
        router.also("a", Recorder(), concurrency=0)
    with pytest.raises(TypeError, match="lane="):
        router.also("a", Recorder(), lane=7)  # type: ignore[arg-type]
    assert router.routes() == []

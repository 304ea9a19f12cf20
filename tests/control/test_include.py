"""`Router.include`: programs of several modules, each with its own router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.control import Event, InvalidPattern, NotHandled, RouteConflict, Router
from lifecycle.testing import ManualSource, Recorder, running

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.testing import Clock


def note(name: str, seen: list[str]) -> Callable[[Any], Any]:
    def middleware(handler: Any) -> Any:
        async def call(event: Any) -> Any:
            seen.append(name)
            return await handler(event)

        return call

    return middleware


def shop() -> Router:
    router = Router("shop")

    @router.on("order/{id}")
    async def order(_event: Event, id: str) -> str:  # noqa: A002  # the name in the pattern
        return f"order {id}"

    @router.command
    def restock(item: str) -> str:
        return f"restocked {item}"

    return router


async def test_an_included_router_handles_events_under_its_prefix(clock: Clock) -> None:
    main = Router("main")
    main.include(shop(), prefix="shop")
    async with running(main):
        assert await main.call(Event("shop/order/7")) == "order 7"
        with pytest.raises(NotHandled):
            await main.emit(Event("order/7"))
    assert main.state().handled == 1


async def test_a_router_works_alone_and_without_a_prefix(clock: Clock) -> None:
    alone, main = shop(), Router("main")
    main.include(alone)
    for router in (alone, main):
        async with running(router):
            assert await router.call(Event("order/7")) == "order 7"
    assert (alone.state().handled, main.state().handled) == (1, 1)


async def test_middleware_of_both_routers_wraps_an_included_route(clock: Clock) -> None:
    inner, main, seen = Router("inner"), Router("main"), list[str]()
    inner.use(note("inner", seen))
    inner.handle("a", lambda _: seen.append("handler"), middleware=[note("own", seen)])
    main.use(note("main", seen))
    main.include(inner, prefix="x")
    main.use(note("later", seen))
    main.handle("b", lambda _: seen.append("b"))
    async with running(main):
        await main.call(Event("x/a"))
        assert seen == ["main", "later", "inner", "own", "handler"]
        seen.clear()
        await main.call(Event("b"))
    assert seen == ["main", "later", "b"]


async def test_observers_are_included(clock: Clock, recorder: Recorder) -> None:
    inner, main = Router("inner"), Router("main")
    inner.handle("a", Recorder())
    inner.observe("*", recorder)
    main.include(inner, prefix="x")
    async with running(main):
        await main.call(Event("x/a"))
        await clock.settle()
    assert recorder.topics == ["x/a"]


async def test_commands_are_included_without_the_prefix(clock: Clock) -> None:
    main = Router("main")
    main.include(shop(), prefix="shop")
    event = main.commands.parse("restock tea")
    assert event is not None
    async with running(main):
        assert await main.call(event) == "restocked tea"
    assert main.commands.words() == ("restock",)


async def test_settings_of_an_included_route_hold_and_shared_lanes_stay_apart(clock: Clock) -> None:
    inner, main, seen = Router("inner"), Router("main"), Recorder()
    inner.handle("a", seen, debounce=1)
    inner.handle("b", seen, lane="work", concurrency=2)
    main.handle("c", seen, lane="work", concurrency=3)
    main.include(inner, prefix="x")
    infos = {info.pattern: info for info in main.routes()}
    assert (infos["x/a"].debounce, infos["x/b"].lane, infos["c"].lane) == (1, "x/work", "work")
    async with running(main):
        for _ in range(3):
            await main.emit(Event("x/a"))
        await clock.advance(2)
    assert seen.topics == ["x/a"]


def test_explain_shows_where_each_route_came_from() -> None:
    innermost, inner, main = shop(), Router("inner"), Router("main")
    inner.include(innermost, prefix="shop")
    inner.handle("**", Recorder())
    main.include(inner)
    main.handle("shop/*/*", Recorder())
    explained = main.explain("shop/order/7")
    assert [(info.pattern, info.included_from) for info in explained] == [
        ("shop/order/{id}", "shop"),
        ("shop/*/*", None),
        ("**", "inner"),
    ]
    assert all("test_include.py:" in info.place for info in explained)


@pytest.mark.parametrize("taken", ["shop/order/*", "command"])
def test_a_conflict_includes_nothing(taken: str) -> None:
    main = Router("main")
    if taken == "command":
        main.command("restock", Recorder())
    else:
        main.handle(taken, Recorder())
    before = [info.pattern for info in main.routes()]
    with pytest.raises(RouteConflict, match=r"test_include\.py:.*test_include\.py:"):
        main.include(shop(), prefix="shop")
    assert [info.pattern for info in main.routes()] == before


def test_what_belongs_to_a_whole_program_is_not_included() -> None:
    with_source, with_fallback, main = Router("a"), Router("b"), Router("main")
    with_source.add_source(ManualSource())
    with_fallback.fallback(Recorder())
    for router, what in ((with_source, "sources"), (with_fallback, "a fallback"), (main, "itself")):
        with pytest.raises(ValueError, match=what):
            main.include(router)


def test_if_a_lane_or_an_observer_cannot_be_included_nothing_is() -> None:
    main, lanes, observing = Router("main"), Router("lanes"), Router("observing")
    main.handle("build", Recorder(), lane="builds", concurrency=2)
    lanes.handle("a", Recorder(), lane="new", concurrency=3)
    lanes.handle("b", Recorder(), lane="builds", concurrency=1)
    lanes.command("go", lambda: None)
    with pytest.raises(ValueError, match="concurrency of 2"):
        main.include(lanes)
    observing.handle("a", Recorder())
    observing.observe("{id}", Recorder())
    with pytest.raises(InvalidPattern):
        main.include(observing, prefix="{id}")
    assert [route.pattern for route in main.routes()] == ["build"]
    assert list(main.commands) == []
    assert [lane.name for lane in main.lanes()] == ["builds"]

"""Names in patterns: handler parameters that receive the values, and `Delivery.params`."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.control import (
    AsyncHandler,
    Debounce,
    Delivery,
    Event,
    FileBatch,
    FileEvent,
    NotHandled,
    RouteConflict,
    Router,
    debounce,
    delivery,
    log,
    once,
    recover,
    timeout,
)
from lifecycle.control.router import call_directly
from lifecycle.errors import LifecycleError
from lifecycle.testing import Recorder, running

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.testing import Clock

PATTERN = "device/{name}/{rest:**}"
TOPIC = "device/k7/temp/now"


class Handlers:
    """Handlers of every kind, with parameters for a pattern's names."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def plain(self, event: Event, name: str, rest: str) -> None:
        self.seen.append((event.topic, name, rest))

    async def asynchronous(self, event: Event, rest: str, name: str) -> None:
        self.seen.append((event.topic, name, rest))

    def keywords(self, event: Event, **names: str) -> None:
        self.seen.append((event.topic, names["name"], names["rest"]))

    def rest_of_the_arguments(self, *events: Event, name: str, rest: str = "") -> None:
        self.seen.append((events[0].topic, name, rest))

    def preset(self, label: int, event: Event, name: str, rest: str = "") -> None:
        assert label == 7
        self.seen.append((event.topic, name, rest))

    def awaitable(self, event: Event, name: str, rest: str) -> Any:
        return self.asynchronous(event, rest, name)

    def __call__(self, event: Event, name: str, rest: str) -> None:
        self.seen.append((event.topic, name, rest))


class AsyncHandlers(Handlers):
    async def __call__(self, event: Event, name: str, rest: str) -> None:  # type: ignore[override]  # it is async
        self.seen.append((event.topic, name, rest))


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    return call


KINDS: dict[str, Callable[[Handlers], Callable[..., Any]]] = {
    "plain": lambda it: it.plain,
    "async": lambda it: it.asynchronous,
    "keywords": lambda it: it.keywords,
    "args": lambda it: it.rest_of_the_arguments,
    "partial": lambda it: functools.partial(it.preset, 7),
    "partial of async": lambda it: functools.partial(it.asynchronous),
    "awaitable": lambda it: it.awaitable,
    "object": lambda it: it,
    "decorated": lambda it: decorated(it.plain),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("handlers", [Handlers, AsyncHandlers])
async def test_every_kind_of_handler_gets_the_names_it_declares(
    clock: Clock, kind: str, handlers: type[Handlers]
) -> None:
    router, it = Router(), handlers()
    router.handle(PATTERN, KINDS[kind](it))
    async with running(router):
        await (await router.emit(Event(TOPIC)))
        await call_directly(router, Event("device//x"))
    assert it.seen == [(TOPIC, "k7", "temp/now"), ("device//x", "", "x")]


async def test_a_handler_gets_only_the_names_it_declares(clock: Clock, recorder: Recorder) -> None:
    router, seen = Router(), list[Any]()
    router.handle(PATTERN, recorder)

    @router.on("room/{name}/{sensor}")
    async def room(event: Event, sensor: str, unit: str = "C") -> None:
        seen.append((sensor, unit))

    await call_directly(router, Event(TOPIC))
    await call_directly(router, Event("room/hall/temp"))
    assert recorder.topics == [TOPIC]
    assert seen == [("temp", "C")]


async def test_the_name_of_a_parameter_with_a_default_is_passed_if_the_pattern_has_it() -> None:
    router, seen = Router(), list[Any]()

    @router.on("unit/{unit}")
    @router.on("plain")
    def note(event: Event, unit: str = "none") -> None:
        seen.append(unit)

    await call_directly(router, Event("plain"))
    await call_directly(router, Event("unit/C"))
    assert seen == ["none", "C"]


# -- with middleware, lanes, additional routes and taps ------------------------------------------------------------


def passing(handler: AsyncHandler) -> AsyncHandler:
    @functools.wraps(handler)
    async def call(event: Any) -> None:
        await handler(event)

    return call


@pytest.mark.parametrize("function", ["plain", "asynchronous"])
@pytest.mark.parametrize("middleware", [once, recover(), log(), timeout(3), passing])
async def test_middleware_sees_a_handler_of_one_argument(clock: Clock, function: str, middleware: Any) -> None:
    router, it = Router(), Handlers()
    router.use(passing)
    router.handle(PATTERN, getattr(it, function), middleware=[middleware, passing])
    router.use(middleware)
    async with running(router):
        await (await router.emit(Event(TOPIC)))
    assert it.seen == [(TOPIC, "k7", "temp/now")]


async def test_middleware_sees_the_name_and_the_only_parameter_of_the_handler() -> None:
    router, seen = Router(), list[object]()

    def look(handler: AsyncHandler) -> AsyncHandler:
        seen.extend([handler.__name__, list(inspect.signature(handler).parameters)])
        return handler

    async def temp(event: Event, name: str) -> None: ...

    router.handle("device/{name}", temp, middleware=[look])
    assert seen == ["temp", ["event"]]
    assert router.routes()[0].handler.endswith("temp")


async def test_an_event_that_middleware_replaces_has_the_names_of_its_own_topic() -> None:
    router, it = Router(), Handlers()
    topics = iter(["device/other/x", "else"])

    def replacing(handler: AsyncHandler) -> AsyncHandler:
        return lambda _: handler(Event(next(topics)))

    router.handle(PATTERN, it.plain, middleware=[replacing])
    await call_directly(router, Event(TOPIC))
    assert it.seen == [("device/other/x", "other", "x")]
    with pytest.raises(
        LifecycleError,
        match=re.escape(f"'else' does not match {PATTERN!r}, so Handlers.plain cannot get its parameters"),
    ):
        await call_directly(router, Event(TOPIC))


async def test_the_newest_event_of_a_burst_has_the_names_of_its_own_topic(clock: Clock) -> None:
    router, it = Router(), Handlers()
    router.handle(PATTERN, it.plain, debounce=1)
    async with running(router):
        await router.emit(Event("device/a/x"))
        await (await router.emit(Event("device/b/y")))
    assert it.seen == [("device/b/y", "b", "y")]


async def test_names_in_keyed_lanes_and_after_a_route_that_passes_the_event_on(clock: Clock) -> None:
    router, seen = Router(), list[Any]()

    @router.on("device/{name}/temp", lane=lambda event: event.topic, concurrency=2)
    async def first(event: Event, name: str) -> None:
        seen.append(("first", name, dict(delivery().params)))
        raise NotHandled

    @router.on("device/{path:**}", busy="drop")
    async def second(event: Event, path: str) -> None:
        seen.append(("second", path, dict(delivery().params)))

    async with running(router):
        await (await router.emit(Event("device/a/temp")))
    assert seen == [("first", "a", {"name": "a"}), ("second", "a/temp", {"path": "a/temp"})]


async def test_observers_get_names(clock: Clock, recorder: Recorder) -> None:
    router, it = Router(), Handlers()
    router.handle("**", recorder)
    router.observe(PATTERN, it.plain)
    router.observe(PATTERN, it.plain)
    router.observe(PATTERN, it.asynchronous)
    async with running(router):
        await (await router.emit(Event(TOPIC)))
        await clock.advance(1)
    assert it.seen == [(TOPIC, "k7", "temp/now")] * 3


# -- delivery().params --------------------------------------------------------------------------------------------


async def test_a_delivery_has_the_names_of_its_route(clock: Clock) -> None:
    router, seen = Router(), list[Any]()

    def middleware(handler: AsyncHandler) -> AsyncHandler:
        async def call(event: Event) -> None:
            seen.append(delivery().params)
            await handler(event)

        return call

    router.handle(PATTERN, Recorder(), middleware=[middleware])
    router.handle("plain/*", Recorder())
    router.fallback(Recorder())
    async with running(router):
        sent = await router.emit(Event(TOPIC))
        await sent
        assert dict(sent.params) == {"name": "k7", "rest": "temp/now"}
        assert (await router.emit(Event("plain/x"))).params == {}
        assert (await router.emit(Event("other"))).params == {}
    assert seen == [{"name": "k7", "rest": "temp/now"}]
    with pytest.raises(TypeError, match="does not support item assignment"):
        seen[0]["name"] = "x"
    assert Delivery(Event("a")).params == {}


async def test_a_merged_event_with_another_topic_has_no_params(clock: Clock) -> None:
    router, seen = Router(), list[Any]()
    router.handle(
        "device/{name}",
        lambda _: seen.append(delivery().params),
        debounce=Debounce(1, merge=lambda _, new: Event("merged", new)),
    )
    async with running(router):
        await asyncio.gather(*[router.emit(Event(f"device/{number}")) for number in range(2)])
    assert seen == [{}]


# -- refused at registration --------------------------------------------------------------------------------------


def zero() -> None: ...


def one(event: Event) -> None: ...


def two(event: Event, name: str) -> None: ...


def three(event: Event, name: str, *, unit: str) -> None: ...


def positional(event: Event, name: str, /) -> None: ...


@pytest.mark.parametrize(
    ("pattern", "handler", "told"),
    [
        (
            "device/{id}",
            two,
            "the pattern does not name name, so add a segment {name}, or give the parameter a default",
        ),
        ("device/*", two, "the pattern does not name name"),
        ("device/\\{name\\}", two, "the pattern does not name name"),
        ("device/{name}", three, "the pattern does not name unit, so add a segment {unit}"),
        ("device/{name}", zero, "it must be callable with one argument, the event"),
        ("device/{name}", positional, "it must be callable with one argument, the event"),
        ("device/{event}", one, "its first parameter cannot share the name 'event' with the pattern"),
        ("device/{event}", two, "its first parameter cannot share the name 'event' with the pattern"),
    ],
)
def test_a_handler_that_cannot_get_its_parameters_is_refused(pattern: str, handler: Any, told: str) -> None:
    router = Router()
    registers: list[Callable[[str, Any], object]] = [router.handle, router.observe]
    for register in registers:
        with pytest.raises(TypeError, match=re.escape(told)) as caught:
            register(pattern, handler)
        assert str(caught.value).startswith(f"{handler.__name__}(")
        assert repr(pattern) in str(caught.value)
    with pytest.raises(TypeError, match=re.escape(told)):
        router.on(pattern)(handler)
    assert router.routes() == []


def test_a_handler_with_more_parameters_cannot_be_wrapped_directly() -> None:
    wrappers: list[Callable[[Any], object]] = [once, timeout(3), log(), recover(), lambda each: debounce(each, 1)]
    for wrap in wrappers:
        with pytest.raises(TypeError, match="register the function itself with middleware= or debounce="):
            wrap(two)


def test_a_refused_handler_does_not_replace_a_route() -> None:
    router = Router()
    router.handle("device/{name}", one)
    with pytest.raises(TypeError, match="does not name name"):
        router.handle("device/*", three, replace=True)
    with pytest.raises(RouteConflict):
        router.handle("device/*", one)
    assert [(info.pattern, info.handler) for info in router.routes()] == [("device/{name}", "one")]


# -- handlers with an annotated event ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_handler_of_an_event_class_gets_only_events_of_that_class(clock: Clock, is_async: bool) -> None:
    router, seen = Router(), list[Any]()

    def handle(event: FileEvent) -> None:
        seen.append(event.path)

    async def handle_later(event: FileEvent | FileBatch) -> None:
        handle(event)  # type: ignore[arg-type]  # a batch is not sent here

    router.handle("file/*", handle_later if is_async else handle)
    async with running(router):
        await router.call(FileEvent("added", Path("a")))
        with pytest.raises(TypeError, match=r"takes a FileEvent.*also matches 'file/upload'.*narrower"):
            await router.call(Event("file/upload"))
    assert seen == [Path("a")]


async def test_a_handler_whose_annotation_names_no_topics_gets_every_event(clock: Clock) -> None:
    router, seen = Router(), list[str]()

    def general(event: Event) -> None:
        seen.append(event.topic)

    def unknown(event: Unknown) -> None:  # type: ignore[name-defined]  # noqa: F821  # as if only for type checkers
        seen.append(event.topic)

    router.handle("file/*", general)
    router.handle("a", unknown)
    async with running(router):
        await router.call(FileEvent("added", Path("a")))
        await router.call(Event("a"))
    assert seen == ["file/added", "a"]

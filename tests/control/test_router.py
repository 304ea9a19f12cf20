"""The router: valid handlers, topics and events, and errors for anything invalid."""

from __future__ import annotations

import asyncio
import enum
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import hooks
from lifecycle.control import (
    Event,
    FileEvent,
    HealthEvent,
    InvalidPattern,
    InvalidTopic,
    NotHandled,
    RouteConflict,
    Router,
    SignalEvent,
    StatusEvent,
    SuspendEvent,
    TickEvent,
    WebhookEvent,
)
from lifecycle.control.router import call_directly
from lifecycle.errors import LifecycleError
from lifecycle.testing import Clock, Recorder, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


class Methods:
    """Handlers of every kind accepted by the router."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def plain(self, event: Event) -> None:
        self.seen.append(event)

    async def asynchronous(self, event: Event) -> None:
        self.seen.append(event)

    def two(self, label: str, event: Event) -> None:
        self.seen.append(event)

    async def async_two(self, event: Event, *, label: str) -> None:
        self.seen.append(event)


class Called(Methods):
    def __call__(self, event: Event) -> None:
        self.seen.append(event)


class AsyncCalled(Methods):
    async def __call__(self, event: Event) -> None:
        self.seen.append(event)


def shapes() -> dict[str, tuple[Methods, Any]]:
    found: dict[str, tuple[Methods, Any]] = {}
    for shape in (
        lambda m: m.plain,
        lambda m: m.asynchronous,
        lambda m: functools.partial(m.two, "x"),
        lambda m: functools.partial(m.async_two, label="x"),
        lambda m: m.seen.append,
        lambda m: lambda event: m.plain(event),  # noqa: PLW0108  # a lambda is a separate kind of handler
        lambda m: lambda event: m.asynchronous(event),  # noqa: PLW0108
    ):
        methods = Methods()
        found[str(len(found))] = methods, shape(methods)
    for kind in (Called, AsyncCalled):
        each = kind()
        found[kind.__name__] = each, each
    return found


@pytest.mark.parametrize("shape", shapes())
async def test_any_callable_with_one_argument_is_a_handler(clock: Clock, shape: str) -> None:
    router = Router()
    methods, handler = shapes()[shape]
    router.handle("a", handler)
    await call_directly(router, Event("a", 1))
    async with running(router):
        await (await router.emit(Event("a", 2)))
    assert methods.seen == [Event("a", 1), Event("a", 2)]
    assert router.routes()[0].handler


async def _two(_one: Any, _two: Any) -> None: ...


async def _keyword(_event: Any, *, needed: int) -> None: ...


async def _generator(_event: Any) -> AsyncIterator[None]:
    yield


def _plain_generator(_event: Any) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    "wrong", [None, 7, "text", Event("a"), lambda: None, _two, _keyword, Recorder, _generator, _plain_generator]
)
def test_a_handler_that_cannot_take_one_event_is_refused_at_registration(wrong: Any) -> None:
    router = Router()
    register = [
        lambda: router.handle("a", wrong),
        lambda: router.on("a")(wrong),
        lambda: router.observe("a", wrong),
        lambda: router.fallback(wrong),
        lambda: router.command("a", wrong),
    ]
    # Command handlers may declare any parameters. Without a handler, `command` is a decorator.
    if wrong is None or wrong in (_two, _keyword) or getattr(wrong, "__name__", "") == "<lambda>":
        register.pop()
    for each in register:
        with pytest.raises(TypeError, match="handler"):
            each()  # type: ignore[no-untyped-call]  # one of many signatures
    assert router.routes() == []
    assert list(router.commands) == []


async def test_a_class_is_called_as_a_class_even_if_its_instances_are_async(clock: Clock) -> None:
    made: list[Event] = []

    class Made:
        def __init__(self, event: Event) -> None:
            made.append(event)

        async def __call__(self, event: Event) -> None: ...

    router = Router()
    router.handle("a", Made)
    await call_directly(router, Event("a"))
    assert made == [Event("a")]


def test_on_returns_the_function_unchanged() -> None:
    router = Router()

    def handler(event: Event) -> None: ...

    assert router.on("a/*")(handler) is handler
    assert router.fallback(handler) is handler
    assert router.routes()[0].handler.endswith("handler")
    assert "test_router.py" in router.routes()[0].place


def test_an_event_class_matches_the_topics_of_its_events() -> None:
    router = Router()

    @dataclass(frozen=True)
    class Mail:
        topic: str = "mail/new"

    class Order:
        topics = "order/*"
        topic: str

    for kind in (FileEvent, SuspendEvent, SignalEvent, TickEvent, HealthEvent, WebhookEvent, StatusEvent, Mail, Order):
        router.handle(kind, Recorder())
    assert [info.pattern for info in router.explain("file/added")] == ["file/*"]
    assert [info.pattern for info in router.explain("lifecycle/suspend")] == ["lifecycle/suspend"]
    assert [info.pattern for info in router.explain("mail/new")] == ["mail/new"]
    router.remove(Order)
    with pytest.raises(TypeError, match="int does not define the topics"):
        router.on(int)(Recorder())  # type: ignore[arg-type]  # type checkers refuse it too
    with pytest.raises(InvalidPattern):
        router.on("[")(Recorder())


def test_on_without_parentheses_is_refused_with_the_remedy() -> None:
    router = Router()

    async def hello(event: Event) -> None: ...

    registers: list[Any] = [router.on, lambda pattern: router.observe(pattern, hello), router.subscribe]
    for register in registers:
        with pytest.raises(TypeError, match=r"hello; a decorator takes the pattern in parentheses: @router\.on\('"):
            register(hello)
    assert router.routes() == []


def test_on_refuses_a_malformed_pattern_before_it_has_a_handler() -> None:
    with pytest.raises(InvalidPattern, match="position 4"):
        Router().on("file/")


@pytest.mark.parametrize("lane", [7, ("a", "b")])
def test_a_lane_that_is_neither_a_name_nor_a_function_is_refused(lane: Any) -> None:
    router = Router()
    with pytest.raises(TypeError, match="the name of a lane, or a function that returns an event's key, got lane="):
        router.handle("a", Recorder(), lane=lane)
    assert router.routes() == []


# -- topics ------------------------------------------------------------------------------------------------------

LONG = "/".join("a" * 100_000)
DEEP = "/".join("a" * 65)
BAD: list[Any] = ["", None, 7, b"a", ["unhashable"], {}, LONG, DEEP]


@pytest.mark.parametrize("topic", BAD, ids=lambda topic: repr(topic)[:12])
async def test_an_invalid_topic_is_refused_by_every_method(clock: Clock, topic: Any) -> None:
    router = Router()
    router.handle("**", recorder := Recorder())
    event = Event(topic)
    with pytest.raises(InvalidTopic, match="topic"):
        await call_directly(router, event)
    for send in (router.emit, router.emit_nowait):
        with pytest.raises(NotHandled, match="topic") as caught:
            result = send(event)
            if asyncio.iscoroutine(result):
                await result
        assert len(str(caught.value)) < 300
    assert recorder.events == []
    assert router.state().unrouted == 2


@pytest.mark.parametrize("topic", BAD, ids=lambda topic: repr(topic)[:12])
async def test_a_source_survives_an_invalid_topic(clock: Clock, topic: Any) -> None:
    router, received = Router(), list[Any]()

    class Source:
        name = "odd"

        async def run(self, emit: Any) -> None:
            sent = await emit(Event(topic))
            try:
                await sent
            except NotHandled as error:
                received.append(error)
            await emit(Event("good"))

    @hooks.event_unrouted.connect
    def note(sender: object, *, event: Any) -> None:
        received.append(sender)

    router.handle("good", recorder := Recorder())
    router.add_source(Source())
    try:
        async with running(router):
            await clock.advance(1)
    finally:
        hooks.event_unrouted.disconnect(note)
    assert recorder.topics == ["good"]
    assert received[0] is router
    assert isinstance(received[1], InvalidTopic)


async def test_a_topic_of_64_segments_is_routed(clock: Clock) -> None:
    router = Router()
    router.handle("a/**", recorder := Recorder())
    await call_directly(router, Event("/".join("a" * 64)))
    assert len(recorder.events) == 1


async def test_the_message_about_a_long_topic_is_short() -> None:
    with pytest.raises(InvalidTopic) as caught:
        Router().explain(LONG)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("thing", [None, 7, "a topic", object()])
async def test_an_object_without_a_topic_is_refused(clock: Clock, thing: Any) -> None:
    router = Router()
    router.handle("**", Recorder())
    with pytest.raises(TypeError, match="is not an event"):
        await call_directly(router, thing)
    with pytest.raises(TypeError, match="is not an event"):
        await router.emit(thing)
    with pytest.raises(TypeError, match="is not an event"):
        router.emit_nowait(thing)


async def test_any_object_with_a_topic_can_be_dispatched(clock: Clock) -> None:
    class Topic(enum.StrEnum):
        A = "a/b"

    class Old(str, enum.Enum):  # noqa: UP042  # existing programs use this form
        A = "a/b"

    class Mine:
        def __init__(self, topic: str) -> None:
            self.topic = topic

    router = Router()
    router.handle("a/*", glob := Recorder())
    for topic in (Topic.A, Old.A):
        await call_directly(router, Mine(topic))
    router.handle("a/b", exact := Recorder())
    async with running(router):
        for topic in (Topic.A, Old.A):
            await call_directly(router, Mine(topic))
            await (await router.emit(Mine(topic)))
    assert len(glob.events) == 2
    assert len(exact.events) == 4


async def test_dispatch_raises_the_error_of_the_handler_and_counts_nothing(clock: Clock) -> None:
    router = Router()

    @router.on("a/*")
    def fails(_event: Event) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await call_directly(router, Event("a/b"))
    with pytest.raises(NotHandled, match="'b'"):
        await call_directly(router, Event("b"))
    state = router.state()
    assert (state.routed, state.handled, state.failed, state.unrouted) == (0, 0, 0, 0)


async def test_dispatch_and_emit_give_an_event_to_the_same_handler(clock: Clock) -> None:
    router, got, go_on = Router(), list[str](), asyncio.Event()

    @router.on("a/b")
    async def first(event: Event) -> None:
        await go_on.wait()
        raise NotHandled("not mine")

    router.handle("a/*", lambda _: got.append("removed"))
    router.handle("a/**", lambda _: got.append("replaced"))
    async with running(router):
        directly = asyncio.create_task(call_directly(router, Event("a/b")))
        delivery = await router.emit(Event("a/b"))
        await clock.settle()
        router.remove("a/*")
        router.handle("a/**", lambda _: got.append("new"), replace=True)
        go_on.set()
        await directly
        await delivery
        assert got == ["new", "new"]
        router.remove("a/**")
        with pytest.raises(NotHandled, match="not mine"):
            await call_directly(router, Event("a/b"))
        router.fallback(lambda event: got.append(event.topic))
        for topic in ("a/b", "nobody"):
            await call_directly(router, Event(topic))
            await (await router.emit(Event(topic)))
    assert got[2:] == ["a/b", "a/b", "nobody", "nobody"]
    assert router.state().unrouted == 2  # a direct dispatch is not counted


async def test_dispatch_and_emit_report_a_stray_cancellation_alike(clock: Clock) -> None:
    router = Router()

    @router.on("known")
    @router.on("some/*")
    @router.fallback
    async def stray(event: Event) -> None:
        raise asyncio.CancelledError

    async with running(router):
        for topic in ("known", "some/x", "nobody"):
            for send in (call_directly(router, Event(topic)), await router.emit(Event(topic))):
                with pytest.raises(LifecycleError, match="although it was not cancelled"):
                    await send


async def test_a_dispatch_whose_task_is_cancelled_is_cancelled() -> None:
    router = Router()

    @router.on("a")
    async def forever(event: Event) -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(call_directly(router, Event("a")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_dispatch_uses_no_debounces_and_lanes_and_needs_no_run() -> None:
    router = Router()
    router.handle("a", recorder := Recorder(), debounce=100, busy="drop")
    await call_directly(router, Event("a"))
    assert recorder.topics == ["a"]


async def test_emit_raises_for_an_event_without_a_route(clock: Clock) -> None:
    router = Router()
    with pytest.raises(NotHandled, match="no route matches 'a'"):
        await router.emit(Event("a"))
    with pytest.raises(NotHandled):
        router.emit_nowait(Event("a"))
    assert router.state().unrouted == 2


async def test_routes_and_explain_have_pattern_handler_lane_busy_and_counts(clock: Clock) -> None:
    router = Router()

    def build(_event: Event) -> None: ...

    router.handle("file/*", build, busy="drop", lane="builds")
    router.handle("file/added", functools.partial(build))
    async with running(router):
        await (await router.emit(Event("file/modified")))
    (glob, exact) = router.routes()
    assert (glob.pattern, glob.lane, glob.busy, glob.routed, glob.handled) == ("file/*", "builds", "drop", 1, 1)
    assert glob.handler.endswith("build")
    assert exact.handler.endswith("build")
    assert [info.pattern for info in router.explain("file/added")] == ["file/added", "file/*"]
    assert router.explain("nobody") == []


# -- commands ----------------------------------------------------------------------------------------------------


async def test_commands_share_one_registry_and_one_lane(clock: Clock) -> None:
    router, seen = Router(), list[Any]()

    @router.command
    async def deploy(event: Any) -> None:
        """Deploy TARGET."""
        seen.append(event.args)

    router.command("ship", deploy, help="Ship it.", complete=["here", "there"])
    assert [(each.name, each.help) for each in router.commands] == [("deploy", "Deploy TARGET."), ("ship", "Ship it.")]
    assert {info.lane for info in router.routes()} == {"command"}
    async with running(router):
        event = router.commands.parse("deploy a 'b c'")
        assert event is not None
        await (await router.emit(event))
    assert seen == [("a", "b c")]


@pytest.mark.parametrize("name", ["", "two words", "a/b", " a", "tab\t"])
def test_a_command_is_one_word(name: str) -> None:
    router = Router()
    with pytest.raises(ValueError, match="is not a valid command name"):
        router.command(name, Recorder())
    assert router.routes() == []


async def test_a_command_may_have_a_name_that_looks_like_a_pattern(clock: Clock) -> None:
    router = Router()
    router.command("rm*", recorder := Recorder())
    event = router.commands.parse("rm* x")
    assert event is not None
    await call_directly(router, event)
    with pytest.raises(NotHandled):
        await call_directly(router, Event("command/rm-rf"))
    assert recorder.topics == ["command/rm*"]


def test_a_command_cannot_be_registered_twice_until_it_is_removed() -> None:
    router = Router()
    router.command("a", Recorder())
    with pytest.raises(RouteConflict, match="'a'"):
        router.command("a", Recorder())
    router.remove("command/a")
    assert "a" not in router.commands
    router.command("a", Recorder())


def test_a_command_whose_route_is_taken_is_not_registered() -> None:
    router = Router()
    router.handle("command/a", Recorder())
    with pytest.raises(RouteConflict):
        router.command("a", Recorder())
    assert "a" not in router.commands

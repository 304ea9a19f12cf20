"""Middleware: functions that wrap the handler of every route in a defined order."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any

import pytest

from lifecycle.control import Dropped, Event, NotHandled, Router, log, notify, once, recover, timeout
from lifecycle.control.router import call_directly
from lifecycle.testing import Clock, Recorder, running


def label(name: str, seen: list[str]) -> Any:
    def middleware(handler: Any) -> Any:
        async def around(event: Event) -> None:
            seen.append(f"+{name}")
            await handler(event)
            seen.append(f"-{name}")

        return around

    return middleware


async def test_the_first_middleware_is_outermost_around_earlier_and_later_routes(clock: Clock) -> None:
    router, seen = Router(), list[str]()
    router.handle("early", lambda _: seen.append("early"), middleware=[label("own", seen)])
    router.use(label("a", seen), label("b", seen))
    router.use(label("c", seen))
    router.handle("late", lambda _: seen.append("late"))
    await call_directly(router, Event("early"))
    around = ["+a", "+b", "+c", "{}", "-c", "-b", "-a"]
    assert seen == ["+a", "+b", "+c", "+own", "early", "-own", "-c", "-b", "-a"]
    seen.clear()
    async with running(router):
        await (await router.emit(Event("late")))
    assert seen == [each.format("late") for each in around]


async def test_middleware_of_the_router_wraps_the_fallback_too(clock: Clock) -> None:
    router, seen = Router(), list[str]()
    router.use(label("early", seen))
    router.fallback(lambda _: seen.append("fallback"))
    router.use(label("late", seen))
    async with running(router):
        await (await router.emit(Event("nobody")))
    assert seen == ["+early", "+late", "fallback", "-late", "-early"]


async def test_middleware_may_be_a_plain_function_around_a_plain_handler() -> None:
    router, seen = Router(), list[Any]()
    router.use(lambda handler: lambda event: handler(Event(event.topic, event.data + 1)))
    router.handle("a", lambda event: seen.append(event.data))
    await call_directly(router, Event("a", 1))
    assert seen == [2]


async def test_plain_middleware_may_copy_the_attributes_of_the_handler_that_it_wraps() -> None:
    def plain(handler: Any) -> Any:
        @functools.wraps(handler)
        def call(event: Any) -> None:
            seen.append(event.topic)

        return call

    seen: list[str] = []
    router = Router()
    router.handle("a", lambda _: None)
    router.use(plain)
    await call_directly(router, Event("a"))
    assert seen == ["a"]


async def test_middleware_added_by_a_handler_applies_from_the_next_event_on() -> None:
    router, seen = Router(), list[str]()
    router.handle("a", lambda _: router.use(label("x", seen)))
    await call_directly(router, Event("a"))
    assert seen == []
    await call_directly(router, Event("a"))
    assert seen == ["+x", "-x"]


@pytest.mark.parametrize("wrong", [None, 7, lambda: None])
def test_invalid_middleware_is_refused(wrong: Any) -> None:
    router = Router()
    with pytest.raises(TypeError):
        router.use(wrong)
    assert router.state().middlewares == 0


@pytest.mark.parametrize("bare", [recover, log, timeout, once], ids=["recover", "log", "timeout", "once"])
async def test_each_middleware_of_the_library_works_bare_and_with_settings(bare: Any, clock: Clock) -> None:
    settings: Any = {recover: {"handler": print}, log: {"level": 10}, timeout: {"seconds": 3}}.get(bare, {})
    router, seen = Router(), Recorder()
    router.use(bare)
    router.handle("a", seen, middleware=[bare, bare(), bare(**settings)])
    async with running(router):
        await router.call(Event("a"))
    assert seen.topics == ["a"]


async def _async_middleware(_handler: Any) -> Any: ...


def _two_arguments(_event: Any, _following: Any) -> None: ...


def _returns_nothing(_handler: Any) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (None, "None is not middleware: it is not a function"),
        (_async_middleware, "_async_middleware is not middleware: it is async"),
        (_two_arguments, "_two_arguments is not middleware: it cannot be called with one argument"),
        (_returns_nothing, "_returns_nothing is not middleware: it returned None instead of a handler"),
    ],
)
def test_what_is_no_middleware_is_refused_at_registration_with_the_remedy(wrong: Any, problem: str) -> None:
    router = Router()
    router.handle("kept", Recorder())
    for register in (
        lambda: router.use(wrong),
        lambda: router.handle("a", Recorder(), middleware=[wrong]),
        lambda: router.observe("a", Recorder(), middleware=[wrong]),
    ):
        with pytest.raises(TypeError, match=problem) as caught:
            register()
        assert "takes a handler and returns the wrapped handler" in str(caught.value)
    assert (len(router.routes()), router.state().middlewares) == (1, 0)


async def test_an_error_handler_of_a_router_is_the_handler_of_recover(clock: Clock) -> None:
    router, told = Router(), list[tuple[Any, str]]()
    router.use(recover(handler=lambda event, error: told.append((event.topic, str(error)))))

    @router.on("a")
    def fail(_event: Event) -> None:
        raise ValueError("no disk")

    async with running(router):
        await router.call(Event("a"))
    assert told == [("a", "no disk")]


async def test_middleware_that_cannot_wrap_one_route_wraps_none() -> None:
    router, wrapped = Router(), list[str]()
    for register in (lambda: router.handle("a", Recorder()), lambda: router.observe("**", Recorder())):
        register()
    router.fallback(Recorder())
    handlers: list[Any] = []

    def refuses_the_last(handler: Any) -> Any:
        handlers.append(handler)
        if len(handlers) == 3:
            raise ValueError("not this one")

        async def wrapper(event: Event) -> None:
            wrapped.append(event.topic)
            await handler(event)

        return wrapper

    with pytest.raises(ValueError, match="not this one"):
        router.use(refuses_the_last)
    for topic in ("a", "b"):
        await call_directly(router, Event(topic))
    assert (wrapped, router.state().middlewares) == ([], 0)


def test_middleware_that_returns_no_handler_is_named() -> None:
    router = Router()

    def broken(_handler: Any) -> Any:
        return None

    router.use(broken)
    with pytest.raises(TypeError, match="it returned None"):
        router.handle("a", Recorder())
    assert router.routes() == []


# -- once --------------------------------------------------------------------------------------------------------


async def test_once_runs_once_also_under_concurrent_calls(clock: Clock) -> None:
    calls = 0

    @once
    async def handler(_event: Event) -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(1)

    await asyncio.gather(*(handler(Event("a")) for _ in range(5)))
    await handler(Event("a"))
    assert calls == 1


@pytest.mark.parametrize("error", [RuntimeError, NotHandled, asyncio.CancelledError])
async def test_once_runs_again_after_a_run_that_failed(error: type[BaseException]) -> None:
    results: list[BaseException | None] = [error("first"), error("second"), None, None]

    @once
    async def initialise(_event: Event) -> None:
        if (result := results.pop(0)) is not None:
            raise result

    for _ in range(2):
        with pytest.raises(error):
            await initialise(Event("a"))
    for _ in range(2):
        await initialise(Event("a"))
    assert len(results) == 1


async def test_once_keeps_its_state_when_middleware_is_added() -> None:
    router = Router()
    router.use(once)
    router.handle("a", a := Recorder())
    router.handle("b", b := Recorder())
    await call_directly(router, Event("a"))
    router.use(lambda handler: handler)
    router.handle("c", Recorder())
    for topic in "aabb":
        await call_directly(router, Event(topic))
    assert (len(a.events), len(b.events)) == (1, 1)


# -- recover, log, timeout ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "async", "none"])
async def test_recover_catches_every_exception_except_not_handled(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    called: list[Any] = []

    def plain(event: Event, error: Exception) -> None:
        called.append((event, error))

    async def awaited(event: Event, error: Exception) -> None:
        called.append((event, error))

    errors = [ValueError("x"), NotHandled("y"), Dropped("z")]

    def handler(event: Event) -> None:
        raise event.data

    safe = recover(handler={"plain": plain, "async": awaited, "none": None}[kind])(handler)
    await safe(Event("a", errors[0]))
    for error in errors[1:]:
        with pytest.raises(type(error)):
            await safe(Event("a", error))
    if kind == "none":
        assert "ValueError: x" in caplog.text
    else:
        assert called == [(Event("a", errors[0]), errors[0])]


async def test_recover_does_not_catch_a_cancellation() -> None:
    def handler(_event: Event) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await recover()(handler)(Event("a"))


async def test_log_logs_starts_ends_and_errors_and_not_handled_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    out = logging.getLogger("mine")

    async def build(event: Event) -> None:
        if event.data is not None:
            raise event.data

    logged = log(logger=out, level=logging.WARNING)(build)
    await logged(Event("file/x"))
    with pytest.raises(NotHandled):
        await logged(Event("file/x", NotHandled()))
    with pytest.raises(KeyError):
        await logged(Event("file/x", KeyError("k")))
    levels = [(record.name, record.levelname) for record in caplog.records if record.name == "mine"]
    assert [level for _, level in levels] == ["WARNING", "WARNING", "WARNING", "DEBUG", "WARNING", "ERROR"]
    assert "build started on file/x" in caplog.text
    assert caplog.records[-1].exc_info is not None


async def test_timeout_cancels_a_call_that_takes_longer(clock: Clock) -> None:
    log_: list[str] = []

    async def slow(event: Event) -> None:
        try:
            await asyncio.sleep(event.data)
        except asyncio.CancelledError:
            log_.append("cancelled")
            raise

    router = Router()
    router.handle("a", timeout(5)(slow))
    async with running(router):
        await (await router.emit(Event("a", 4)))
        sent = await router.emit(Event("a", 6))
        with pytest.raises(TimeoutError):
            await sent
    assert log_ == ["cancelled"]
    assert clock.time() == 9


# -- notify ------------------------------------------------------------------------------------------------------


async def test_notify_does_not_wait_and_drops_events_if_the_queue_is_full(clock: Clock) -> None:
    router, queue = Router(), asyncio.Queue[Event](2)
    router.handle("a", notify(queue))
    router.handle("**", Recorder())
    async with running(router):
        sent = [await router.emit(Event("a", number)) for number in range(3)]
        await sent[0]
        with pytest.raises(Dropped, match=r"full \(2 events\)"):
            await sent[2]
    assert [queue.get_nowait().data for _ in range(2)] == [0, 1]
    assert router.state().dropped == 1

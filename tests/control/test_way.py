"""Hooks that announce deliveries, and equal results from `call_directly` and `emit`."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

import pytest

from lifecycle import hooks
from lifecycle._util import current_flow, current_span, current_worker
from lifecycle.control import Delivery, Dropped, Event, LaneFull, NotHandled, Router
from lifecycle.control.router import add_relay, call_directly
from lifecycle.testing import Clock, Recorder, running

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

HOOKS = ("delivery_accepted", "event_merged", "handler_started", "handler_passed", "delivery_ended")


@contextmanager
def recorded_hooks(*names: str) -> Iterator[list[tuple[Any, ...]]]:
    """Record the announcements on these hooks: the hook, the topic, the pattern and the error."""
    log: list[tuple[Any, ...]] = []

    def receiver(name: str) -> Any:
        def receive(_sender: Router, **given: Any) -> None:
            sent: Delivery = given["delivery"]
            error = type(sent.error).__name__ if sent.done and sent.error else None
            log.append((name, sent.event.topic, *([given["pattern"]] if "pattern" in given else []), error))

        return receive

    receivers = {name: getattr(hooks, name).connect(receiver(name)) for name in names or HOOKS}
    try:
        yield log
    finally:
        for name, receive in receivers.items():
            getattr(hooks, name).disconnect(receive)


async def nothing(_event: Event) -> None:
    pass


async def forever(_event: Event) -> None:
    await asyncio.Event().wait()


async def slow(_event: Event) -> None:
    await asyncio.sleep(0.1)


async def test_a_delivery_that_was_handled(clock: Clock) -> None:
    router = Router()
    router.handle("a", nothing)
    with recorded_hooks() as log:
        async with running(router):
            await (await router.emit(Event("a")))
    assert log == [
        ("delivery_accepted", "a", None),
        ("handler_started", "a", "a", None),
        ("delivery_ended", "a", None),
    ]


async def test_a_passed_on_event_announces_one_end(clock: Clock) -> None:
    async def passes(_event: Event) -> None:
        raise NotHandled

    router = Router()
    router.handle("a", passes)
    router.handle("*", nothing)
    with recorded_hooks() as log:
        async with running(router):
            await (await router.emit(Event("a")))
    assert log == [
        ("delivery_accepted", "a", None),
        ("handler_started", "a", "a", None),
        ("handler_passed", "a", "a", None),
        ("handler_started", "a", "*", None),
        ("delivery_ended", "a", None),
    ]


async def test_the_announcements_of_a_failed_and_an_unrouted_event(clock: Clock) -> None:
    async def fails(_event: Event) -> None:
        raise ValueError("no")

    router = Router()
    router.handle("a", fails)
    with recorded_hooks("delivery_accepted", "delivery_ended") as log:
        async with running(router):
            with pytest.raises(ValueError, match="no"):
                await (await router.emit(Event("a")))
            with pytest.raises(NotHandled):
                await router.emit(Event("b"))
    assert log == [
        ("delivery_accepted", "a", None),
        ("delivery_ended", "a", "ValueError"),
        ("delivery_accepted", "b", None),
        ("delivery_ended", "b", "NotHandled"),
    ]


async def test_hooks_for_an_event_that_a_fallback_passed_on(clock: Clock) -> None:
    async def passes(_event: Event) -> None:
        raise NotHandled

    router = Router()
    router.fallback(passes)
    with recorded_hooks() as log:
        async with running(router):
            with pytest.raises(NotHandled):
                await (await router.emit(Event("a")))
    assert [each[0] for each in log] == ["delivery_accepted", "handler_started", "handler_passed", "delivery_ended"]


async def test_an_event_taken_by_a_relay_announces_its_end(clock: Clock) -> None:
    async def take(_event: Event) -> bool:
        return True

    router = Router()
    add_relay(router, "a", take)
    with recorded_hooks("delivery_accepted", "delivery_ended") as log:
        async with running(router):
            await (await router.emit(Event("a")))
    assert log == [("delivery_accepted", "a", None), ("delivery_ended", "a", None)]


@pytest.mark.parametrize("busy", ["drop", "restart"])
async def test_every_dropped_event_announces_one_end(clock: Clock, busy: Literal["drop", "restart"]) -> None:
    router = Router()
    router.handle("a", slow, busy=busy)
    with recorded_hooks("delivery_ended") as log:
        async with running(router):
            sent = [await router.emit(Event("a")) for _ in range(3)]
            with pytest.raises(Dropped):
                await sent[1]
            await asyncio.sleep(5)
    assert sorted(str(each[-1]) for each in log) == ["Dropped", "Dropped", "None"]


async def test_the_announcements_of_an_event_that_found_its_lane_full(clock: Clock) -> None:
    router = Router(buffer=0)
    router.handle("a", nothing)
    with recorded_hooks("delivery_accepted", "delivery_ended") as log:
        await router.emit(Event("a"))
        with pytest.raises(LaneFull):
            await router.emit(Event("a"))
        with pytest.raises(LaneFull):
            router.emit_nowait(Event("a"))
    assert log == [
        ("delivery_accepted", "a", None),
        ("delivery_accepted", "a", None),
        ("delivery_ended", "a", "LaneFull"),
    ]


async def test_merged_deliveries_refer_to_their_call_which_ends_once(clock: Clock) -> None:
    router = Router()
    router.handle("a", nothing, debounce=1.0)
    ended: list[Delivery] = []
    receive = hooks.delivery_ended.connect(lambda _router, delivery: ended.append(delivery))
    try:
        with recorded_hooks("delivery_accepted", "event_merged", "handler_started") as log:
            async with running(router):
                first, second = await router.emit(Event("a")), await router.emit(Event("a"))
                await second
    finally:
        hooks.delivery_ended.disconnect(receive)
    assert [each[0] for each in log] == ["delivery_accepted", "event_merged"] * 2 + ["handler_started"]
    assert first.into is second.into
    assert ended == [first.into]
    assert ended[0].into is None


async def test_queued_events_announce_their_end_when_the_router_stops(clock: Clock) -> None:
    router = Router(drain_timeout=0)
    router.handle("a", forever)
    with recorded_hooks("delivery_accepted", "delivery_ended") as log:
        async with running(router):
            for _ in range(3):
                await router.emit(Event("a"))
            await asyncio.sleep(1)
    assert [each[0] for each in log] == ["delivery_accepted"] * 3 + ["delivery_ended"] * 3


async def test_a_receiver_that_connects_while_a_handler_runs_gets_its_end_without_a_duration(clock: Clock) -> None:
    router = Router()
    router.handle("a", slow)
    durations: list[float] = []

    def finished(_sender: Router, *, duration: float, **_: object) -> None:
        durations.append(duration)

    async with running(router):
        sent = await router.emit(Event("a"))
        await clock.advance(0.05)
        with recorded_hooks("delivery_ended") as log:
            hooks.handler_finished.connect(finished)
            await sent
            hooks.handler_finished.disconnect(finished)
    assert (log, durations) == ([("delivery_ended", "a", None)], [])


async def test_an_end_is_announced_although_another_receiver_disconnected_meanwhile(clock: Clock) -> None:
    router = Router()
    router.handle("a", slow)
    async with running(router):
        with recorded_hooks("delivery_ended") as log:
            with recorded_hooks("handler_started"):
                sent = await router.emit(Event("a"))
                await clock.advance(0.05)
            await sent
    assert log == [("delivery_ended", "a", None)]


async def test_the_delivery_to_an_observer_is_announced_like_any_other(clock: Clock) -> None:
    router = Router()
    router.handle("a", nothing)
    router.observe("**", nothing)
    with recorded_hooks("delivery_accepted", "handler_started", "delivery_ended") as log:
        async with running(router):
            await (await router.emit(Event("a")))
            await clock.settle()
    observed = "** (observed by nothing)"
    assert log[:2] == [("delivery_accepted", "a", None)] * 2
    assert sorted(log[2:]) == [
        ("delivery_ended", "a", None),
        ("delivery_ended", "a", None),
        ("handler_started", "a", observed, None),
        ("handler_started", "a", "a", None),
    ]


async def test_a_context_variable_set_at_handler_start_holds_until_its_end(clock: Clock) -> None:
    here: ContextVar[int] = ContextVar("here", default=0)
    seen: list[int] = []

    async def look(_event: Event) -> None:
        seen.append(here.get())

    started = hooks.handler_started.connect(lambda _router, delivery, **_: here.set(delivery.id))
    ended = hooks.delivery_ended.connect(lambda _router, **_: seen.append(here.get()))
    router = Router()
    router.handle("a", look)
    try:
        async with running(router):
            sent = await router.emit(Event("a"))
            await sent
    finally:
        hooks.handler_started.disconnect(started)
        hooks.delivery_ended.disconnect(ended)
    assert seen == [sent.id, sent.id]


@pytest.mark.parametrize(
    "settings", [{}, {"debounce": 1}, {"lane": lambda event: event.data}], ids=["plain", "debounced", "keyed"]
)
async def test_handlers_run_in_the_context_of_the_router_and_not_of_an_emitter(
    clock: Clock, settings: dict[str, Any]
) -> None:
    request: ContextVar[str] = ContextVar("request", default="none")
    variables = (request, current_worker, current_flow, current_span)
    seen: list[tuple[str, ...]] = []

    async def look(_event: Event) -> None:
        seen.append(tuple(each.get() for each in variables))
        await asyncio.sleep(1)
        request.set("changed by a handler")

    router = Router()
    router.handle("a", look, **settings)
    router.observe("a", look)

    async def emit(name: str) -> None:
        for each in variables:
            each.set(name)
        await (await router.emit(Event("a", name)))

    request.set("the router's")
    async with running(router):
        request.set("the test's")
        await asyncio.gather(*(asyncio.create_task(emit(name)) for name in ("alice", "bob")))
        await clock.advance(5)
    assert {values[1:] for values in seen} == {("", "", "")}
    assert {values[0] for values in seen} <= {"the router's", "changed by a handler"}
    assert seen[0][0] == "the router's"


async def test_emit_nowait_in_another_thread_raises_with_the_remedy_and_delivers_nothing(
    clock: Clock, recorder: Recorder
) -> None:
    router = Router()
    router.handle("a", recorder)
    router.observe("a", recorder)

    def emit_in_thread() -> None:
        with pytest.raises(RuntimeError, match="emit_threadsafe"):
            router.emit_nowait(Event("a", "thread"))

    async def emit_in_another_loop() -> None:
        with pytest.raises(RuntimeError, match="emit_threadsafe"):
            await router.emit(Event("a", "another loop"))

    async with running(router):
        await asyncio.to_thread(emit_in_thread)
        await asyncio.to_thread(lambda: asyncio.run(emit_in_another_loop()))
        await clock.settle()
        assert recorder.events == []
        await (await router.emit(Event("a", "loop")))
    assert recorder.events == [Event("a", "loop")] * 2
    assert router.state().routed == 2


def test_emit_nowait_needs_no_loop_before_the_router_runs() -> None:
    router, recorder = Router(), Recorder()
    router.handle("a", recorder)
    for _ in range(2):
        router.emit_nowait(Event("a"))

        async def main() -> None:
            async with running(router):
                await asyncio.sleep(0)

        asyncio.run(main())
    assert recorder.topics == ["a", "a"]


# -- directly and through lanes -----------------------------------------------------------------------------------


class Both:
    """A router with handlers for one case. It records the calls to these handlers."""

    def __init__(self) -> None:
        self.router = Router()
        self.calls: list[str] = []

    def route(self, pattern: str, error: BaseException | None = None) -> None:
        self.router.handle(pattern, self.handler(pattern, error))

    def handler(self, name: str, error: BaseException | None = None) -> Callable[[Event], None]:
        def handle(_event: Event) -> None:
            self.calls.append(name)
            if error is not None:
                raise error

        return handle

    async def result(self, sent: Awaitable[object]) -> tuple[list[str], str]:
        """Return the handler calls for one event, and its error."""
        self.calls.clear()
        try:
            await sent
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # to be compared
            return list(self.calls), repr(error)
        return list(self.calls), ""


def exact_passes_to_glob(both: Both) -> None:
    both.route("a/b", NotHandled("no"))
    both.route("a/*")


def all_pass(both: Both) -> None:
    both.route("a/b", NotHandled("no"))
    both.route("**", NotHandled("nor I"))


def all_pass_to_the_fallback(both: Both) -> None:
    all_pass(both)
    both.router.fallback(both.handler("fallback"))


def no_route_but_a_fallback_that_passes(both: Both) -> None:
    both.router.fallback(both.handler("fallback", NotHandled("not even I")))


def no_route(_both: Both) -> None: ...


def dropped_by_the_first(both: Both) -> None:
    both.route("a/b", Dropped("enough"))
    both.route("a/*")
    both.router.fallback(both.handler("fallback"))


def an_error_of_the_second(both: Both) -> None:
    both.route("a/b", NotHandled("no"))
    both.route("a/*", OSError("down"))
    both.route("**")


def a_stray_cancellation_of_the_second(both: Both) -> None:
    both.route("a/b", NotHandled("no"))
    both.route("a/*", asyncio.CancelledError())


def a_handler_that_removes_the_next_route_and_passes(both: Both) -> None:
    def remove(_event: Event) -> None:
        both.calls.append("a/b")
        both.router.remove("a/*")
        raise NotHandled

    both.router.handle("a/b", remove, replace=True)
    both.router.handle("a/*", both.handler("a/*"), replace=True)
    both.route("**")


def a_handler_that_replaces_the_next_route_and_passes(both: Both) -> None:
    def replace(_event: Event) -> None:
        both.calls.append("a/b")
        both.router.handle("a/*", both.handler("new"), replace=True)
        raise NotHandled

    both.router.handle("a/b", replace)
    both.route("a/*")


def a_handler_that_removes_itself_and_passes(both: Both) -> None:
    def remove(_event: Event) -> None:
        both.calls.append("a/b")
        both.router.remove("a/b")
        raise NotHandled

    both.router.handle("a/b", remove, replace=True)
    both.route("a/*")


def a_relay_that_passes_the_event_on_to_no_route(both: Both) -> None:
    async def send(_event: Event) -> bool:
        both.calls.append("relay")
        return True

    add_relay(both.router, "a/*", send)
    both.router.fallback(both.handler("fallback"))


def a_relay_that_takes_the_event(both: Both) -> None:
    async def send(_event: Event) -> bool:
        both.calls.append("relay")
        return False

    add_relay(both.router, "a/*", send)
    both.route("a/b")


@pytest.mark.parametrize(
    "case",
    [
        exact_passes_to_glob,
        all_pass,
        all_pass_to_the_fallback,
        no_route_but_a_fallback_that_passes,
        no_route,
        dropped_by_the_first,
        an_error_of_the_second,
        a_stray_cancellation_of_the_second,
        a_handler_that_removes_the_next_route_and_passes,
        a_handler_that_replaces_the_next_route_and_passes,
        a_handler_that_removes_itself_and_passes,
        a_relay_that_passes_the_event_on_to_no_route,
        a_relay_that_takes_the_event,
    ],
)
async def test_a_direct_call_and_emit_make_the_same_calls_with_the_same_result(case: Callable[[Both], None]) -> None:
    results = []
    for way in ("direct", "emit"):
        both = Both()
        case(both)

        async def send(router: Router = both.router, way: str = way) -> None:
            if way == "direct":
                await call_directly(router, Event("a/b"))
            else:
                await (await router.emit(Event("a/b")))

        async with running(both.router):
            results.append(await both.result(send()))
    assert results[0] == results[1]
    assert results[0] != ([], "")

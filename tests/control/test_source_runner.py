"""Sources: how the router starts, reads, holds, restarts and stops them."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, Self

import pytest

from lifecycle import hooks
from lifecycle.backoff import Backoff
from lifecycle.control import Event, LaneFull, NotHandled, RouteNotFound, Router, RouterRunning, SourceFailed
from lifecycle.control.source_runner import STEPS, Phase, Step
from lifecycle.events.sources import Input
from lifecycle.handlers import SuspendHandler
from lifecycle.sources import BaseSource, Source
from lifecycle.testing import Clock, ManualSource, Recorder, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

STEADY = Backoff(initial=1, jitter=0)


class Failures(list[Any]):
    """Collect the announcements on ``hooks.source_failed``."""

    def __call__(self, sender: object, **arguments: Any) -> None:
        self.append((sender, arguments))


@pytest.fixture
def failures() -> Iterator[Failures]:
    seen = Failures()
    hooks.source_failed.connect(seen)
    yield seen
    hooks.source_failed.disconnect(seen)


class Iterable:
    def __init__(self, *topics: str) -> None:
        self.topics = list(topics)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events()

    async def _events(self) -> AsyncIterator[Event]:
        for topic in self.topics:
            yield Event(topic)


class Bare:
    """An iterator with only the required methods."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __aiter__(self) -> Bare:
        return self

    async def __anext__(self) -> Event:
        if not self.count:
            raise StopAsyncIteration
        self.count -= 1
        return Event("bare")


class Runs:
    async def run(self, emit: Any) -> None:
        await emit(Event("run"))


async def generate() -> AsyncIterator[Event]:
    yield Event("generated")


@pytest.mark.parametrize(
    ("make", "topics"),
    [
        (lambda: Iterable("x", "y"), ["x", "y"]),
        (lambda: Bare(2), ["bare", "bare"]),
        (lambda: generate, ["generated"]),
        (generate, ["generated"]),
        (lambda: lambda: Iterable("z"), ["z"]),
        (Runs, ["run"]),
    ],
)
async def test_every_kind_of_source_delivers_events(
    clock: Clock, recorder: Recorder, make: Any, topics: list[str]
) -> None:
    router = Router()
    router.handle("**", recorder)
    router.add_source(make())
    async with running(router):
        await clock.advance(1)
        assert router.state().running  # the router keeps running after its sources have finished
    assert recorder.topics == topics


async def _coroutine() -> None: ...


@pytest.mark.parametrize("wrong", [None, 7, "text", [Event("a")], Runs, _coroutine])
def test_an_invalid_source_is_refused_when_it_is_added(wrong: Any) -> None:
    router = Router()
    with pytest.raises(TypeError):
        router.add_source(wrong)
    assert router.state().sources == 0


def test_settings_and_sources_given_twice_are_refused() -> None:
    router, source = Router(name="main"), Runs()
    router.add_source(source)
    with pytest.raises(ValueError, match="is already a source of router 'main'"):
        router.add_source(source)
    with pytest.raises(ValueError, match="'always'"):
        router.add_source(Runs(), restart="always")  # type: ignore[arg-type]  # that is the point
    with pytest.raises(RouteNotFound, match="not a source"):
        router.remove_source(Runs())
    router.remove_source(source)
    router.add_source(source)


# -- failing -----------------------------------------------------------------------------------------------------


class Entered(Iterable):
    """A source that is also a context manager and can be made to fail at a chosen step."""

    def __init__(self, *topics: str, enter: list[Any] | None = None, name: str = "entered") -> None:
        super().__init__(*topics)
        self.name = name
        self.enter = enter or []
        self.log: list[str] = []

    async def __aenter__(self) -> Self:
        self.log.append("enter")
        if self.enter and (error := self.enter.pop(0)):
            raise error
        return self

    async def __aexit__(self, *_: object) -> None:
        self.log.append("exit")


async def test_a_source_that_cannot_start_ends_run_naming_it_and_the_cause(clock: Clock, failures: Failures) -> None:
    router, good = Router(), Entered(name="good")
    bad = Entered(enter=[OSError("port 80 is taken")], name="the door")
    router.add_source(good)
    router.add_source(bad)
    with pytest.raises(SourceFailed, match=r"'the door'.*port 80 is taken") as caught:
        await router.run()
    assert isinstance(caught.value.__cause__, OSError)
    assert [message for _, message in failures] == [
        {"source": bad, "name": "the door", "error": caught.value.__cause__, "restart_in": None},
    ]
    assert good.log == ["enter", "exit"]
    assert not router.state().running
    # The cause of the failure may have been removed in the meantime.
    async with running(router):
        assert router.state().running


async def test_a_source_added_later_that_cannot_start_ends_run_too(clock: Clock) -> None:
    router = Router()
    with pytest.raises(SourceFailed, match="later"):
        async with running(router):
            router.add_source(Entered(enter=[OSError("no")], name="later"))
            await clock.advance(1)


@pytest.mark.parametrize("gives", [None, 7, [Event("a")]])
async def test_a_function_that_returns_no_iterable_cannot_start(clock: Clock, gives: Any) -> None:
    router = Router()
    router.add_source(lambda: gives)
    with pytest.raises(SourceFailed, match="async iterable"):
        await router.run()


async def test_a_function_that_returns_a_coroutine_cannot_start(clock: Clock) -> None:
    router = Router()
    router.add_source(lambda: _coroutine())  # type: ignore[arg-type,return-value]  # noqa: PLW0108  # a late error
    with pytest.raises(SourceFailed, match="async iterable"):
        await router.run()


async def test_a_function_that_raises_cannot_start(clock: Clock) -> None:
    router = Router()

    def source() -> Any:
        raise FileNotFoundError("no such queue")

    router.add_source(source)
    with pytest.raises(SourceFailed, match="no such queue"):
        await router.run()


async def test_a_source_that_fails_later_is_restarted_with_backoff(
    clock: Clock, recorder: Recorder, failures: Failures, caplog: pytest.LogCaptureFixture
) -> None:
    router, starts = Router(), list[float]()

    async def flaky() -> AsyncIterator[Event]:
        starts.append(round(clock.time(), 3))
        yield Event("a")
        if len(starts) < 4:
            raise ConnectionError("lost")

    router.handle("a", recorder)
    router.add_source(flaky, backoff=STEADY)
    async with running(router):
        await clock.advance(30)
    assert starts == [0, 1, 3, 7]
    assert len(recorder.events) == 4
    assert [arguments["restart_in"] for _, arguments in failures] == [1, 2, 4]
    sender, arguments = failures[0]
    assert sender is router
    assert arguments["source"] is flaky
    assert isinstance(arguments["error"], ConnectionError)
    assert "flaky" in caplog.text
    assert "lost" in caplog.text


async def test_a_context_manager_that_cannot_be_entered_again_is_tried_again(clock: Clock, failures: Failures) -> None:
    class Breaks(Entered):
        async def _events(self) -> AsyncIterator[Event]:
            yield Event("a")
            raise ConnectionError

    router, source = Router(), Breaks(enter=[None, OSError("not yet"), None])
    router.handle("a", recorder := Recorder())
    router.add_source(source, backoff=STEADY)
    async with running(router):
        await clock.advance(4)
        assert router.state().running
    assert len(recorder.events) == 2
    assert len(failures) == 3
    assert source.log == ["enter", "exit", "enter", "enter", "exit"]


async def test_a_source_that_ran_for_long_resets_its_backoff(clock: Clock, failures: Failures) -> None:
    async def steady() -> AsyncIterator[Event]:
        await asyncio.sleep(100)
        yield Event("a")
        raise ConnectionError

    router = Router()
    router.handle("a", Recorder())
    router.add_source(steady, backoff=STEADY)
    async with running(router):
        await clock.advance(350)
    assert [arguments["restart_in"] for _, arguments in failures] == [1, 1, 1]


@pytest.mark.parametrize(
    ("restart", "backoff"),
    [
        ("never", None),
        ("on_failure", Backoff(0.1, max_restarts=2, within=60)),
        ("on-failure", Backoff(0.1, max_restarts=2, within=60)),
    ],
)
async def test_a_source_is_not_restarted_after_too_many_failures(
    clock: Clock, failures: Failures, restart: Any, backoff: Any
) -> None:
    class Fails:
        async def run(self, emit: Any) -> None:
            raise RuntimeError("broken")

    router = Router()
    router.add_source(Fails(), restart=restart, backoff=backoff)
    async with running(router):
        await clock.advance(100)
        assert router.state().running
    assert len(failures) == (1 if restart == "never" else 3)
    assert failures[-1][1]["restart_in"] is None


async def test_an_exhausted_generator_is_not_restarted(clock: Clock, failures: Failures) -> None:
    async def breaks() -> AsyncIterator[Event]:
        yield Event("a")
        raise RuntimeError

    router = Router()
    router.add_source(breaks())
    async with running(router):
        await clock.advance(10)
    assert [arguments["restart_in"] for _, arguments in failures] == [None]


async def test_a_stray_cancellation_is_a_failure(clock: Clock, failures: Failures) -> None:
    class Cancels:
        async def run(self, emit: Any) -> None:
            raise asyncio.CancelledError

    router = Router()
    router.add_source(Cancels(), restart="never")
    async with running(router):
        await clock.advance(1)
        assert router.state().running
    assert isinstance(failures[0][1]["error"], asyncio.CancelledError)


async def test_an_unrouted_event_does_not_end_its_source(clock: Clock, recorder: Recorder, failures: Failures) -> None:
    router = Router()
    router.handle("b", recorder)
    router.add_source(Iterable("nobody", "b", "", "b"))
    async with running(router):
        await clock.advance(1)
    assert recorder.topics == ["b", "b"]
    assert failures == []
    assert router.state().unrouted == 2


# -- adding and removing sources ---------------------------------------------------------------------------------


async def test_sources_can_be_added_and_removed_while_running_even_by_a_handler(
    clock: Clock, recorder: Recorder
) -> None:
    router, late = Router(), ManualSource()
    first = ManualSource()
    router.handle("b", recorder)

    @router.on("a")
    def swap(_event: Event) -> None:
        router.remove_source(first)
        router.add_source(late)

    router.add_source(first)
    async with running(router):
        await (await first.send(Event("a")))
        await (await late.send(Event("b")))
        assert router.state().sources == 1
        assert [source.running for source in router.sources()] == [True]
    assert recorder.topics == ["b"]


async def test_a_source_blocked_on_a_full_lane_loses_nothing_when_the_router_stops(clock: Clock) -> None:
    router, handled, given = Router(buffer=1), list[int](), list[int]()

    async def slow(event: Event) -> None:
        await asyncio.sleep(0.5)
        handled.append(event.data)

    async def source() -> AsyncIterator[Event]:
        for number in range(100):
            given.append(number)
            yield Event("a", number)

    router.handle("a", slow)
    router.add_source(source)
    async with running(router):
        await clock.advance(0.6)
    assert handled == given
    assert len(given) < 10
    assert router.state().dropped == 0


async def test_a_source_with_close_delivers_its_buffer(clock: Clock) -> None:
    router, handled, source = Router(buffer=1), list[int](), BaseSource("held")

    async def slow(event: Event) -> None:
        await asyncio.sleep(0.1)
        handled.append(event.data)

    router.handle("a", slow)
    router.add_source(source)
    async with running(router):
        for number in range(9):
            assert source.try_emit(Event("a", number))
    assert handled == list(range(9))


class AsyncClose:
    """An object whose ``close`` closes a connection that is unrelated to the source."""

    async def run(self, emit: Any) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None: ...


class BadClose(AsyncClose):
    def close(self) -> None:  # type: ignore[override]  # that is the point
        raise OSError("cannot close")


@pytest.mark.parametrize("kind", [AsyncClose, BadClose])
async def test_a_source_that_cannot_be_closed_is_cancelled(clock: Clock, kind: Any) -> None:
    router = Router()
    router.add_source(kind())
    router.add_source(ManualSource())
    async with running(router):
        pass
    assert clock.time() < 1


async def test_a_source_that_waits_for_its_restart_does_not_delay_the_stop(clock: Clock) -> None:
    class Fails(BaseSource):
        async def run(self, emit: Any) -> None:
            raise RuntimeError

    router = Router()
    router.add_source(Fails("failing"), backoff=Backoff(initial=30))
    async with running(router):
        await clock.advance(1)
    assert clock.time() < 2


async def test_an_event_that_a_removed_source_is_emitting_is_counted(clock: Clock) -> None:
    router = Router(buffer=0)

    async def slow(_event: Event) -> None:
        await asyncio.sleep(10)

    async def source() -> AsyncIterator[Event]:
        yield Event("a", 0)
        yield Event("a", 1)

    router.handle("a", slow)
    router.add_source(source)
    async with running(router):
        await clock.settle()
        router.remove_source(source)
        await clock.settle()
        state = router.state()
        assert (state.routed, state.dropped) == (2, 1)
        router.stop()
        await clock.advance(10)


async def test_a_generator_is_closed_when_its_source_is_ended(clock: Clock) -> None:
    log: list[str] = []

    async def source() -> AsyncIterator[Event]:
        try:
            while True:
                await asyncio.sleep(1)
                yield Event("a")
        finally:
            log.append("closed")

    router = Router()
    router.handle("a", Recorder())
    router.add_source(source)
    async with running(router):
        await clock.advance(3.5)
    assert log == ["closed"]


# -- a router's lifecycle ----------------------------------------------------------------------------------------


async def test_stop_drains_accepted_events(clock: Clock) -> None:
    router, ended = Router(drain_timeout=50), list[int]()

    async def slow(event: Event) -> None:
        await asyncio.sleep(1)
        ended.append(event.data)

    router.handle("a", slow)
    async with running(router):
        for number in range(5):
            await router.emit(Event("a", number))
        await clock.settle()
    assert ended == [0, 1, 2, 3, 4]
    assert not router.state().running


async def test_cancelling_drains_nothing(clock: Clock) -> None:
    router, log = Router(), list[str]()

    async def slow(_event: Event) -> None:
        try:
            await asyncio.sleep(1)
            log.append("ended")
        except asyncio.CancelledError:
            log.append("cancelled")
            raise

    router.handle("a", slow)
    task = asyncio.create_task(router.run())
    await clock.settle()
    sent = [await router.emit(Event("a")) for _ in range(3)]
    await clock.advance(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["cancelled"]
    assert all(each.done for each in sent)
    assert router.state().dropped == 3
    assert clock.time() == 0.5


async def test_events_are_dropped_and_counted_after_the_drain_timeout(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    router = Router(drain_timeout=2)

    async def slow(_event: Event) -> None:
        await asyncio.sleep(1.5)

    router.handle("a", slow)
    async with running(router):
        for _ in range(4):
            await router.emit(Event("a"))
        await clock.settle()
    assert clock.time() == 2
    state = router.state()
    assert (state.handled, state.dropped) == (1, 3)
    assert caplog.messages == [
        (
            "router 'router' did not finish its events within Router(drain_timeout=2) seconds: "
            "cancelled 1 running handler (a); dropped 2 queued events (a)"
        )
    ]


async def test_the_message_about_unfinished_events_leaves_out_most_topics(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    router = Router("deploys", drain_timeout=1)

    async def slow(_event: Event) -> None:
        await asyncio.sleep(100)

    router.handle("job/*", slow, concurrency=7)
    async with running(router):
        for number in range(7):
            await router.emit(Event(f"job/{number}"))
        await clock.settle()
    assert caplog.messages == [
        (
            "router 'deploys' did not finish its events within Router(drain_timeout=1) seconds: "
            "cancelled 7 running handlers (job/0, job/1, job/2, job/3, job/4, …)"
        )
    ]


async def test_a_router_that_finishes_its_events_logs_nothing(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    router = Router(drain_timeout=2)

    async def slow(_event: Event) -> None:
        await asyncio.sleep(1.5)

    router.handle("a", slow)
    async with running(router):
        await router.emit(Event("a"))
        await clock.settle()
    assert caplog.messages == []


@pytest.mark.parametrize("when", [0.0, 0.5, 2.5])
async def test_a_drain_that_is_cancelled_still_leaves_nothing_running(clock: Clock, when: float) -> None:
    router, running_now = Router(drain_timeout=10), 0

    async def slow(_event: Event) -> None:
        nonlocal running_now
        running_now += 1
        try:
            await asyncio.sleep(100)
        finally:
            running_now -= 1

    router.handle("a", slow)
    task = asyncio.create_task(router.run())
    await clock.settle()
    sent = await router.emit(Event("a"))
    await clock.advance(0.1)
    router.stop()
    await clock.advance(when)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert running_now == 0
    assert sent.done
    # The router can also be run again.
    async with running(router):
        assert router.state().running


async def test_a_handler_that_ignores_its_cancellation_is_logged_and_abandoned(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    router, release = Router(drain_timeout=0.1), asyncio.Event()

    async def stubborn(_event: Event) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    router.handle("a/stubborn", stubborn)
    async with running(router):
        await router.emit(Event("a/stubborn"))
        await clock.settle()
    assert clock.time() < 5
    assert "ignored its cancellation" in caplog.text
    assert "a/stubborn" in caplog.text
    release.set()
    await clock.settle()


async def test_a_second_concurrent_run_raises_and_does_not_affect_the_first(clock: Clock, recorder: Recorder) -> None:
    router = Router(name="main")
    router.handle("a", recorder)
    async with running(router):
        with pytest.raises(RouterRunning, match="'main' is already running"):
            await router.run()
        with pytest.raises(RouterRunning):
            async with running(router):
                pass
        await (await router.emit(Event("a")))
    assert recorder.topics == ["a"]


async def test_a_router_may_run_again(clock: Clock, recorder: Recorder) -> None:
    router = Router()
    router.handle("a", recorder)
    router.handle("w", recorder, debounce=1)
    router.add_source(lambda: Iterable("a"))
    for _ in range(3):
        async with running(router):
            await clock.settle()
            await router.emit(Event("w"))
            await clock.advance(2)
    assert recorder.topics == ["a", "w"] * 3


async def test_events_emitted_before_run_wait_for_it(clock: Clock, recorder: Recorder) -> None:
    router = Router(buffer=3)
    router.handle("a", recorder)
    sent = [await router.emit(Event("a", number)) for number in range(4)]
    await clock.settle()
    assert recorder.events == []
    with pytest.raises(LaneFull, match="not running"):
        await router.emit(Event("a", 4))
    async with running(router):
        for each in sent:
            await each
    assert [event.data for event in recorder.events] == [0, 1, 2, 3]
    assert router.state().routed == 4


async def test_a_wait_for_capacity_ends_when_the_router_is_cancelled(clock: Clock) -> None:
    router = Router(buffer=1)

    async def slow(_event: Event) -> None:
        await asyncio.sleep(100)

    router.handle("a", slow)
    task = asyncio.create_task(router.run())
    await clock.settle()
    senders = [asyncio.create_task(router.emit(Event("a", number))) for number in range(6)]
    await clock.settle()
    task.cancel()
    await asyncio.wait([task])
    results = await asyncio.gather(*senders, return_exceptions=True)
    assert sum(isinstance(each, LaneFull) for each in results) == 1
    with pytest.raises(NotHandled):
        await results[0]  # type: ignore[misc]  # a delivery
    # Two events used the freed space. They wait in the accepting route until the router runs again.
    router.handle("a", recorder := Recorder(), replace=True)
    async with running(router):
        await clock.advance(300)
    assert recorder.events == []


async def test_stop_from_inside_a_handler_and_before_run_and_twice(clock: Clock) -> None:
    router = Router()
    router.stop()

    @router.on("a")
    def leave(_event: Event) -> None:
        router.stop()
        router.stop()

    await router.emit(Event("a"))
    await router.run()
    assert router.state().handled == 1


async def test_state_counts_routes_sources_and_events(clock: Clock) -> None:
    router = Router(name="main")
    router.handle("a", Recorder())
    router.handle("*", Recorder())
    router.use(lambda handler: handler)
    router.add_source(Runs())
    state = router.state()
    assert (state.name, state.routes, state.middlewares, state.sources, state.running) == ("main", 2, 1, 1, False)
    async with running(router):
        assert router.state().running
    assert "not running" in repr(router)


class Lodger(Source):
    """A source that records the calls to its methods."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self.log.append("entered")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.log.append("left")

    async def run(self, emit: Any) -> None:
        await emit(Event("a"))
        await self._closed.wait()
        self.log.append("ran")

    def close(self) -> None:
        self._closed.set()

    async def settle(self) -> None:
        self.log.append("settled")


async def test_a_source_that_settles_is_exited_after_the_router_has_drained(clock: Clock) -> None:
    """While its handlers run, the source may need to notify its clients that it is stopping."""
    router, source = Router(), Lodger()

    async def slow(_event: Event) -> None:
        await asyncio.sleep(1)
        source.log.append("handled")

    router.handle("a", slow)
    router.add_source(source)
    async with running(router):
        await clock.settle()
    assert source.log == ["entered", "ran", "handled", "left", "settled"]


async def test_a_source_that_ends_before_its_router_is_exited_immediately(clock: Clock) -> None:
    router, source = Router(), Lodger()
    router.handle("a", Recorder())
    router.add_source(source)
    async with running(router):
        source.close()
        await clock.settle()
        assert source.log == ["entered", "ran", "left"]
    assert source.log[-1] == "settled"


class Accountant(ManualSource):
    """A source that records the results of its deliveries once all of them have finished."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Any] = []
        self.ends: list[Any] | None = None

    async def send(self, event: Any) -> Any:
        self.sent.append(await super().send(event))

    async def settle(self) -> None:
        assert self.ends is None
        self.ends = [delivery.error if delivery.done else "under way" for delivery in self.sent]


async def _take_a_second(_event: Event) -> None:
    await asyncio.sleep(1)


@pytest.mark.parametrize("removed", [False, True])
async def test_a_source_settles_when_all_its_events_have_ended(clock: Clock, removed: bool) -> None:
    """Some of the events are handled while the router drains, after the source itself has finished."""
    router, source = Router(), Accountant()
    router.add_source(source)
    router.handle("a", _take_a_second)
    router.handle("b", lambda event: None, debounce=60)
    async with running(router):
        for topic in ("a", "a", "b"):
            await source.send(Event(topic))
        if removed:
            router.remove_source(source)
        assert source.ends is None
    assert source.ends == [None, None, None]


async def test_a_source_settles_when_the_router_is_cancelled_too(clock: Clock) -> None:
    router, source = Router(), Accountant()
    router.add_source(source)
    router.handle("a", _take_a_second)
    run = asyncio.create_task(router.run())
    await router.wait_running()
    await source.send(Event("a"))
    await asyncio.sleep(0.5)
    run.cancel()
    await asyncio.wait([run])
    assert source.ends is not None
    assert isinstance(source.ends[0], NotHandled)


async def test_a_source_that_cannot_settle_is_logged_and_blocks_no_other(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    class Careless(Accountant):
        async def settle(self) -> None:
            raise LookupError("where is my pen")

    class Slow(Accountant):
        async def settle(self) -> None:
            await asyncio.Event().wait()

    router, careful = Router(), Accountant()
    for source in (Careless(), careful, Slow()):
        router.add_source(source)
    async with running(router):
        pass
    assert careful.ends == []
    assert "where is my pen" in caplog.text


class Door(Source):
    """A source that pauses in its own way, such as refusing requests."""

    name = "door"

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pause_changed(self, *, paused: bool) -> None:
        self.calls.append("paused" if paused else "goes on")

    async def run(self, _: Any) -> None:
        await asyncio.Event().wait()


async def ticks() -> AsyncIterator[Event]:
    for number in range(1_000):
        await asyncio.sleep(1)
        yield Event(f"tick/{number}")


async def test_the_events_of_a_held_source_wait_and_none_is_lost(clock: Clock) -> None:
    router, seen = Router(), Recorder()
    router.add_source(ticks)
    router.handle("tick/*", seen)
    async with running(router):
        await clock.advance(2.5)
        router.hold_source("ticks")
        router.hold_source("ticks")
        assert [source.held for source in router.sources()] == [True]
        await clock.advance(100)
        assert seen.topics == ["tick/0", "tick/1"]
        router.release_source("ticks")
        router.release_source("ticks")
        await clock.advance(2.5)
    assert seen.topics == ["tick/0", "tick/1", "tick/2", "tick/3", "tick/4"]


async def test_a_source_that_pauses_in_its_own_way_is_called_once_for_each_change() -> None:
    router, source = Router(), Door()
    router.add_source(source)
    async with running(router):
        router.hold_source("door")
        router.hold_source("door")
        router.release_source("door")
        router.release_source("door")
    assert source.calls == ["paused", "goes on"]


async def test_the_event_that_a_held_source_is_emitting_is_delivered_at_the_end(clock: Clock) -> None:
    router, seen = Router(), Recorder()
    router.add_source(ticks)
    router.handle("tick/*", seen)
    async with running(router):
        router.hold_source("ticks")
        await clock.advance(3)
        assert seen.topics == []
    assert seen.topics == ["tick/0"]


async def test_a_held_source_with_a_buffer_emits_nothing() -> None:
    router, seen, source = Router(), Recorder(), BaseSource("pushed")
    router.add_source(source)
    router.handle("**", seen)
    async with running(router):
        router.hold_source("pushed")
        pushed = asyncio.create_task(source.emit(Event("a")))
        for _ in range(5):
            await asyncio.sleep(0)
        assert seen.topics == []
        router.release_source("pushed")
        await pushed
    assert seen.topics == ["a"]


async def test_a_source_that_is_held_and_suspended_goes_on_once_it_is_released_and_resumed(clock: Clock) -> None:
    class Clicks(Source):
        async def run(self, emit: Any) -> None:
            for number in range(100):
                await asyncio.sleep(1)
                await emit(Event("click", number))

    router, seen, source = Router(), Recorder(), Clicks()
    router.add_source(source)
    router.handle("click", seen)
    suspender = SuspendHandler()
    suspender.manage(source)
    (name,) = (each.name for each in router.sources())
    async with running(router):
        await suspender.suspend()
        router.hold_source(name)
        router.release_source(name)
        await clock.advance(5)
        assert seen.events == []
        router.hold_source(name)
        await suspender.resume()
        await clock.advance(5)
        assert seen.events == []
        router.release_source(name)
        await clock.advance(1)
        assert seen.events[0] == Event("click", 0)


async def test_a_suspended_source_delivers_the_event_it_is_emitting_when_the_router_stops(clock: Clock) -> None:
    router, seen, source = Router(), Recorder(), BaseSource("pushed")
    router.add_source(source)
    router.handle("**", seen)
    source.suspend()
    async with running(router):
        assert source.try_emit(Event("a"))
        assert source.try_emit(Event("b"))
        await clock.advance(1)
        assert seen.topics == []
    assert seen.topics == ["a", "b"]
    assert source.paused  # only `resume` ends a suspension
    async with running(router):
        assert source.try_emit(Event("c"))
        await clock.advance(1)
        assert seen.topics == ["a", "b"]
        source.resume()
        await clock.advance(1)
    assert seen.topics == ["a", "b", "c"]


async def test_a_pause_that_fails_leaves_the_source_as_it_was() -> None:
    class Stuck(Door):
        def pause_changed(self, *, paused: bool) -> None:
            raise ValueError("rusty")

    source = Stuck()
    with pytest.raises(ValueError, match="rusty"):
        source.suspend()
    assert not source.paused


def test_a_source_is_paused_while_it_is_held_or_suspended() -> None:
    for requests in itertools.product(Input, repeat=4):
        source, last = Door(), dict[str, Input]()
        for request in requests:
            getattr(source, request)()
            last["hold" if request in (Input.HOLD, Input.RELEASE) else "suspend"] = request
            held, suspended = last.get("hold") is Input.HOLD, last.get("suspend") is Input.SUSPEND
            assert (source.held, source.paused) == (held, held or suspended), requests
        assert source.calls == [("paused", "goes on")[number % 2] for number in range(len(source.calls))]


def test_every_phase_of_a_runner_ends_and_only_a_failed_source_waits() -> None:
    assert set(STEPS) == set(Phase)
    assert {phase for phase, steps in STEPS.items() if steps.get(Step.ENDED) is not Phase.STOPPED} == {Phase.STOPPED}
    assert {phase for phase, steps in STEPS.items() if Step.FAILED in steps} == {Phase.RUNNING, Phase.RESTARTING}
    assert {phase for phase, steps in STEPS.items() if Step.ENTERED in steps} == {Phase.STARTING, Phase.RESTARTING}
    assert {phase for phase, steps in STEPS.items() if Step.DUE in steps} == {Phase.WAITING}


async def test_a_source_whose_settle_would_never_run_is_refused() -> None:
    class Accountant(Source):
        async def run(self, emit: Any) -> None: ...

        def settle(self) -> None: ...  # type: ignore[override]  # that is the point

    with pytest.raises(TypeError, match=r"settle\(\) of the source .* define it with `async def`"):
        Router().add_source(Accountant())


async def test_an_unknown_source_name_is_refused() -> None:
    with pytest.raises(RouteNotFound, match=r"no source of router 'router' is named 'x'; router.sources\(\) lists"):
        Router().hold_source("x")
    with pytest.raises(RouteNotFound, match="'x'"):
        Router().release_source("x")


async def test_the_event_of_a_held_source_is_delivered_even_if_the_lane_is_full() -> None:
    router, seen, go_on = Router(buffer=1), Recorder(), asyncio.Event()

    async def numbers() -> AsyncIterator[Event]:
        yield Event("number/1")

    @router.on("**")
    async def slow(event: Event) -> None:
        await go_on.wait()
        seen(event)

    router.add_source(numbers)
    router.hold_source(router.sources()[0].name)
    async with running(router):
        first = router.emit_nowait(Event("busy"))
        await asyncio.sleep(0)
        second = router.emit_nowait(Event("full"))
        router.stop()
        for _ in range(10):
            await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(first, second)
    assert seen.topics == ["busy", "full", "number/1"]


async def test_sources_are_released_when_the_router_ends() -> None:
    router, source, silent = Router(), Door(), BaseSource("silent")
    router.add_source(source)
    router.add_source(silent)
    async with running(router):
        router.hold_source("door")
        router.hold_source("silent")
    assert source.calls == ["paused", "goes on"]
    assert not any(each.held for each in router.sources())


async def test_a_source_that_cannot_be_released_does_not_block_the_others(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Door):
        def pause_changed(self, *, paused: bool) -> None:
            if not paused:
                raise ValueError("rusty")

    router, source = Router(), Door()
    source.name = "other"
    router.add_source(Stuck())
    router.add_source(source)
    async with running(router):
        router.hold_source("door")
        router.hold_source("other")
    assert source.calls == ["paused", "goes on"]
    assert "source 'door' could not be released" in caplog.text


async def test_a_source_that_had_not_started_when_its_router_stopped_runs_with_it_again(clock: Clock) -> None:
    class Slow(Source):
        async def __aenter__(self) -> Self:
            await asyncio.sleep(1)
            return self

        async def run(self, emit: Any) -> None:
            await asyncio.Event().wait()

    router, seen, late = Router(), Recorder(), BaseSource("late")
    router.handle("a", seen)
    router.add_source(Slow())
    router.add_source(late)
    run = asyncio.create_task(router.run())
    await asyncio.sleep(0.5)
    assert late.try_emit(Event("a", "before"))
    router.stop()
    await run
    assert late.try_emit(Event("a", "between the runs"))
    async with running(router):
        assert late.try_emit(Event("a", "in the second run"))
        await clock.settle()
        assert late.try_emit(Event("a", "later"))
    assert [event.data for event in seen.events] == ["before", "between the runs", "in the second run", "later"]


async def test_a_source_that_had_failed_when_its_router_stopped_runs_with_it_again(clock: Clock) -> None:
    class Fails(BaseSource):
        fails = True

        async def run(self, emit: Any) -> None:
            if self.fails:
                raise ConnectionError
            await super().run(emit)

    router, seen, source = Router(), Recorder(), Fails("mailbox")
    router.handle("a", seen)
    router.add_source(source, restart="never")
    async with running(router):
        await clock.settle()
    source.fails = False
    async with running(router):
        await clock.settle()
        assert source.try_emit(Event("a"))
    assert seen.topics == ["a"]


async def test_objects_that_are_not_sources_are_entered_and_named_but_not_closed(clock: Clock) -> None:
    """An object may have a method ``close`` for another purpose, so only a `Source` is closed."""

    class Connection(Entered):
        closed = False

        async def run(self, emit: Any) -> None:
            await emit(Event("a"))
            await asyncio.Event().wait()

        def close(self) -> None:
            self.closed = True

    router, seen, source = Router(), Recorder(), Connection(name="connection")
    router.handle("a", seen)
    router.add_source(source)
    async with running(router):
        await clock.settle()
        assert [each.name for each in router.sources()] == ["connection"]
    assert (seen.topics, source.log, source.closed) == (["a"], ["enter", "exit"], False)


def test_a_source_without_run_cannot_be_created() -> None:
    class Silent(Source):
        pass

    with pytest.raises(TypeError, match="run"):
        Silent()  # type: ignore[abstract]  # that is the point

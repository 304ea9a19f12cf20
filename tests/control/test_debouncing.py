"""Debouncing: one call per burst, no lost events, no blocked emitters, and merged file events."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle import hooks
from lifecycle.control import Debounce, Delivery, Dropped, Event, FileBatch, FileEvent, Router, debounce, merge_files
from lifecycle.testing import Clock, ManualSource, Recorder, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


def data_of(sent: Delivery) -> Any:
    assert isinstance(sent.event, Event)
    return sent.event.data


def join(pending: Event, new: Event) -> Event:
    return Event("a", pending.data + new.data)


class Bench:
    """A debounce window under test, with or without a router. Tests call ``send``, and then check ``called``."""

    def __init__(self) -> None:
        self.called: list[Any] = []
        self.times: list[float] = []

    def handler(self, event: Event) -> None:
        self.called.append(event.data)
        self.times.append(round(asyncio.get_running_loop().time(), 3))


@pytest.fixture(params=["route", "alone"])
async def made(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Any]]:
    """Return a function that takes settings and returns ``(send, close)``.

    Routes and `debounce` have the same guarantees.
    """
    if request.param == "route":
        router = Router()
        task = asyncio.create_task(router.run())

        def make(handler: Any, wait: float, **settings: Any) -> Any:
            router.handle("**", handler, debounce=Debounce(wait, **settings))

            async def close() -> None:
                router.stop()
                await asyncio.wait([task])

            return router.emit, close

        yield make
        router.stop()
        await task
    else:
        kept: list[Any] = []

        def make_alone(handler: Any, wait: float, **settings: Any) -> Any:
            each = debounce(handler, wait, **settings)
            kept.append(each)
            return each, each.flush

        yield make_alone
        for each in kept:
            await each.flush()


@pytest.mark.keeps_tasks
async def test_three_events_of_a_burst_make_one_call_with_the_newest(clock: Clock, made: Any) -> None:
    bench = Bench()
    send, _ = made(bench.handler, 1)
    for number in range(3):
        await send(Event("a", number))
        await clock.advance(0.9)
    assert bench.called == []
    await clock.advance(0.2)
    assert bench.called == [2]
    assert bench.times == [2.8]


@pytest.mark.keeps_tasks
async def test_merging_three_events_gives_one(clock: Clock, made: Any) -> None:
    bench = Bench()
    send, _ = made(bench.handler, 1, merge=join)
    for text in "ABC":
        await send(Event("a", text))
    await clock.advance(2)
    assert bench.called == ["ABC"]


@pytest.mark.keeps_tasks
async def test_max_wait_holds_without_a_further_event(clock: Clock, made: Any) -> None:
    bench = Bench()
    send, _ = made(bench.handler, 1, max_wait=2.5, merge=join)
    for text in "ABCD":
        await send(Event("a", text))
        await clock.advance(0.8)
    assert bench.called == ["ABCD"]
    assert bench.times == [2.5]
    await send(Event("a", "E"))
    await clock.advance(2)
    assert bench.called == ["ABCD", "E"]


@pytest.mark.keeps_tasks
async def test_closing_delivers_pending_events(clock: Clock, made: Any) -> None:
    bench = Bench()
    send, close = made(bench.handler, 100, merge=join, key=lambda event: event.data.lower())
    for text in "AaB":
        await send(Event("a", text))
    await close()
    assert bench.called == ["Aa", "B"]
    assert clock.time() < 1


@pytest.mark.keeps_tasks
async def test_keys_do_not_delay_each_other(clock: Clock, made: Any) -> None:
    bench = Bench()
    send, _ = made(bench.handler, 1, key=lambda event: event.topic)
    await send(Event("a", "a"))
    for _ in range(4):
        await clock.advance(0.5)
        await send(Event("b", "b"))
    assert bench.called == ["a"]
    await clock.advance(1)
    assert bench.called == ["a", "b"]
    assert bench.times == [1, 3]


@pytest.mark.keeps_tasks
async def test_a_failing_handler_is_reported_and_the_next_burst_is_delivered(
    clock: Clock, made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    calls, errors = list[Any](), list[Any]()

    def handler(event: Event) -> None:
        calls.append(event.data)
        if event.data == 0:
            raise RuntimeError("the build broke")

    def note(_sender: object, *, event: Event, pattern: Any, error: BaseException) -> None:
        errors.append((event.data, str(error)))

    hooks.handler_failed.connect(note)
    try:
        send, _ = made(handler, 1)
        for number in range(2):
            await send(Event("a", number))
            await clock.advance(2)
    finally:
        hooks.handler_failed.disconnect(note)
    assert calls == [0, 1]
    assert errors == [(0, "the build broke")]
    assert "the build broke" in caplog.text


@pytest.mark.keeps_tasks
async def test_calls_for_one_key_never_overlap_and_the_last_event_is_always_delivered(clock: Clock, made: Any) -> None:
    now, most, ended = Counter[str](), Counter[str](), list[Any]()

    async def handler(event: Event) -> None:
        now[event.topic] += 1
        most[event.topic] = max(most[event.topic], now[event.topic])
        await asyncio.sleep(5)
        now[event.topic] -= 1
        ended.append(event.data)

    send, _ = made(handler, 1, key=lambda event: event.topic)
    for number in range(6):
        await send(Event("a", number))
        await clock.advance(1.5)
    await clock.advance(60)
    assert most == {"a": 1}
    assert ended[-1] == 5


@pytest.mark.parametrize("wrong", [{"wait": -1}, {"wait": 2, "max_wait": 1}])
def test_invalid_settings_of_a_debounce_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="wait must be"):
        Debounce(**wrong)
    with pytest.raises(ValueError, match="wait must be"):
        debounce(Recorder(), **wrong)


@pytest.mark.parametrize("wrong", [{"key": "repo"}, {"merge": "newest"}])
def test_a_key_or_merge_that_is_not_callable_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(wrong))}=.*, got '{next(iter(wrong.values()))}'"):
        Debounce(1, **wrong)
    with pytest.raises(TypeError, match="use one such as lambda"):
        debounce(Recorder(), 1, **wrong)


def test_debounce_checks_its_handler() -> None:
    with pytest.raises(TypeError, match="handler"):
        debounce(7, 1)  # type: ignore[arg-type]  # that is the point


# -- debounced routes --------------------------------------------------------------------------------------------


async def test_every_merged_event_is_delivered_when_the_merged_call_ends(clock: Clock) -> None:
    router = Router()

    async def slow(_event: Event) -> None:
        await asyncio.sleep(3)

    router.handle("a", slow, debounce=Debounce(1, merge=join))
    async with running(router):
        sent = [await router.emit(Event("a", text)) for text in "ABC"]
        assert [data_of(each) for each in sent] == ["A", "B", "C"]
        for each in sent:
            await each
            assert clock.time() == 4
        assert len({each.id for each in sent}) == 3
    state = router.state()
    assert (state.routed, state.handled) == (3, 1)


async def test_every_merged_event_gets_the_error_of_the_merged_call(clock: Clock) -> None:
    router = Router()

    def fails(_event: Event) -> None:
        raise OSError("disk")

    router.handle("a", fails, debounce=1)
    async with running(router):
        sent = [await router.emit(Event("a")) for _ in range(3)]
        for each in sent:
            with pytest.raises(OSError, match="disk"):
                await each


@pytest.mark.parametrize("part", ["merge", "key"])
async def test_a_failing_merge_or_key_is_reported_and_keeps_pending_events(clock: Clock, part: str) -> None:
    router, bench = Router(), Bench()
    settings: dict[str, Any] = {}

    def part_that_fails(*events: Event) -> Any:
        if events[-1].data == "bad":
            raise LookupError("cannot fold")
        return events[-1] if part == "merge" else "one"

    settings[part] = part_that_fails
    router.handle("a", bench.handler, debounce=Debounce(1, **settings))
    async with running(router):
        good = await router.emit(Event("a", "good"))
        bad = await router.emit(Event("a", "bad"))
        with pytest.raises(LookupError, match="cannot fold"):
            await bad
        await good
    assert bench.called == ["good"]
    assert router.state().failed == 1


async def test_an_unhashable_key_is_reported(clock: Clock) -> None:
    router = Router()
    router.handle("a", Recorder(), debounce=Debounce(1, key=lambda _: []))  # type: ignore[arg-type,return-value]  # wrong on purpose
    async with running(router):
        with pytest.raises(TypeError, match="unhashable"):
            await (await router.emit(Event("a")))


async def test_debounce_and_restart_cancel_a_running_build_when_the_next_burst_ends(clock: Clock) -> None:
    router, log, at_work, most = Router(), list[str](), 0, 0

    async def build(event: Event) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        try:
            await asyncio.sleep(30)
            log.append(f"built {event.data}")
        finally:
            await asyncio.sleep(0.3)
            at_work -= 1

    router.handle("file/*", build, debounce=Debounce(0.2, max_wait=2), busy="restart")
    async with running(router):
        for number in range(20):
            sent = await router.emit(Event("file/x", number))
            await clock.advance(0.15 if number % 5 else 1)
        await sent
    assert log == ["built 19"]
    assert most == 1


async def test_a_burst_continues_to_merge_while_its_lane_is_full_and_blocks_no_emitter(clock: Clock) -> None:
    router, called = Router(buffer=1), list[str]()

    async def slow(event: Event) -> None:
        await asyncio.sleep(10)
        called.append(event.data)

    router.handle("a", slow, debounce=Debounce(0.1, merge=join))
    async with running(router):
        for text in "ABCDEFGH":
            await router.emit(Event("a", text))
            await clock.advance(0.2)
        assert clock.time() < 2
        await clock.advance(60)
    assert called == ["A", "B", "CDEFGH"]


async def test_debounces_and_sources_that_wait_for_one_lane_all_make_progress(clock: Clock) -> None:
    router, called = Router(buffer=1), list[str]()

    async def slow(event: Event) -> None:
        await asyncio.sleep(1)
        called.append(event.data)

    router.handle("w/*", slow, lane="one", debounce=Debounce(0.1, key=lambda event: event.topic))
    router.handle("p", slow, lane="one")
    async with running(router):
        plain = [asyncio.create_task(router.emit(Event("p", f"p{number}"))) for number in range(4)]
        for number in range(3):
            await router.emit(Event(f"w/{number}", f"w{number}"))
        await clock.advance(0.5)
        await asyncio.gather(*plain)
        await clock.advance(20)
    assert sorted(called) == ["p0", "p1", "p2", "p3", "w0", "w1", "w2"]


async def test_busy_drop_after_a_debounce_drops_the_whole_burst(clock: Clock) -> None:
    router = Router()

    async def slow(_event: Event) -> None:
        await asyncio.sleep(10)

    router.handle("a", slow, debounce=0.1, busy="drop")
    async with running(router):
        await router.emit(Event("a"))
        await clock.advance(1)
        sent = [await router.emit(Event("a")) for _ in range(2)]
        for each in sent:
            with pytest.raises(Dropped):
                await each
        await clock.advance(10)


async def test_after_its_router_has_closed_events_are_not_debounced(clock: Clock) -> None:
    router, late = Router(), ManualSource()
    bench = Bench()

    async def cleanup(_event: Event) -> None:
        await asyncio.sleep(1)
        await router.emit(Event("a", "late"))

    router.handle("a", bench.handler, debounce=100)
    router.handle("b", cleanup)
    router.add_source(late)
    async with running(router):
        await router.emit(Event("b"))
        await clock.settle()
    assert bench.called == ["late"]
    assert bench.times == [1]


async def test_events_before_a_second_run_are_merged_as_before_the_first(clock: Clock) -> None:
    router, bench = Router(), Bench()
    router.handle("a", bench.handler, debounce=1)
    for run in ("first", "second"):
        for number in range(3):
            await router.emit(Event("a", f"{run} {number}"))
        async with running(router):
            await clock.advance(2)
    assert bench.called == ["first 2", "second 2"]


async def test_a_handler_that_holds_events_is_flushed_when_the_router_closes(clock: Clock) -> None:
    router, bench = Router(), Bench()
    router.handle("a", debounce(bench.handler, 100, merge=join))
    async with running(router):
        for text in "AB":
            await (await router.emit(Event("a", text)))
    assert bench.called == ["AB"]


async def test_a_handler_with_a_method_called_flush_is_not_flushed(clock: Clock) -> None:
    flushed: list[bool] = []

    class Writer:
        async def __call__(self, _event: Event) -> None: ...

        async def flush(self) -> None:
            flushed.append(True)

    router = Router()
    router.handle("a", Writer())
    async with running(router):
        await (await router.emit(Event("a")))
    assert flushed == []


async def test_ten_thousand_events_of_a_burst_set_one_timer(clock: Clock) -> None:
    router, bench = Router(), Bench()
    router.handle("a", bench.handler, debounce=1)
    async with running(router):
        loop: Any = asyncio.get_running_loop()
        before = len(loop._scheduled)
        for number in range(10_000):
            router.emit_nowait(Event("a", number))
        assert len(loop._scheduled) - before <= 1
        await clock.advance(2)
    assert bench.called == [9999]


async def test_many_keys_leave_nothing_behind(clock: Clock) -> None:
    router = Router()
    router.handle("a", recorder := Recorder(), debounce=Debounce(1, key=lambda event: event.data))
    async with running(router):
        for number in range(1000):
            router.emit_nowait(Event("a", number))
        await clock.advance(2)
        assert router.routes()[0].held == 0
    assert len(recorder.events) == 1000


# -- without a router --------------------------------------------------------------------------------------------


async def test_flush_waits_for_its_calls_and_not_for_later_events(clock: Clock) -> None:
    ended: list[int] = []

    async def slow(event: Event) -> None:
        await asyncio.sleep(1)
        ended.append(event.data)
        if 10 <= event.data < 50:
            await each(Event("a", event.data + 1))

    each = debounce(slow, 0.1)
    await each(Event("a", 0))
    await clock.advance(0.5)  # the handler is running
    await each(Event("a", 10))  # this event waits for the first call
    await each.flush()
    # The call for event 10 sends event 11 before flush() returns, but flush() does not wait for event 11.
    assert ended == [0, 10]
    while ended[-1] < 50:
        await clock.advance(1)
    assert ended == [0, *range(10, 51)]


async def test_flush_without_pending_events_returns_immediately(clock: Clock) -> None:
    await debounce(Recorder(), 1).flush()
    assert clock.time() == 0


async def test_a_stray_cancellation_of_a_debounced_handler_is_reported(clock: Clock) -> None:
    def gives_up(_event: Event) -> None:
        raise asyncio.CancelledError

    failed: list[Any] = []

    def note(_sender: object, *, event: Event, pattern: Any, error: BaseException) -> None:
        failed.append(error)

    each = debounce(gives_up, 1)
    hooks.handler_failed.connect(note)
    try:
        await each(Event("a"))
        await each.flush()
    finally:
        hooks.handler_failed.disconnect(note)
    assert [type(error) for error in failed] == [asyncio.CancelledError]


# -- files -------------------------------------------------------------------------------------------------------

changes = st.sampled_from(["added", "modified", "deleted"])
file_events = st.builds(FileEvent, changes, st.sampled_from([Path("a"), Path("b"), Path("c")]))


def plainly_folded(events: list[FileEvent]) -> dict[Path, str]:
    """Return the merged change for each path, by the three documented rules."""
    net: dict[Path, str] = {}
    for event in events:
        match net.get(event.path), event.change:
            case "added", "deleted":
                del net[event.path]
            case "added", "modified":
                net[event.path] = "added"
            case "deleted", "added":
                net[event.path] = "modified"
            case _, change:
                net[event.path] = change
    return net


@given(st.lists(file_events, min_size=2, max_size=30))
def test_merge_files_agrees_with_a_plain_implementation(events: list[FileEvent]) -> None:
    batch: Any = functools.reduce(merge_files, events)  # type: ignore[arg-type]  # folding changes the type
    assert isinstance(batch, FileBatch)
    assert batch.changes == plainly_folded(events)
    assert batch.topic == "file/batch"


@given(st.lists(file_events, min_size=1, max_size=8), st.lists(file_events, min_size=1, max_size=8))
def test_batches_are_merged_like_single_events(first: list[FileEvent], second: list[FileEvent]) -> None:
    one = FileBatch(plainly_folded(first))  # type: ignore[arg-type]  # the batch has only changes
    other = FileBatch(plainly_folded(second))  # type: ignore[arg-type]
    before = dict(one.changes), dict(other.changes)
    expected = plainly_folded([FileEvent(change, path) for each in before for path, change in each.items()])
    assert merge_files(one, other).changes == expected
    assert (one.changes, other.changes) == before


async def test_a_burst_of_one_file_event_is_a_batch_too(clock: Clock) -> None:
    router = Router()
    router.handle("file/*", recorder := Recorder(), debounce=Debounce(1, merge=merge_files))
    async with running(router):
        await router.emit(FileEvent("added", Path("a")))
    assert recorder.events == [FileBatch({Path("a"): "added"})]


async def test_a_delivered_batch_does_not_change(clock: Clock) -> None:
    router, got, passed = Router(), list[FileBatch](), list[FileBatch]()
    router.handle("file/batch", passed.append, debounce=Debounce(5, merge=merge_files))
    router.handle("file/*", got.append, debounce=Debounce(1, merge=merge_files))
    async with running(router):
        await (await router.emit(FileEvent("added", Path("a"))))
        await router.emit(got[0])
        await router.emit(FileBatch({Path("b"): "deleted"}))
        await clock.advance(10)
    assert got[0].changes == {Path("a"): "added"}
    assert passed[0].changes == {Path("a"): "added", Path("b"): "deleted"}


def test_merge_files_refuses_other_events() -> None:
    with pytest.raises(TypeError, match="FileEvent and FileBatch only"):
        merge_files(Event("a"), Event("b"))  # type: ignore[arg-type]  # that is the point


def test_merging_many_files_does_not_copy_the_batch() -> None:
    batch: Any = FileEvent("added", Path("0"))
    batch = merge_files(batch, FileEvent("added", Path("1")))
    held = batch.changes
    for number in range(10_000):
        batch = merge_files(batch, FileEvent("added", Path(str(number))))
    assert batch.changes is held
    assert len(held) == 10_000


async def test_bursts_that_wait_for_capacity_are_dropped_when_the_router_stops(clock: Clock) -> None:
    router = Router(buffer=0, drain_timeout=0.1)

    async def slow(_event: Event) -> None:
        await asyncio.sleep(60)

    router.handle("a", slow, debounce=Debounce(0.1, key=lambda event: event.data))
    async with running(router):
        sent = [await router.emit(Event("a", number)) for number in range(3)]
        await clock.advance(1)
        assert [route.held for route in router.routes()] == [2]
    assert [type(each.error) for each in sent] == [Dropped] * 3
    assert [lane.waiting for lane in router.lanes()] == [0]
    assert router.state().dropped == 3

"""The event log: the latest events with their results, for queries and followers."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import hooks, run
from lifecycle.control import Debounce, Dropped, Event, LaneFull, NotHandled, Router
from lifecycle.observe import Entry, EventLog, EventOutcome
from lifecycle.runtime import lifetime
from lifecycle.testing import Clock, running

if TYPE_CHECKING:
    from collections.abc import Callable


async def nothing(_event: Event) -> None:
    pass


async def slow(_event: Event) -> None:
    await asyncio.sleep(1)


async def fails(_event: Event) -> None:
    raise ValueError("the disk is on fire")


async def passes(_event: Event) -> None:
    raise NotHandled


def fates(log: EventLog) -> list[tuple[str, str]]:
    return [(entry.topic, str(entry.what)) for entry in log.entries()]


async def test_find_lets_other_tasks_run(clock: Clock) -> None:
    router, turns = Router(), 0
    router.handle("**", nothing)
    async with EventLog() as log, running(router):
        for number in range(1000):
            await router.emit(Event(f"{'a' if number % 10 else 'b'}/{number}"))
        await clock.settle()
        finding = asyncio.create_task(log.find("b/*", limit=50))
        while not finding.done():
            await asyncio.sleep(0)
            turns += 1
        # Half of the log is searched, one slice per iteration of the loop.
        assert turns > 4
        assert finding.result() == log.entries("b/*", limit=50)
        assert [entry.topic for entry in await log.find(limit=2)] == ["a/998", "a/999"]


# -- outcomes ---------------------------------------------------------------------------------------------------


async def test_the_entry_of_a_handled_event(clock: Clock) -> None:
    router = Router("main")
    router.handle("a", slow)
    async with EventLog() as log, running(router):
        sent = await router.emit(Event("a", {"n": 1}))
        await sent
    [entry] = log.entries()
    assert entry == Entry(
        id=sent.id,
        parent=None,
        topic="a",
        summary="{n: 1}",
        router="main",
        time=entry.time,
        pattern="a",
        handler="slow",
        what=EventOutcome.HANDLED,
        into=None,
        merged=0,
        waited=0.0,
        duration=1.0,
        error=None,
        attempt=1,
        passed=(),
    )
    assert entry.over


async def test_an_open_event_is_shown_in_its_current_state(clock: Clock) -> None:
    router = Router()
    router.handle("a", slow)
    async with EventLog() as log, running(router):
        first, second = await router.emit(Event("a")), await router.emit(Event("a"))
        assert [entry.what for entry in log.entries()] == [EventOutcome.QUEUED, EventOutcome.QUEUED]
        await clock.advance(0.5)
        assert [entry.what for entry in log.entries()] == [EventOutcome.RUNNING, EventOutcome.QUEUED]
        await second
        waited = [entry.waited for entry in log.entries()]
    assert first.done
    assert waited == [0.0, 1.0]


async def test_a_failed_event_has_its_error(clock: Clock) -> None:
    router = Router()
    router.handle("a", fails)
    async with EventLog() as log, running(router):
        await router.emit(Event("a"))
    [entry] = log.entries()
    assert (entry.what, entry.error) == (EventOutcome.FAILED, "ValueError: the disk is on fire")


async def test_a_passed_event_lists_the_routes(clock: Clock) -> None:
    router = Router()
    router.handle("a/b", passes)
    router.handle("a/*", passes)
    router.handle("**", slow)
    async with EventLog() as log, running(router):
        sent = await router.emit(Event("a/b"))
        await clock.advance(0.5)
        [halfway] = log.entries()
        await sent
    [entry] = log.entries()
    assert halfway.what is EventOutcome.RUNNING
    assert (entry.what, entry.pattern, entry.passed) == (EventOutcome.HANDLED, "**", ("a/b", "a/*"))


async def test_an_event_without_a_route_is_unrouted(clock: Clock) -> None:
    router = Router()
    router.handle("a", passes)
    async with EventLog() as log, running(router):
        with pytest.raises(NotHandled):
            await router.emit(Event("b"))
        with pytest.raises(NotHandled):
            await (await router.emit(Event("a")))
        router.fallback(nothing)
        await (await router.emit(Event("c")))
    assert fates(log) == [("b", "unrouted"), ("a", "unrouted"), ("c", "handled")]
    assert [entry.pattern for entry in log.entries()] == [None, "a", "(fallback)"]


async def test_dropped_and_refused_events(clock: Clock) -> None:
    router = Router(buffer=0)
    router.handle("busy", slow, busy="drop")

    async def to_itself(_event: Event) -> None:
        await router.emit(Event("full"))
        await router.emit(Event("full"))

    router.handle("full", to_itself)
    async with EventLog() as log, running(router):
        await router.emit(Event("busy"))
        await clock.advance(0.1)
        with pytest.raises(Dropped):
            await (await router.emit(Event("busy")))
        with pytest.raises(LaneFull):
            await (await router.emit(Event("full")))
    assert ("busy", "dropped") in fates(log)
    assert ("full", "refused") in fates(log)


async def test_the_entry_of_a_superseded_event(clock: Clock) -> None:
    router = Router()
    router.handle("a", slow, busy="restart")
    async with EventLog() as log, running(router):
        for _ in range(3):
            await router.emit(Event("a"))
            await clock.advance(0.1)
    assert fates(log) == [("a", "superseded"), ("a", "superseded"), ("a", "handled")]


async def test_a_merged_event_refers_to_its_call(clock: Clock) -> None:
    router = Router()
    router.handle("a/*", nothing, debounce=Debounce(0.5, merge=lambda _old, _new: Event("a/all")))
    async with EventLog() as log, running(router):
        first, second = await router.emit(Event("a/1")), await router.emit(Event("a/2"))
        [held] = [entry for entry in log.entries() if entry.what is EventOutcome.HELD]
        await second
    call = log.get(held.id)
    assert call is not None
    assert (call.topic, call.what, call.merged, call.waited) == ("a/all", EventOutcome.HANDLED, 2, 0.5)
    merged = [log.get(sent.id) for sent in (first, second)]
    assert [entry and (entry.what, entry.into) for entry in merged] == [(EventOutcome.MERGED, held.id)] * 2


async def test_a_debounced_call_waits_in_the_lane_like_any_other(clock: Clock) -> None:
    router = Router()
    router.handle("a", slow, debounce=0.1, lane="one")
    router.handle("b", slow, lane="one")
    async with EventLog() as log, running(router):
        await router.emit(Event("b"))
        await router.emit(Event("a"))
        assert fates(log) == [("b", "queued"), ("a", "merged"), ("a", "held")]
        await clock.advance(0.5)
        assert fates(log) == [("b", "running"), ("a", "merged"), ("a", "queued")]


async def test_events_that_a_stopping_router_gives_up_are_dropped(clock: Clock) -> None:
    router = Router(drain_timeout=0.1)
    router.handle("a", slow)
    async with EventLog() as log, running(router):
        for _ in range(3):
            await router.emit(Event("a"))
    assert fates(log) == [("a", "dropped")] * 3


async def test_an_entry_has_the_number_of_its_attempt(clock: Clock) -> None:
    router = Router()
    router.handle("a", nothing)
    async with EventLog() as log, running(router):
        (await router.emit(Event("a"))).again(3)
    assert [entry.attempt for entry in log.entries()] == [3]


async def test_an_event_without_a_topic_is_known_too(clock: Clock) -> None:
    async with EventLog() as log:
        for topic in ("", "x" * 2000, 5):
            with pytest.raises(NotHandled):
                await Router().emit(Event(topic))  # type: ignore[arg-type]  # what a program may do by mistake
    assert [entry.topic[:10] for entry in log.entries()] == ["", "x" * 10, "(int)"]
    assert len(log.entries()[1].topic) == 1024


async def test_names_are_cut(clock: Clock) -> None:
    long = "n" * 10**6
    router = Router(long)
    nothing_long = type(long, (), {"__call__": lambda _self, _event: None})()
    router.handle("a/" + "*" * 10**4, nothing_long)
    async with EventLog() as log, running(router):
        await (await router.emit(Event("a/b")))
    assert len(json.dumps(log.entries()[0].to_dict())) < 10_000


# -- retention --------------------------------------------------------------------------------------------------


async def test_only_the_last_are_kept(clock: Clock) -> None:
    router = Router()
    router.handle("**", nothing)
    async with EventLog(2) as log, running(router):
        for number in range(5):
            await (await router.emit(Event(f"a/{number}")))
    assert fates(log) == [("a/3", "handled"), ("a/4", "handled")]
    assert (log.state().kept, log.state().seen, log.state().under_way) == (2, 5, 0)


async def test_events_in_flight_are_kept_beyond_the_size_of_the_log(clock: Clock) -> None:
    router = Router()
    router.handle("**", slow, concurrency=3)
    async with EventLog(1) as log, running(router):
        sent = [await router.emit(Event(f"a/{number}")) for number in range(3)]
        await clock.advance(0.1)
        assert [entry.topic for entry in log.entries()] == ["a/2"]
        old = log.get(sent[0].id)
        assert old is not None
        assert (old.topic, old.what) == ("a/0", EventOutcome.RUNNING)
        await clock.advance(1)
        assert log.get(sent[0].id) is None


async def test_entries_are_chosen_by_pattern_and_number(clock: Clock) -> None:
    router = Router()
    router.handle("**", nothing)
    async with EventLog() as log, running(router):
        for topic in ("a/1", "b/1", "a/2", "a/3"):
            await (await router.emit(Event(topic)))
    assert [entry.topic for entry in log.entries("a/*", limit=2)] == ["a/2", "a/3"]
    assert log.entries(limit=0) == []
    assert log.get(-1) is None


async def test_an_event_is_not_kept_alive(clock: Clock) -> None:
    @dataclass
    class Large:
        topic: str = "a"

    router = Router()
    router.handle("a", nothing)
    async with EventLog() as log, running(router):
        event = Large()
        gone = weakref.ref(event)
        await (await router.emit(event))
        del event
        await clock.settle()
        gc.collect()
        assert gone() is None
        assert [entry.summary for entry in log.entries()] == ["Large()"]


async def test_events_that_never_ended_are_released_when_the_log_closes(clock: Clock) -> None:
    router = Router()
    router.handle("a", slow)
    async with EventLog() as log:
        sent = await router.emit(Event("a"))
    assert fates(log) == [("a", "queued")]
    assert log.state().under_way == 0
    async with running(router):
        await sent
    assert fates(log) == [("a", "queued")]


# -- recorded routers -------------------------------------------------------------------------------------------


async def test_routers_of_another_lifetime_are_not_its_business(clock: Clock) -> None:
    mine, inner, other = Router("mine"), Router("inner"), Router("other")
    for router in (mine, inner, other):
        router.handle("**", nothing)
    async with lifetime(signals=False), EventLog() as log, running(mine):
        await (await mine.emit(Event("a")))
        async with lifetime(signals=False), running(inner):
            await (await inner.emit(Event("a")))
    async with lifetime(signals=False), running(other):
        await (await other.emit(Event("a")))
    assert [entry.router for entry in log.entries()] == ["mine", "inner"]


async def test_an_event_emitted_from_outside_the_lifetime_is_recorded(clock: Clock) -> None:
    router = Router()
    router.handle("**", nothing)
    outside = asyncio.create_task(_later(lambda: router.emit_nowait(Event("a"))))
    async with lifetime(signals=False), running(router), EventLog() as log:
        await outside
    assert fates(log) == [("a", "handled")]


async def test_an_event_that_another_thread_gives_to_a_router_at_rest_is_nobodys_business(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    router = Router()
    router.handle("**", nothing)
    async with EventLog() as log:
        await asyncio.to_thread(router.emit_nowait, Event("a"))
    assert log.entries() == []
    assert caplog.records == []


async def _later(call: Callable[[], Any]) -> None:
    await asyncio.sleep(1)
    call()


async def test_the_current_one_is_found_under_the_lifetime(clock: Clock) -> None:
    assert EventLog.current() is None
    async with lifetime(signals=False) as life:
        assert EventLog.current() is None
        async with EventLog() as log:
            assert EventLog.current() is log
            assert log in life.components()
            async with lifetime(signals=False):
                assert EventLog.current() is log, "the log must also apply to inner lifetimes"
        assert EventLog.current() is None


def test_as_a_main_it_sees_everything_and_keeps_nothing_running() -> None:
    router, log = Router(), EventLog()
    router.handle("a", nothing)

    async def once() -> Any:
        yield Event("a")
        router.stop()

    router.add_source(once)
    run(log, router)
    assert fates(log) == [("a", "handled")]


async def test_no_span_begins_after_it_is_left(clock: Clock) -> None:
    connected = {name: len(getattr(hooks, name).receivers) for name in hooks.__all__ if name != "Hook"}
    async with EventLog() as log:
        with pytest.raises(RuntimeError, match="already"):
            async with log:
                pass
    assert {name: len(getattr(hooks, name).receivers) for name in connected} == connected
    async with log:
        assert "open" in repr(log)
    assert "closed" in repr(log)


async def test_a_program_that_opens_many_keeps_none_of_them(clock: Clock) -> None:
    async with lifetime(signals=False):
        async with EventLog() as log:
            gone = weakref.ref(log)
        del log
        await clock.settle()
        gc.collect()
        assert gone() is None


async def test_a_log_left_during_shutdown_can_be_entered_again(clock: Clock) -> None:
    connected = {name: len(getattr(hooks, name).receivers) for name in hooks.__all__ if name != "Hook"}
    async with lifetime(signals=False) as life:
        log = EventLog()
        life.shutdown()
        for _ in range(2):
            async with log:
                pass
    assert {name: len(getattr(hooks, name).receivers) for name in connected} == connected


# -- following --------------------------------------------------------------------------------------------------


async def test_a_follower_gets_each_change(clock: Clock) -> None:
    router = Router()
    router.handle("a", slow)
    async with EventLog() as log, running(router), log.follow() as entries:
        await router.emit(Event("a"))
        assert [(await anext(entries)).what for _ in range(1)] == [EventOutcome.QUEUED]
        assert [(await anext(entries)).what for _ in range(2)] == [EventOutcome.RUNNING, EventOutcome.HANDLED]


async def test_a_late_follower_gets_each_entry_once(clock: Clock) -> None:
    router = Router()
    router.handle("**", nothing)
    async with EventLog() as log, running(router), log.follow("a/*") as entries:
        for topic in ("a/1", "b/1", "a/2"):
            await (await router.emit(Event(topic)))
        seen = [await anext(entries) for _ in range(2)]
    assert [(entry.topic, entry.what) for entry in seen] == [
        ("a/1", EventOutcome.HANDLED),
        ("a/2", EventOutcome.HANDLED),
    ]


async def test_ready_returns_each_entry_once_without_waiting(clock: Clock) -> None:
    router = Router()
    router.handle("**", nothing)
    async with EventLog() as log, running(router), log.follow("a/*", maxsize=8) as entries:
        assert entries.ready() == []
        for topic in ("a/1", "b/1", "a/2"):
            await (await router.emit(Event(topic)))
        assert [(entry.topic, entry.what) for entry in entries.ready()] == [
            ("a/1", EventOutcome.HANDLED),
            ("a/2", EventOutcome.HANDLED),
        ]
        assert (entries.ready(), entries.dropped) == ([], 1)
        await (await router.emit(Event("a/3")))
    assert entries.ready() == [], "a follower that was exited returned entries"
    assert log.follow().ready() == [], "a follower that was not entered returned entries"


async def test_a_slow_follower_delays_no_other_and_misses_the_oldest(clock: Clock) -> None:
    router = Router()
    router.handle("**", nothing)
    async with EventLog(10) as log, running(router), log.follow(maxsize=3) as entries, log.follow(maxsize=5) as other:
        for number in range(100):
            await (await router.emit(Event(f"a/{number}")))
        assert [(await anext(entries)).topic for _ in range(1)] == ["a/99"]
        assert entries.dropped == 297
        assert [(await anext(other)).topic for _ in range(2)] == ["a/98", "a/99"]
        assert other.dropped == 295


async def test_following_ends_with_the_log(clock: Clock) -> None:
    router = Router()
    router.handle("**", nothing)
    async with EventLog() as log, running(router):
        follower = asyncio.create_task(_all(log))
        await clock.advance(0)
        await (await router.emit(Event("a")))
        assert log.state().followers == 1
    assert [entry.what for entry in await follower][-1] is EventOutcome.HANDLED
    assert log.state().followers == 0


async def _all(log: EventLog) -> list[Entry]:
    async with log.follow() as entries:
        return [entry async for entry in entries]


async def test_one_waiting_reader_can_be_cancelled_without_the_others(clock: Clock) -> None:
    router = Router()
    router.handle("**", nothing)
    async with EventLog() as log, running(router):
        first, second = asyncio.create_task(_all(log)), asyncio.create_task(_all(log))
        await clock.advance(0)
        first.cancel()
        await clock.advance(0)
        await (await router.emit(Event("a")))
    with pytest.raises(asyncio.CancelledError):
        await first
    assert [entry.topic for entry in await second] == ["a", "a"]


async def test_bad_arguments_of_follow_are_refused(clock: Clock) -> None:
    log = EventLog()
    with pytest.raises(ValueError, match="maxsize=0"):
        log.follow(maxsize=0)
    with pytest.raises(RuntimeError, match="async with"):
        await anext(log.follow())


@pytest.mark.parametrize("wrong", [{"size": 0}, {"max_bytes": 0}, {"backups": -1}])
def test_a_log_that_could_hold_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be 1 or more"):
        EventLog(**wrong)


# -- causes -----------------------------------------------------------------------------------------------------


async def test_a_trace_has_causes_and_effects(clock: Clock) -> None:
    router = Router()
    sent: dict[str, int] = {}

    async def causes(event: Event) -> None:
        for topic in {"a": ("b", "c"), "b": ("d",)}.get(event.topic, ()):
            sent[topic] = (await router.emit(Event(topic))).id

    router.handle("**", causes)
    async with EventLog() as log, running(router):
        sent["a"] = (await router.emit(Event("a"))).id
        await router.emit(Event("stranger"))
    for asked in "abcd":
        trace = log.trace(sent[asked])
        assert [(node.entry.topic, node.depth) for node in trace.nodes] == [("a", 0), ("b", 1), ("d", 2), ("c", 1)]
        assert trace.root.topic == "a"
        assert [line for line in trace.lines if line.endswith("<-")] == [trace.lines["abdc".index(asked)]]


async def test_merged_events_and_effects_are_below_their_call(clock: Clock) -> None:
    router = Router()

    async def build(_event: Event) -> None:
        await router.emit(Event("built"))

    router.handle("save", build, debounce=0.1)
    router.handle("built", nothing)
    async with EventLog() as log, running(router):
        sent = [await router.emit(Event("save")) for _ in range(3)]
        await clock.advance(1)
    for each in sent:
        nodes = log.trace(each.id).nodes
        assert [(node.entry.topic, str(node.entry.what), node.depth) for node in nodes] == [
            ("save", "handled", 0),
            ("save", "merged", 1),
            ("save", "merged", 1),
            ("save", "merged", 1),
            ("built", "handled", 1),
        ]


async def test_endless_chains_of_events_can_be_shown_as_a_tree(clock: Clock) -> None:
    router = Router(buffer=5)
    count = 3000

    async def again(event: Event) -> None:
        if event.data < count:
            router.emit_nowait(Event("a", event.data + 1))

    router.handle("a", again)
    async with EventLog(2000) as log, running(router):
        await router.emit(Event("a", 1))
        await clock.advance(1)
        trace = log.trace(log.entries()[-1].id)
    assert len(trace.nodes) == 2000
    assert trace.nodes[-1].depth == 1999
    assert len(json.dumps(trace.to_dict())) > 2000
    assert max(map(len, trace.lines)) < 300


async def test_an_event_that_is_not_known_has_no_tree(clock: Clock) -> None:
    with pytest.raises(LookupError, match="keeps the last 1000"):
        EventLog().trace(1)


async def test_an_entry_can_be_sent_as_json(clock: Clock) -> None:
    router = Router('a "router"\n😀')
    router.handle("**", fails)
    topic = 'quotes " and \n and 😀 and \ud800'
    async with EventLog() as log, running(router):
        await router.emit(Event(topic, {"password": "hunter2"}))
    [entry] = log.entries()
    as_dict = json.loads(json.dumps(entry.to_dict()))
    assert (as_dict["topic"], as_dict["what"], as_dict["router"]) == (topic, "failed", router.name)
    assert "hunter2" not in json.dumps(as_dict)

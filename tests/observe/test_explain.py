"""`explain`: the reasons why nothing happened, as text and as fields."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from lifecycle import hooks
from lifecycle.control import Event, NotHandled, Router, RouterState
from lifecycle.observe import EventLog, Explanation
from lifecycle.observe.eventlog.explanations import near_misses
from lifecycle.runtime import lifetime
from lifecycle.testing import Clock, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def slow(_event: Event) -> None:
    await asyncio.sleep(1)


async def build(_event: Event) -> None:
    await asyncio.sleep(1)


def text(explanation: Explanation) -> str:
    return "\n".join(explanation.lines)


async def test_a_free_route_handles_the_event_and_the_next_route_gets_it_when_passed_on(clock: Clock) -> None:
    router = Router("main")
    router.handle("file/added", build)
    router.handle("file/*", slow)
    async with EventLog() as log, running(router):
        explanation = log.explain("file/added")
    assert explanation.verdict == "the event goes to build ('file/added') and is handled immediately"
    assert [(each.router, each.pattern, each.handler) for each in explanation.matches] == [
        ("main", "file/added", "build"),
        ("main", "file/*", "slow"),
    ]
    assert explanation.lines == (
        "file/added: the event goes to build ('file/added') and is handled immediately",
        "  if build passes it on, the event goes to slow ('file/*') and is handled immediately",
        "  the log has no event of this topic",
    )


async def test_explain_covers_every_router(clock: Clock) -> None:
    one, two = Router("one"), Router("two")
    one.handle("a", build)
    two.handle("a", slow)
    async with EventLog() as log, running(one), running(two):
        explanation = log.explain("a")
    assert "in router 'two', the event goes to slow ('a')" in explanation.lines[1]


async def test_an_explanation_shows_debounce_and_lane(clock: Clock) -> None:
    router = Router(buffer=1)
    router.handle("queue", slow)
    router.handle("drop", slow, busy="drop")
    router.handle("restart", slow, busy="restart")
    router.handle("window", slow, debounce=0.5)
    topics = ("queue", "drop", "restart", "window")
    async with EventLog() as log, running(router):
        for topic in topics:
            await router.emit(Event(topic))
        await clock.advance(0.1)
        met = {topic: log.explain(topic).matches[0].would for topic in topics}
        await router.emit(Event("queue"))
        full = log.explain("queue").matches[0].would
    assert met == {
        "queue": "waits in lane 'queue' (1 running, 0 waiting)",
        "drop": "is dropped, because lane 'drop' is busy (1 running, 0 waiting)",
        "restart": "cancels the handler that is running in lane 'restart', and takes its place",
        "window": "waits until 500.0 ms pass without another event (1 waiting), then is handled immediately",
    }
    assert full == "waits for space in lane 'queue', which is full (1 running, 1 waiting)"


async def test_an_explanation_of_a_keyed_lane_names_the_condition(clock: Clock) -> None:
    router = Router()
    router.handle("wide", slow, lane=lambda event: event.data, concurrency=2)
    router.handle("drop", slow, lane=lambda event: event.data, busy="drop")
    async with EventLog() as log, running(router):
        for topic in ("wide", "drop"):
            await router.emit(Event(topic, "a"))
        await clock.advance(0.1)
        wide, drop = (log.explain(topic).matches[0].would for topic in ("wide", "drop"))
    assert wide == "is handled when its key is idle"
    assert drop == ("waits in lane 'drop' (1 running, 0 waiting), unless its key is busy: then busy='drop' applies")


async def test_an_explanation_has_the_last_events_of_the_topic(clock: Clock) -> None:
    async def fails(_event: Event) -> None:
        raise ValueError("no disk")

    router = Router()
    router.handle("a", fails)
    router.handle("b", slow)
    async with EventLog() as log, running(router):
        for _ in range(7):
            await router.emit(Event("a"))
        await router.emit(Event("b"))
    async with log:
        explanation = log.explain("a")
    assert [entry.topic for entry in explanation.seen] == ["a"] * 5
    assert "failed in" in text(explanation)
    assert "ValueError: no disk" in text(explanation)


async def test_counts_include_events_that_the_log_no_longer_keeps(clock: Clock) -> None:
    router = Router()
    router.handle("a", slow, busy="drop")
    async with EventLog(1) as log, running(router):
        for _ in range(3):
            await router.emit(Event("a"))
        await clock.advance(2)
        assert "  'a' so far: 1 handled, 0 failed, 2 dropped" in log.explain("a").lines


async def test_without_a_match_it_names_fallback_and_near_misses(clock: Clock) -> None:
    router = Router()
    router.handle("file/*", slow)
    async with EventLog() as log, running(router):
        explanation = log.explain("File/added")
        assert explanation.verdict == "no route matches and no fallback is set, so no handler receives the event"
        assert "  similar pattern: 'file/*' (it differs only in case, separators or spaces)" in explanation.lines
        router.fallback(build)
        assert log.explain("File/added").verdict == "no route matches, so the fallback build handles the event"


async def test_topics_of_earlier_events_are_suggested(clock: Clock) -> None:
    router = Router()
    async with EventLog() as log, running(router):
        with pytest.raises(NotHandled):
            await router.emit(Event("mail/new"))
        assert [(each.kind, each.text) for each in log.explain("mail.new").near] == [("topic", "mail/new")]


async def test_an_explanation_without_a_router(clock: Clock) -> None:
    async with EventLog() as log:
        assert log.explain("a").lines == ("a: no router is running",)
    with pytest.raises(RuntimeError, match="has not been opened"):
        EventLog().explain("a")


async def test_sources_that_send_nothing_are_named(clock: Clock) -> None:
    async def ended() -> AsyncIterator[Event]:
        for topic in tuple[str, ...]():
            yield Event(topic)

    async def waits() -> AsyncIterator[Event]:
        await asyncio.Event().wait()
        yield Event("a")

    async def works() -> AsyncIterator[Event]:
        await asyncio.Event().wait()
        yield Event("a")

    async def flaps() -> AsyncIterator[Event]:
        yield Event("a")
        raise ValueError("no")

    async def dies() -> AsyncIterator[Event]:
        yield Event("a")
        raise ValueError("password=hunter2")

    router = Router()
    router.handle("a", build)
    for source in (ended, waits, works, flaps):
        router.add_source(source)
    router.add_source(dies, restart="never")
    async with lifetime(signals=False), EventLog() as log, running(router):
        await clock.settle()
        router.hold_source(_named(router, "waits"))
        explanation = {each.source.rpartition(".")[2]: each.why for each in log.explain("a").silent}
    assert explanation == {
        "ended": "it is not running",
        "waits": "it is held",
        "flaps": "it has failed and will be restarted soon: ValueError: no",
        "dies": "it has failed and will not be restarted: ValueError: password=***",
    }


def _named(router: Router, word: str) -> str:
    return next(source.name for source in router.sources() if source.name.endswith(word))


async def test_a_router_whose_state_raises_is_left_out(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    class Odd(Router):
        def state(self) -> RouterState:
            raise RuntimeError("not today")

    router, odd = Router(), Odd("odd")
    router.handle("a", build)
    async with EventLog() as log, running(router):
        hooks.router_started.announce(odd, router=odd)
        explanation = log.explain("a")
    assert [each.router for each in explanation.matches] == ["router"]
    assert "not today" in caplog.text


@pytest.mark.parametrize("topic", ["", "x" * 10**6])
async def test_an_invalid_topic_is_explained(clock: Clock, topic: str) -> None:
    async with EventLog() as log, running(Router()):
        explanation = log.explain(topic)
    assert explanation.topic == topic[:1023] + "…" * bool(topic)
    assert "use one such as" in explanation.verdict or "the maximum is" in explanation.verdict
    assert len(text(explanation)) < 2000


async def test_it_can_be_sent_as_json_and_printed_on_a_terminal(clock: Clock) -> None:
    router = Router()
    router.handle("\x1b\\[31m/*", slow)
    async with EventLog() as log, running(router):
        await router.emit(Event('\x1b[31m/"\n😀\ud800'))
        explanation = log.explain('\x1b[31m/"\n😀\ud800')
        await clock.advance(2)
    assert all(line.isprintable() for line in explanation.lines)
    assert "😀" in explanation.lines[0]
    sent = json.loads(json.dumps(explanation.to_dict()))
    assert sent["lines"] == list(explanation.lines)
    assert sent["matches"][0]["pattern"] == "\x1b\\[31m/*"


# -- similar patterns and topics -----------------------------------------------------------------------------------

CASE, SPELLING = "it differs only in case, separators or spaces", "the spelling is almost the same"
NEAR = {
    ("File/Added", "file/*"): CASE,
    ("file.added", "file/added"): CASE,
    ("file:added", "file/*"): CASE,
    ("/file/added", "file/*"): CASE,
    (" file/added ", "file/added"): CASE,
    ("File.added", "file/*"): CASE,
    ("file/a/b", "file/*"): "* matches one segment; 'file/**' would match",
    ("file/a/b", "file/{name}"): "{name} matches one segment; 'file/{name:**}' would match",
    ("Job/7/Done", "job/{number}/done"): CASE,
    ("job/7/don", "job/{number}/done"): SPELLING,
    ("shop/login", "shop/user/login"): SPELLING,
    ("shop/user/login/now", "shop/user/login"): SPELLING,
    ("command/deplyo", "command/deploy"): SPELLING,
    ("relod", "reload"): SPELLING,
    ("deploi/done", "deploy/*"): SPELLING,
}


@pytest.mark.parametrize(("given", "hint"), NEAR.items(), ids=map(str, NEAR))
def test_a_pattern_that_is_missed_by_a_little_is_named_with_the_difference(given: tuple[str, str], hint: str) -> None:
    topic, pattern = given
    [found] = near_misses(topic, [pattern], ())
    assert (found.kind, found.text, found.hint) == ("pattern", pattern, hint)


FAR = [
    ("a", "b"),
    ("mail", "file/*"),
    ("x/y", "**/z"),
    ("mails/abcdefgh", "orders/*"),
    ("a/b", "a/b"),
    ("a/b", "a/{name}"),
]


@pytest.mark.parametrize(("topic", "pattern"), FAR)
def test_a_far_or_matching_pattern_is_not_a_near_miss(topic: str, pattern: str) -> None:
    assert near_misses(topic, [pattern], ()) == ()


def test_a_topic_that_was_seen_is_never_read_as_a_pattern() -> None:
    assert near_misses("a/x", (), ["a/*"]) == ()
    assert [each.text for each in near_misses("A/*", (), ["a/*"])] == ["a/*"]


def test_topics_and_patterns_with_many_segments_are_not_compared() -> None:
    short, deep = "a/" * 15 + "b", "a/" * 16 + "b"
    assert [each.text for each in near_misses(short.upper(), [short], [deep])] == [short]
    assert near_misses(deep.upper(), [deep], [deep]) == ()


def test_only_the_nearest_of_many_are_named() -> None:
    many = [f"shop/{number}/order" for number in range(5000)]
    found = [each.text for each in near_misses("shop/77/ordre", many, ())]
    assert (found[0], len(found)) == ("shop/77/order", 3)

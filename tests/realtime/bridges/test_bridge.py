"""Two routers with a real server between them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from lifecycle._util import current_span
from lifecycle.bridges import BusEvent, NatsBridge, Unpublishable
from lifecycle.control import Event, HealthEvent, NotHandled, Router, delivery
from lifecycle.control.router import call_directly
from lifecycle.testing import running
from tests.realtime.bridges.receiving import Box, answered, by_hand
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.nats_servers import NatsProcess

    MakeBridge = Callable[..., NatsBridge]


@dataclass(frozen=True)
class Order:
    """A custom event."""

    id: str
    amount: int
    topic: str = "order/placed"


# -- delivery ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "topic", ["job/one", "job/a.b", "job/*", "job/>", "job/ü \n\r=x", "job//", "job/" + "x" * 800, "job/\0"]
)
async def test_an_event_of_any_topic_reaches_the_other_machine(bridge: MakeBridge, topic: str) -> None:
    here, there = Router(), Router()
    here.add_source(bridge(group="here", publish="job/**"))
    there.add_source(bridge(group="there", subscribe=("job/**",)))
    there.handle("job/**", box := Box())
    async with running(here), running(there):
        await (await here.emit(Event(topic, {"a": [1, None]})))
        [event] = await box.wait(1)
    assert isinstance(event, BusEvent)
    assert (event.topic, event.data, event.attempt) == (topic, {"a": [1, None]}, 1)
    assert event.source.endswith("/here")


async def test_bytes_and_records_keep_their_types(bridge: MakeBridge) -> None:
    here, there = Router(), Router()
    here.add_source(bridge(group="here", publish=("**",)))
    there.add_source(bridge(group="there", subscribe=("**",)))
    there.handle("**", box := Box())
    async with running(here), running(there):
        await (await here.emit(Event("raw", b"\xff\x00")))
        await (await here.emit(Order("7", 3)))
        await call_directly(here, Event("directly"))
        events = await box.wait(4)
    events = [event for event in events if not isinstance(event, HealthEvent)]
    assert [(event.topic, event.data) for event in events] == [
        ("raw", b"\xff\x00"),
        ("order/placed", {"id": "7", "amount": 3}),
        ("directly", None),
    ]
    assert (events[1].id, events[1].type) == ("7", "Order")


async def test_awaiting_an_event_waits_for_the_bus_and_local_routes_get_it_too(
    bridge: MakeBridge, server: NatsProcess
) -> None:
    here = Router()
    sender = bridge(group="here", publish=("job/**",))
    here.add_source(sender)
    here.handle("job/known", box := Box())
    async with running(here), by_hand(server) as js:
        for topic in ("job/known", "job/unknown"):
            await (await here.emit(Event(topic)))
            assert (await js.stream_info(sender._settings.stream)).state.messages == sender.state().published
    assert box.topics == ["job/known"]
    assert sender.state().published == 2


async def test_a_published_event_is_handled_once_by_the_group(bridge: MakeBridge) -> None:
    """The members both publish and subscribe to these events, which must not circulate."""
    routers, boxes = [Router("one"), Router("two")], [Box(), Box()]
    bridges = [bridge(group="group", subscribe=("job/*",), publish=("**",)) for _ in routers]
    for router, each, box in zip(routers, bridges, boxes, strict=True):
        router.add_source(each)
        router.handle("job/*", box)
    async with running(routers[0]), running(routers[1]):
        for number in range(20):
            await (await routers[number % 2].emit(Event("job/x", number)))
        await until(lambda: sum(each.state().handled for each in bridges) == 20)
    assert sorted(event.data for box in boxes for event in box.events) == list(range(20))
    assert all(isinstance(event, BusEvent) for box in boxes for event in box.events)
    assert sum(each.state().published for each in bridges) == 20


async def test_names_in_patterns_of_a_bridge_match_like_stars(bridge: MakeBridge, server: NatsProcess) -> None:
    here, there, names = Router(), Router(), list[str]()
    here.add_source(bridge(group="here", publish=("device/{name}/{rest:**}",)))
    there.add_source(receiver := bridge(group="there", subscribe=("device/{name}/temp",)))
    there.handle("device/{device}/temp", lambda _event, device: names.append(device))
    async with running(here), running(there), by_hand(server) as js:
        for topic in ("device/k7/temp", "device/k8/humidity", "device/k9/temp"):
            await (await here.emit(Event(topic)))
        await until(lambda: len(names) == 2)
        settings = receiver._settings
        config = (await js.consumer_info(settings.stream, "there")).config
    assert names == ["k7", "k9"]
    assert config.filter_subjects == [f"{settings.prefix}.device.*.temp"]
    # Members that use different names for the segment have the same subscription.
    assert list(json.loads((config.metadata or {})["lifecycle-patterns"])) == ["device/*/temp"]


async def test_every_group_gets_every_event(bridge: MakeBridge) -> None:
    here, one, two = Router(), Router(), Router()
    here.add_source(bridge(group="here", publish=("job/*",)))
    one.add_source(bridge(group="one", subscribe=("job/*",)))
    two.add_source(bridge(group="two", subscribe=("job/*", "job/x", "job/**")))
    one.handle("job/*", first := Box())
    two.handle("job/*", second := Box())
    async with running(here), running(one), running(two):
        for number in range(3):
            await (await here.emit(Event("job/x", number)))
        await first.wait(3)
        await second.wait(3)


async def test_a_group_that_comes_later_gets_what_is_in_the_stream(bridge: MakeBridge) -> None:
    here, later = Router(), Router()
    here.add_source(bridge(group="here", publish=("job/*",)))
    async with running(here):
        await (await here.emit(Event("job/x")))
    later.add_source(bridge(group="later", subscribe=("job/*",)))
    later.handle("job/*", box := Box())
    async with running(later):
        await box.wait(1)


async def test_the_pattern_filters_what_a_subject_filter_cannot_express(bridge: MakeBridge) -> None:
    here, there = Router(), Router()
    here.add_source(bridge(group="here", publish=("**",)))
    receiver = bridge(group="there", subscribe=("fo*/**/end",))
    there.add_source(receiver)
    there.handle("**", box := Box())
    async with running(here), running(there):
        for topic in ("bar/end", "foo/x", "for/x/y/end"):
            await (await here.emit(Event(topic)))
        await until(lambda: receiver.state().handled == 1 and receiver.state().in_flight == 0)
    assert [topic for topic in box.topics if not topic.startswith("health")] == ["for/x/y/end"]


async def test_an_id_already_on_the_bus_is_not_stored_again(bridge: MakeBridge) -> None:
    here, there = Router(), Router()
    sender = bridge(group="here", publish=("order/*",))
    here.add_source(sender)
    there.add_source(bridge(group="there", subscribe=("order/*",)))
    there.handle("order/*", box := Box())
    async with running(here), running(there):
        for topic in ("order/placed", "order/placed", "order/paid"):
            await (await here.emit(Order("7", 3, topic)))
        await (await here.emit(Order("8", 3)))
        await box.wait(3)
    assert [(event.topic, event.id) for event in box.events] == [
        ("order/placed", "7"),
        ("order/paid", "7"),
        ("order/placed", "8"),
    ]
    assert (sender.state().published, sender.state().duplicates) == (4, 1)


async def test_a_trace_goes_with_the_event(bridge: MakeBridge) -> None:
    here, there = Router(), Router()
    here.add_source(bridge(group="here", publish=("job/*",)))
    there.add_source(bridge(group="there", subscribe=("job/*",)))
    there.handle("job/*", box := Box())
    span = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    current_span.set(span)
    async with running(there), running(here):
        await call_directly(here, Event("job/x"))
        [event] = await box.wait(1)
    assert event.headers["traceparent"] == span


# -- failures ------------------------------------------------------------------------------------------------------


async def test_a_failing_event_is_redelivered_then_dead_with_the_reason(
    bridge: MakeBridge, server: NatsProcess
) -> None:
    here, there = Router(), Router()
    here.add_source(bridge(group="here", publish=("job/*",)))
    receiver = bridge(group="there", subscribe=("job/*", "dead/**"), max_deliver=3)
    there.add_source(receiver)
    there.handle("dead/**", box := Box())
    attempts: list[tuple[int, int]] = []

    @there.on("job/*")
    async def fail(event: BusEvent) -> None:
        attempts.append((event.attempt, delivery().attempt))
        raise ValueError("broken\r\nfor ü, password=hunter2")

    async with running(here), running(there), by_hand(server) as js:
        await (await here.emit(Order("7", 3, "job/poison")))
        [letter] = await box.wait(1)
        await until(lambda: receiver.state().in_flight == 0)
        await answered(js, receiver)
    assert attempts == [(1, 1), (2, 2), (3, 3)]
    assert (letter.topic, letter.id, letter.data) == ("dead/job/poison", "7.dead.there", {"id": "7", "amount": 3})
    reasons = {name: value for name, value in letter.headers.items() if name.startswith("dead-")}
    assert reasons == {
        "dead-reason": "ValueError: broken\r\nfor ü, password=***",
        "dead-group": "there",
        "dead-attempts": "3",
    }
    assert (receiver.state().dead, receiver.state().given_back) == (1, 2)


async def test_unhandled_events_are_dead_letters_and_dead_letters_do_not_make_more(
    bridge: MakeBridge, server: NatsProcess
) -> None:
    here, there = Router(), Router()
    here.add_source(bridge(group="here", publish=("job/*",)))
    receiver = bridge(group="there", subscribe=("**",), max_deliver=2)
    there.add_source(receiver)
    async with running(here), running(there), by_hand(server) as js:
        await (await here.emit(Event("job/x")))
        # Both the event and its dead letter have become dead letters.
        await until(lambda: receiver.state().dead == 2)
        assert (await js.stream_info(receiver._settings.stream)).state.messages == 2


async def test_an_unreadable_message_is_a_dead_letter_at_once(bridge: MakeBridge, server: NatsProcess) -> None:
    receiver = bridge(group="there", subscribe=("**",))
    there = Router()
    there.add_source(receiver)
    there.handle("**", box := Box())
    async with running(there), by_hand(server) as js:
        prefix = receiver._settings.prefix
        await js.publish(f"{prefix}.odd", b"{", headers={"ce-datacontenttype": "application/json"})
        await js.publish(f"{prefix}.plain", b"\xff", headers={"Status": "404"})
        await js.publish(f"{prefix}.*", b"")
        events = [event for event in await box.wait(4) if not isinstance(event, HealthEvent)]
    assert {event.topic: event.data for event in events} == {"dead/odd": b"{", "plain": b"\xff", "*": None}


async def test_events_dropped_by_a_lane_are_acknowledged(bridge: MakeBridge) -> None:
    here, there = Router(), Router()
    here.add_source(bridge(group="here", publish=("job/*",)))
    receiver = bridge(group="there", subscribe=("job/*",))
    there.add_source(receiver)
    began, go_on = asyncio.Event(), asyncio.Event()

    async def work(event: BusEvent) -> None:
        began.set()
        await go_on.wait()

    there.handle("job/*", work, busy="drop")
    async with running(here), running(there):
        await (await here.emit(Event("job/x")))
        await began.wait()
        await (await here.emit(Event("job/x")))
        await until(lambda: receiver.state().handled == 1)
        go_on.set()
        await until(lambda: receiver.state().handled == 2)
    assert receiver.state().given_back == 0


async def test_through_a_window_every_event_is_done_when_the_merged_call_is(bridge: MakeBridge) -> None:
    here, there = Router(), Router()
    here.add_source(bridge(group="here", publish=("job/*",)))
    receiver = bridge(group="there", subscribe=("job/*",))
    there.add_source(receiver)
    there.handle("job/*", box := Box(), debounce=0.1)
    async with running(here), running(there):
        for number in range(5):
            await (await here.emit(Event("job/x", number)))
        await until(lambda: receiver.state().handled == 5)
    assert box.events[-1].data == 4


async def test_a_handler_may_take_longer_than_the_answer_is_waited_for(bridge: MakeBridge) -> None:
    here, there = Router(), Router()
    here.add_source(bridge(group="here", publish=("job/*",)))
    receiver = bridge(group="there", subscribe=("job/*",), ack_wait=1.0)
    there.add_source(receiver)
    calls: list[int] = []

    @there.on("job/*")
    async def work(event: BusEvent) -> None:
        calls.append(event.attempt)
        await asyncio.sleep(1.5)

    async with running(here), running(there):
        await (await here.emit(Event("job/x")))
        await until(lambda: receiver.state().handled == 1)
    assert calls == [1]


async def test_events_waiting_for_a_full_lane_are_not_redelivered(bridge: MakeBridge) -> None:
    here, there = Router(), Router(buffer=1)
    here.add_source(bridge(group="here", publish=("job/*",)))
    receiver = bridge(group="there", subscribe=("job/*",), ack_wait=1.0)
    there.add_source(receiver)
    attempts: list[int] = []

    @there.on("job/*")
    async def work(event: BusEvent) -> None:
        attempts.append(event.attempt)
        if event.data == 0:
            await asyncio.sleep(1.5)

    async with running(here), running(there):
        for number in range(20):
            await (await here.emit(Event("job/x", number)))
        await until(lambda: receiver.state().handled == 20)
    assert attempts == [1] * 20


# -- limits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [2, 7])
async def test_a_bridge_holds_no_more_events_than_its_limit(bridge: MakeBridge, most: int) -> None:
    here, there = Router(), Router()
    here.add_source(bridge(group="here", publish=("job/*",)))
    receiver = bridge(group="there", subscribe=("job/*",), max_in_flight=most)
    there.add_source(receiver)
    seen: list[int] = []

    @there.on("job/*", concurrency=64)
    async def work(event: BusEvent) -> None:
        seen.append(receiver.state().in_flight)
        await asyncio.sleep(0.01)

    async with running(here), running(there):
        for number in range(30):
            await (await here.emit(Event("job/x", number)))
        await until(lambda: receiver.state().handled == 30)
    assert max(seen) <= most
    assert max(seen) > 1


async def test_one_at_a_time_keeps_the_order_of_the_whole_group_across_failures(bridge: MakeBridge) -> None:
    here = Router()
    here.add_source(bridge(group="here", publish=("job/*",)))
    done: list[int] = []
    receivers = [bridge(group="there", subscribe=("job/*",), max_in_flight=1) for _ in range(2)]

    def member(receiver: NatsBridge) -> Router:
        router = Router()
        router.add_source(receiver)

        @router.on("job/*")
        async def work(event: BusEvent) -> None:
            if event.data % 5 == 2 and event.attempt < 3:
                raise ValueError("once more")
            done.append(event.data)

        return router

    async with running(here), running(member(receivers[0])), running(member(receivers[1])):
        for number in range(12):
            await (await here.emit(Event("job/x", number)))
        await until(lambda: sum(each.state().handled for each in receivers) == 12)
    assert done == list(range(12))


# -- stopping ------------------------------------------------------------------------------------------------------


async def test_a_stopping_router_finishes_its_events_and_returns_the_rest(bridge: MakeBridge) -> None:
    here, first, second = Router(), Router(), Router()
    here.add_source(bridge(group="here", publish=("job/*",)))
    receivers = [bridge(group="there", subscribe=("job/*",), sync=True) for _ in range(2)]
    first.add_source(receivers[0])
    second.add_source(receivers[1])
    began, go_on, done = asyncio.Event(), asyncio.Event(), list[int]()

    @first.on("job/*")
    async def slowly(event: BusEvent) -> None:
        began.set()
        await go_on.wait()
        done.append(event.data)

    second.handle("job/*", lambda event: done.append(event.data))
    async with running(here):
        async with running(first):
            for number in range(200):
                await (await here.emit(Event("job/x", number)))
            await began.wait()
            asyncio.get_running_loop().call_soon(go_on.set)
        finished = len(done)
        assert finished == receivers[0].state().handled > 0
        assert receivers[0].state().in_flight == 0
        async with running(second):
            await until(lambda: len(done) >= 200)
    assert sorted(done) == list(range(200))


async def test_a_cancelled_router_returns_its_events(bridge: MakeBridge) -> None:
    here, first, second = Router(), Router(), Router()
    here.add_source(bridge(group="here", publish=("job/*",)))
    first.add_source(bridge(group="there", subscribe=("job/*",)))
    second.add_source(bridge(group="there", subscribe=("job/*",)))
    began = asyncio.Event()

    @first.on("job/*")
    async def for_ever(event: BusEvent) -> None:
        began.set()
        await asyncio.Event().wait()

    second.handle("job/*", box := Box())
    async with running(here):
        task = asyncio.create_task(first.run())
        await first.wait_running()
        for number in range(3):
            await (await here.emit(Event("job/x", number)))
        await began.wait()
        task.cancel()
        await asyncio.wait([task])
        async with running(second):
            events = await box.wait(3)
    assert sorted(event.data for event in events) == [0, 1, 2]


async def test_a_stopping_router_still_sends(bridge: MakeBridge) -> None:
    here = Router()
    sender = bridge(group="here", publish=("job/*",))
    here.add_source(sender)
    async with running(here):
        for number in range(50):
            await here.emit(Event("job/x", number))
    assert sender.state().published == 50


async def test_a_router_may_run_again_and_a_bridge_may_be_taken_out(bridge: MakeBridge) -> None:
    here, there = Router(), Router()
    sender = bridge(group="here", publish=("job/*",))
    here.add_source(sender)
    there.add_source(bridge(group="there", subscribe=("job/*",)))
    there.handle("job/*", box := Box())
    here.handle("job/*", local := Box())
    for _ in range(2):
        async with running(here), running(there):
            await (await here.emit(Event("job/x")))
            await box.wait(sender.state().published)
    async with running(here):
        here.remove_source(sender)
        await asyncio.sleep(0)
        await until(lambda: sender._left)
        await (await here.emit(Event("job/x")))
    assert sender.state().published == 2
    assert len(local.events) == 3


# -- rejected events -------------------------------------------------------------------------------------------------


async def test_an_event_that_the_bus_cannot_carry_raises_when_awaited(bridge: MakeBridge) -> None:
    here = Router()
    sender = bridge(group="here", publish=("**",))
    here.add_source(sender)
    async with running(here):
        for event, why in [
            (Event("job/" + "x" * 1020), "the maximum is 1,024"),
            (Event("job/x", b"x" * 1_048_577), "limit is 1,048,576"),
            (Event("job/x", b"x" * 1_048_500), "including its headers"),
            (Event("job/x", object()), "cannot be encoded"),
        ]:
            with pytest.raises(Unpublishable, match=why):
                await (await here.emit(event))
        # The connection still works after the rejected event.
        await (await here.emit(Event("job/x", b"x" * 1_000_000)))
    assert sender.state().published == 1


async def test_events_that_match_no_pattern_stay_in_the_process(bridge: MakeBridge) -> None:
    here = Router()
    sender = bridge(group="here", publish=("job/*", "job/x"))
    here.add_source(sender)
    async with running(here):
        with pytest.raises(NotHandled):
            await (await here.emit(Event("other")))
        await (await here.emit(Event("job/x")))
    assert sender.state().published == 1

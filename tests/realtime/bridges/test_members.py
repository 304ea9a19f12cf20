"""Group members with different patterns, as during a rolling deployment, and a paused group."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from lifecycle.backoff import Backoff
from lifecycle.bridges import bridge as bridge_module
from lifecycle.bridges import consumer, streams
from lifecycle.control import Event, Router
from lifecycle.testing import running
from tests.nats_servers import LIMIT
from tests.realtime.bridges.receiving import Box, answered, by_hand
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.bridges import NatsBridge
    from tests.nats_servers import NatsProcess

    MakeBridge = Callable[..., NatsBridge]

COUNT = 20


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliver returned events again immediately."""
    monkeypatch.setattr(consumer, "_ELSEWHERE", Backoff(initial=0.01, maximum=0.02))


def member(receiver: NatsBridge) -> tuple[Router, Box]:
    router, box = Router(), Box()
    router.add_source(receiver)
    router.handle("**", lambda event: None if event.topic.startswith("health/") else box(event))
    return router, box


async def send(here: Router, topic: str) -> None:
    for number in range(COUNT):
        await (await here.emit(Event(topic, number)))


async def test_a_member_gives_back_events_to_which_only_newer_members_subscribe(
    bridge: MakeBridge, server: NatsProcess, caplog: pytest.LogCaptureFixture
) -> None:
    here, _ = member(bridge(group="here", publish=("**",)))
    old, old_box = member(receiver := bridge(group="g", subscribe=("a/*",)))
    new, new_box = member(bridge(group="g", subscribe=("a/*", "b/*")))
    async with running(here), running(old), running(new), by_hand(server) as js:
        await send(here, "b/x")
        await new_box.wait(COUNT)
        await answered(js, receiver)
    assert {event.data for event in new_box.events} == set(range(COUNT))
    assert old_box.events == []


async def test_an_old_member_that_restarts_last_takes_nothing_from_newer_ones(
    bridge: MakeBridge, caplog: pytest.LogCaptureFixture
) -> None:
    here, _ = member(bridge(group="here", publish=("**",)))
    new, box = member(bridge(group="g", subscribe=("a/*", "b/*")))
    old, _ = member(bridge(group="g", subscribe=("a/*",)))
    async with running(here):
        async with running(new):
            pass
        async with running(old):
            await send(here, "b/x")
        async with running(new):
            await box.wait(COUNT)
    assert {event.data for event in box.events} == set(range(COUNT))
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len([text for text in warned if text.startswith("the group 'g' also receives b/*")]) == 1


async def test_patterns_that_share_a_filter_are_distinguished(
    bridge: MakeBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NATS subject cannot express ``fo*``, so each member also receives the other member's events."""
    monkeypatch.setattr(bridge_module, "_LOOK", 0.01)
    here, _ = member(bridge(group="here", publish=("**",)))
    one, one_box = member(first := bridge(group="g", subscribe=("fo*",)))
    two, two_box = member(bridge(group="g", subscribe=("ba*",)))
    async with running(here), running(one), running(two):
        assert first._session is not None
        subscriptions = first._session._subscriptions
        await until(lambda: subscriptions.is_elsewhere("bar"))
        for topic in ("foo", "bar", "neither"):
            await send(here, topic)
        await one_box.wait(COUNT)
        await two_box.wait(COUNT)
    assert set(one_box.topics) == {"foo"}
    assert set(two_box.topics) == {"bar"}


async def test_events_that_members_gave_back_many_times_are_not_started_alone(
    bridge: MakeBridge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here, _ = member(bridge(group="here", publish=("b/*",)))
    new, _ = member(bridge(group="g", subscribe=("b/*",)))
    old, _ = member(bridge(group="g", subscribe=("a/*",)))
    later, box = member(bridge(group="g", subscribe=("b/*",)))
    refused: list[int] = []

    def delay(_: Backoff, tries: int) -> float:
        refused.append(tries)
        return 0.01

    async with running(here):
        async with running(new):
            pass
        async with running(old):
            monkeypatch.setattr(Backoff, "delay", delay)
            await (await here.emit(Event("b/x", 7)))
            await until(lambda: max(refused, default=0) > consumer._SUSPECT + 5)
        async with running(later):
            await box.wait(1)
    assert "handled alone" not in caplog.text


async def test_a_member_with_a_wide_filter_gives_back_what_a_member_that_just_started_subscribes_to(
    bridge: MakeBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No subject filter expresses ``**/failed``, so the old member receives all events until it sees the new one."""
    monkeypatch.setattr(bridge_module, "_LOOK", 3600.0)
    here, _ = member(bridge(group="here", publish=("**",)))
    old, _ = member(bridge(group="g", subscribe=("**/failed",)))
    new, box = member(receiver := bridge(group="g", subscribe=("order/*",)))
    async with running(here), running(old), running(new):
        await until(lambda: receiver.state().up)
        await send(here, "order/x")
        await box.wait(COUNT)
    assert {event.data for event in box.events} == set(range(COUNT))


async def test_members_that_start_together_do_not_overwrite_the_patterns_of_each_other(
    bridge: MakeBridge, server: NatsProcess
) -> None:
    receivers = [bridge(group="g", subscribe=(f"{name}/*",)) for name in "abcd"]
    routers = [member(receiver)[0] for receiver in receivers]
    stream, prefix = receivers[0]._settings.stream, receivers[0]._settings.prefix
    async with by_hand(server) as js:
        await js.add_stream(name=stream, subjects=[f"{prefix}.>"])
        tasks = [asyncio.create_task(router.run()) for router in routers]
        await until(lambda: all(receiver.state().up for receiver in receivers))
        wanted = (await js.consumer_info(stream, "g")).config.filter_subjects
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert wanted == [f"{prefix}.{name}.*" for name in "abcd"]


async def test_an_outage_does_not_count_towards_the_time_after_which_a_pattern_is_forgotten(
    own_bridge: MakeBridge, own_server: NatsProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Members cannot renew patterns while the server is down. The first to reconnect must not remove any pattern."""
    monkeypatch.setattr(bridge_module, "_LOOK", 3600.0)
    new, _ = member(own_bridge(group="g", subscribe=("a/*", "b/*")))
    old, _ = member(receiver := own_bridge(group="g", subscribe=("a/*",)))
    stream, prefix = receiver._settings.stream, receiver._settings.prefix
    async with running(new):
        pass
    async with running(old):
        await until(lambda: receiver.state().up)
        async with by_hand(own_server) as js:
            first = later = (await js.consumer_info(stream, "g")).config
        monkeypatch.setattr(streams, "_GAP", 0.1)
        monkeypatch.setattr(streams, "_FORGOTTEN", 0.9)
        await own_server.restart(after=1.0)
        async with by_hand(own_server) as js:
            async with asyncio.timeout(LIMIT):
                while first.metadata == later.metadata:
                    await asyncio.sleep(0.01)
                    later = (await js.consumer_info(stream, "g")).config
    assert later.filter_subjects == [f"{prefix}.a.*", f"{prefix}.b.*"]
    assert "no longer receives b/*" not in caplog.text


async def test_a_member_adds_its_pattern_again_when_another_has_removed_it_and_warns(
    bridge: MakeBridge, server: NatsProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bridge_module, "_LOOK", 0.01)
    there, _ = member(receiver := bridge(group="g", subscribe=("a/*", "b/*")))
    stream, prefix = receiver._settings.stream, receiver._settings.prefix
    async with running(there), by_hand(server) as js:
        await until(lambda: receiver.state().up)
        config = (await js.consumer_info(stream, "g")).config
        only = {"lifecycle-patterns": json.dumps({"a/*": "of another"}), "owner": "me"}
        await js.add_consumer(
            stream, config.evolve(filter_subjects=[f"{prefix}.a.*"], filter_subject=None, metadata=only)
        )
        await until(lambda: "another member removed b/* from the group 'g'" in caplog.text)
    async with running(there), by_hand(server) as js:
        await until(lambda: receiver.state().up)
        config = (await js.consumer_info(stream, "g")).config
    assert config.filter_subjects == [f"{prefix}.a.*", f"{prefix}.b.*"]
    assert (config.metadata or {})["owner"] == "me"


async def test_a_pattern_that_an_operator_removes_from_the_filter_is_gone(
    bridge: MakeBridge, server: NatsProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_module, "_LOOK", 0.01)
    new, _ = member(bridge(group="g", subscribe=("a/*", "b/*")))
    old, _ = member(receiver := bridge(group="g", subscribe=("a/*",)))
    stream, prefix = receiver._settings.stream, receiver._settings.prefix
    async with running(new):
        pass
    async with running(old), by_hand(server) as js:
        assert receiver._session is not None
        subscriptions = receiver._session._subscriptions
        assert subscriptions.is_elsewhere("b/x")
        config = (await js.consumer_info(stream, "g")).config
        await js.add_consumer(stream, config.evolve(filter_subjects=[f"{prefix}.a.*"], filter_subject=None))
        await until(lambda: not subscriptions.is_elsewhere("b/x"))
    async with running(old), by_hand(server) as js:
        assert (await js.consumer_info(stream, "g")).config.filter_subjects == [f"{prefix}.a.*"]


async def test_events_to_which_no_member_subscribes_any_more_become_dead_letters(
    bridge: MakeBridge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here, dead = member(bridge(group="here", publish=("a/*", "b/*"), subscribe=("dead/**",)))
    new, _ = member(bridge(group="g", subscribe=("a/*", "b/*")))
    old, _ = member(bridge(group="g", subscribe=("a/*",)))
    monkeypatch.setattr(bridge_module, "_LOOK", 0.05)
    monkeypatch.setattr(consumer, "_UNWANTED", 2)
    async with running(here):
        async with running(new):
            pass
        async with running(old):
            await (await here.emit(Event("b/x", 7)))
            monkeypatch.setattr(streams, "_FORGOTTEN", 0.2)
            # The first event is the original event, which this router also receives.
            [_, letter] = await dead.wait(2)
    assert (letter.topic, letter.data) == ("dead/b/x", 7)
    assert letter.headers["dead-reason"] == "no member of the group subscribes to it any longer"
    assert "the group 'g' no longer receives b/*" in caplog.text


async def test_a_group_that_an_operator_paused_is_reported(
    bridge: MakeBridge, server: NatsProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bridge_module, "_LOOK", 0.01)
    there, _ = member(receiver := bridge(group="g", subscribe=("a/*",)))
    stream = receiver._settings.stream
    async with running(there), by_hand(server) as js:
        until_then = (datetime.now(UTC) + timedelta(hours=1)).isoformat().replace("+00:00", "Z")
        await js.pause_consumer(stream, "g", until_then)
        await until(lambda: f"nats consumer resume {stream} g" in caplog.text)
    assert "the group 'g' is paused until" in caplog.text

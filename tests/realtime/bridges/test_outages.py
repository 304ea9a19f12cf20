"""A server that stops, returns and loses its data, and group members that die."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.backoff import Backoff
from lifecycle.bridges import BridgeError, BusEvent, NatsBridge, NotPublished, connection, publisher
from lifecycle.bridges import bridge as bridge_module
from lifecycle.control import Event, HealthEvent, Router
from lifecycle.testing import running
from tests.nats_servers import LIMIT
from tests.realtime.bridges.receiving import Box, by_hand
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.nats_servers import NatsProcess

    MakeBridge = Callable[..., NatsBridge]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_events_sent_during_an_outage_arrive_after_it(
    own_server: NatsProcess, own_bridge: MakeBridge, how: signal.Signals
) -> None:
    here, there = Router(), Router()
    sender = own_bridge(group="here", publish=("job/*",))
    here.add_source(sender)
    there.add_source(own_bridge(group="there", subscribe=("job/*",)))
    there.handle("job/*", box := Box())
    here.handle("health/bridge/**", health := Box())
    async with running(here), running(there):
        await (await here.emit(Event("job/x", 0)))
        await box.wait(1)
        await asyncio.to_thread(own_server.kill, how)
        await health.wait(2)
        assert not sender.state().up
        deliveries = [await here.emit(Event("job/x", number)) for number in range(1, 20)]
        await asyncio.to_thread(own_server.start)
        for delivery in deliveries:
            await delivery
        await health.wait(3)
        await until(lambda: {event.data for event in box.events} == set(range(20)))
    assert health.topics == ["health/bridge/here/up", "health/bridge/here/down", "health/bridge/here/up"]
    assert [type(event) for event in health.events] == [HealthEvent] * 3


async def test_an_event_not_accepted_in_time_fails_for_its_emitter(
    own_server: NatsProcess, own_bridge: MakeBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "PUBLISH_TIMEOUT", 0.2)
    here = Router()
    sender = own_bridge(group="here", publish=("job/*",))
    here.add_source(sender)
    here.handle("job/*", local := Box())
    async with running(here):
        await asyncio.to_thread(own_server.kill)
        await until(lambda: not sender.state().up)
        with pytest.raises(NotPublished, match=r"within 0.2 s"):
            await (await here.emit(Event("job/x")))
    assert local.events == []


async def test_the_time_limit_of_every_event_begins_when_it_is_sent(
    own_server: NatsProcess, own_bridge: MakeBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit starts when the event is sent. Otherwise this test would take a minute."""
    monkeypatch.setattr(publisher, "PUBLISH_TIMEOUT", 1.0)
    here = Router()
    sender = own_bridge(group="here", publish=("job/*",), max_in_flight=2)
    here.add_source(sender)
    async with running(here):
        await asyncio.to_thread(own_server.kill)
        await until(lambda: not sender.state().up)
        deliveries = [await here.emit(Event("job/x", number)) for number in range(120)]
        async with asyncio.timeout(LIMIT):
            outcomes = await asyncio.gather(*deliveries, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {NotPublished}
    assert "there is no connection" in str(outcomes[0])


async def test_a_bridge_that_only_publishes_makes_a_deleted_stream_again(
    own_server: NatsProcess, own_bridge: MakeBridge, caplog: pytest.LogCaptureFixture
) -> None:
    here = Router()
    sender = own_bridge(group="here", publish=("job/*",))
    here.add_source(sender)
    stream = sender._settings.stream
    async with running(here), by_hand(own_server) as js:
        await js.delete_stream(stream)
        await (await here.emit(Event("job/x")))
        assert (await js.stream_info(stream)).state.messages == 1
    assert f"the stream '{stream}' was missing" in caplog.text


async def test_a_bridge_that_subscribes_makes_a_deleted_stream_and_its_group_again(
    own_server: NatsProcess, own_bridge: MakeBridge
) -> None:
    there = Router()
    receiver = own_bridge(group="there", subscribe=("job/*",), publish=("job/*",))
    there.add_source(receiver)
    there.handle("job/*", box := Box())
    async with running(there), by_hand(own_server) as js:
        await js.delete_stream(receiver._settings.stream)
        await (await there.emit(Event("job/x")))
        await box.wait(1)
    assert [source.failures for source in there.sources()] == [0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"max_msgs": 1, "discard": "new"}, "the server rejected it: maximum messages exceeded"),
        ({"subjects": ["elsewhere"]}, r"does not include ev\d+\.>; change it"),
    ],
)
async def test_an_event_that_is_not_taken_in_time_fails_with_the_reason_of_the_server(
    own_server: NatsProcess,
    own_bridge: MakeBridge,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    reason: str,
) -> None:
    monkeypatch.setattr(publisher, "PUBLISH_TIMEOUT", 3.0)
    here = Router()
    sender = own_bridge(group="here", publish=("job/*",))
    here.add_source(sender)
    async with running(here), by_hand(own_server) as js:
        await (await here.emit(Event("job/x")))
        config = (await js.stream_info(sender._settings.stream)).config
        await js.update_stream(config.evolve(**change))
        with pytest.raises(NotPublished, match=reason):
            await (await here.emit(Event("job/x")))


async def test_a_client_that_is_closed_for_good_is_replaced(own_bridge: MakeBridge) -> None:
    here, there = Router(), Router()
    here.add_source(own_bridge(group="here", publish=("job/*",)))
    receiver = own_bridge(group="there", subscribe=("job/*",))
    there.add_source(receiver, backoff=Backoff(initial=0.01))
    there.handle("job/*", box := Box())
    async with running(here), running(there):
        assert receiver._session is not None
        await receiver._session.connection.client.close()
        await (await here.emit(Event("job/x")))
        await box.wait(1)


async def test_a_sender_that_is_closed_for_good_sends_through_the_next_client(own_bridge: MakeBridge) -> None:
    here = Router()
    sender = own_bridge(group="here", publish=("job/*",))
    here.add_source(sender, backoff=Backoff(initial=0.01))
    async with running(here):
        assert sender._session is not None
        await sender._session.connection.client.close()
        for _ in range(10):
            await (await here.emit(Event("job/x")))
    assert sender.state().published == 10


async def test_a_group_that_was_deleted_is_set_up_again(own_server: NatsProcess, own_bridge: MakeBridge) -> None:
    here, there = Router(), Router()
    here.add_source(own_bridge(group="here", publish=("job/*",)))
    receiver = own_bridge(group="there", subscribe=("job/*",))
    there.add_source(receiver)
    there.handle("job/*", box := Box())
    async with running(here), running(there), by_hand(own_server) as js:
        await (await here.emit(Event("job/x", 1)))
        await box.wait(1)
        await js.delete_consumer(receiver._settings.stream, "there")
        await (await here.emit(Event("job/x", 2)))
        await until(lambda: {event.data for event in box.events} == {1, 2})


async def test_how_often_an_event_failed_outlives_the_servers_memory(
    own_server: NatsProcess, own_bridge: MakeBridge
) -> None:
    """A restarted server counts deliveries from zero. An event would be retried forever if failures were not stored."""
    here, there = Router(), Router()
    here.add_source(own_bridge(group="here", publish=("job/*",)))
    receiver = own_bridge(group="there", subscribe=("job/*",), max_deliver=3, ack_wait=1.0)
    there.add_source(receiver)
    attempts: list[int] = []

    @there.on("job/*")
    async def fail(event: BusEvent) -> None:
        attempts.append(event.attempt)
        if len(attempts) == 2:
            await asyncio.to_thread(own_server.kill)
            await asyncio.to_thread(own_server.start)
        raise ValueError("no")

    async with running(here), running(there):
        await (await here.emit(Event("job/x")))
        await until(lambda: receiver.state().dead == 1)
    assert attempts == sorted(attempts)
    assert len(attempts) <= 4


async def test_a_router_ends_though_the_server_is_gone(own_server: NatsProcess, own_bridge: MakeBridge) -> None:
    there = Router()
    receiver = own_bridge(group="there", subscribe=("job/*",))
    there.add_source(receiver)
    async with running(there):
        await asyncio.to_thread(own_server.kill)
        await until(lambda: not receiver.state().up)


async def test_a_router_ends_though_the_server_is_frozen_and_takes_nothing(
    own_server: NatsProcess, own_bridge: MakeBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing data that does not fit into the socket's buffer would block until the server continues."""
    monkeypatch.setattr(bridge_module, "_FINAL_ANSWERS", 0.3)
    monkeypatch.setattr(connection, "_LAST_BYTES", 0.3)
    here = Router()
    sender = own_bridge(group="here", publish=("job/*",), subscribe=("other/*",))
    here.add_source(sender)
    task = asyncio.create_task(here.run())
    await here.wait_running()
    await (await here.emit(Event("job/x")))
    own_server.freeze()
    deliveries = [await here.emit(Event("job/x", b"x" * 1_000_000)) for _ in range(20)]
    await asyncio.sleep(0)
    task.cancel()
    _, running_still = await asyncio.wait([task], timeout=20)
    assert not running_still
    assert all(delivery.done for delivery in deliveries)
    assert sender.state().published == 1


async def test_a_server_that_does_not_exist_ends_the_start_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from lifecycle.errors import SourceFailed

    monkeypatch.setattr(connection, "_PATIENCE", 0.3)
    router = Router()
    router.add_source(NatsBridge("nats://me:secret@127.0.0.1:1", group="g", publish=("**",)))
    with pytest.raises(SourceFailed, match=r"NatsServer\(127.0.0.1:1\) could not be reached within 0.3 s") as caught:
        await router.run()
    assert isinstance(caught.value.__cause__, BridgeError)
    assert "secret" not in str(caught.value)

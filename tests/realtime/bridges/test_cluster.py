"""A cluster of three servers: events survive the death of its leader."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from nats.js.errors import ServiceUnavailableError

from lifecycle.bridges import Leader, NatsBridge, NotPublished, connection, streams
from lifecycle.bridges.lease import STREAM
from lifecycle.control import Event, Router
from lifecycle.testing import running
from tests.nats_servers import LIMIT, NatsProcess
from tests.programs import free_port
from tests.realtime.bridges.receiving import Box, by_hand
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: The number of events before and after the kill.
BEFORE, AFTER = 50, 50


@pytest.fixture
def site(tmp_path: Path) -> Iterator[dict[str, NatsProcess]]:
    """Return a cluster's three servers by name, without starting them."""
    ports = [free_port() for _ in range(3)]
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    servers: dict[str, NatsProcess] = {}
    for number, port in enumerate(ports):
        settings = f"server_name: n{number}\ncluster {{ name: all, listen: '127.0.0.1:{port}', routes: [{routes}] }}"
        servers[f"n{number}"] = NatsProcess(tmp_path / f"n{number}", settings=settings)
    yield servers
    for server in servers.values():
        server.kill()


@pytest.fixture
def cluster(site: dict[str, NatsProcess]) -> dict[str, NatsProcess]:
    """Start a cluster's three servers, and yield them by name."""
    for server in site.values():
        server.start()
    return dict(site)


@pytest.mark.timeout(240)
async def test_a_cluster_that_loses_its_leader_stalls_and_loses_nothing(cluster: dict[str, NatsProcess]) -> None:
    await formed(cluster)
    urls = ",".join(server.url for server in cluster.values())
    router, there = Router(), Router()
    leader = Leader("cron", urls, lease=60.0)
    router.add_source(NatsBridge(urls, group="here", publish=("job/*",)))
    router.add_source(leader)
    router.handle("leader/**", leadership := Box())
    there.add_source(NatsBridge(urls, group="there", subscribe=("job/*",), ack_wait=2.0))
    there.handle("job/*", box := Box())
    sent: set[int] = set()

    async def send(numbers: range) -> None:
        for number in numbers:
            await insist(router, number)
            sent.add(number)

    async with running(router), running(there):
        await leadership.wait(1)
        await send(range(BEFORE))
        names = {await leads(cluster, "EVENTS"), await leads(cluster, STREAM)}
        name = names.pop()
        sending = asyncio.create_task(send(range(BEFORE, BEFORE + AFTER)))
        await until(lambda: len(sent) > BEFORE + 5)
        await asyncio.to_thread(cluster.pop(name).kill)
        await leader.put("last/run", b"after the kill")
        await sending
        await until(lambda: {event.data for event in box.events} >= sent)
        assert await leader.get("last/run") == b"after the kill"
        assert leadership.topics == ["leader/cron/gained"]
    assert sent == set(range(BEFORE + AFTER))


@pytest.mark.timeout(240)
async def test_a_first_start_waits_until_enough_servers_are_up(
    site: dict[str, NatsProcess], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of three servers that have never met do not elect a leader."""
    monkeypatch.setattr(streams, "_TRIES", 1)
    monkeypatch.setattr(streams, "_PAUSE", 0.1)
    *first, last = site.values()
    for server in first:
        await asyncio.to_thread(server.start)
    router = Router()
    router.add_source(NatsBridge(",".join(server.url for server in first), group="here", publish=("job/*",)))
    task = asyncio.create_task(router.run())
    await until(lambda: "waiting for a leader" in caplog.text or task.done())
    assert not task.done()
    await asyncio.to_thread(last.start)
    await asyncio.wait([task, starting := asyncio.create_task(router.wait_running())], return_when="FIRST_COMPLETED")
    assert starting.done()
    await (await router.emit(Event("job/x")))
    assert (await leads(site, "EVENTS")) in site
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.timeout(240)
async def test_a_bridge_and_a_leader_whose_server_is_frozen_go_to_another(
    cluster: dict[str, NatsProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frozen server's connections stay open, so the client alone would wait for half a minute."""
    monkeypatch.setattr(connection, "_PING", 600)
    await formed(cluster)
    router = Router()
    # Only this server's address is configured. The client discovers the other servers.
    frozen = next(iter(cluster.values()))
    both = NatsBridge(frozen.url, group="here", publish=("job/*",), subscribe=("job/*",))
    leader = Leader("cron", frozen.url, lease=6.0)
    router.add_source(both)
    router.add_source(leader)
    router.handle("job/*", box := Box())
    router.handle("leader/**", leadership := Box())
    async with running(router):
        await leadership.wait(1)
        await insist(router, 0)
        await box.wait(1)
        frozen.freeze()
        try:
            await insist(router, 1)
            await box.wait(2)
            assert leader._elector is not None
            client = leader._elector.connection.client
            await until(lambda: client.connected_url and client.connected_url.port != frozen.port and leader.token)
        finally:
            frozen.thaw()


async def formed(cluster: dict[str, NatsProcess]) -> None:
    """Wait until the cluster has a leader, because it does not answer requests without one."""
    async with asyncio.timeout(2 * LIMIT), by_hand(next(iter(cluster.values())), patience=0.2) as js:
        while True:
            with suppress(TimeoutError, ServiceUnavailableError):
                await js.account_info()
                return


async def insist(router: Router, number: int) -> None:
    """Send the event until the cluster accepts it. A second attempt has the same id, so it is the same event."""
    while True:
        try:
            await (await router.emit(Event("job/x", number)))
        except NotPublished:
            continue
        return


async def leads(cluster: dict[str, NatsProcess], stream: str) -> str:
    async with by_hand(next(iter(cluster.values()))) as js:
        info = await js.stream_info(stream)
    assert info.config.num_replicas == 3
    assert info.cluster is not None
    assert info.cluster.leader is not None
    return info.cluster.leader

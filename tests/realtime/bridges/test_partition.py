"""A network partition between two hosts and a server, each in its own network: packets are dropped silently."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.chaos.leader import read
from tests.nats_servers import LIMIT, NatsProcess
from tests.networks import ip
from tests.realtime.bridges.workers import result_of, workers
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.realtime.bridges.workers import Worker

pytestmark = pytest.mark.engine("ip")

#: The addresses are the same in all tests, because each network is isolated.
BUS, HOST = "10.7.{}.1", "10.7.{}.2"


class Networks:
    """The networks of a server and of two hosts, numbered 0 and 1. A cable connects the server to each host."""

    def __init__(self) -> None:
        self._name = f"lifecycle-{os.getpid()}-"
        self._names = [self._name + each for each in ("bus", "0", "1")]

    def make(self) -> None:
        for name in self._names:
            ip(f"netns add {name}")
        for number in range(2):
            ip(f"link add to{number} netns {self._name}bus type veth peer name eth0 netns {self._name}{number}")
            ip(f"-n {self._name}bus address add {BUS.format(number)}/24 dev to{number}")
            ip(f"-n {self._name}{number} address add {HOST.format(number)}/24 dev eth0")
            ip(f"-n {self._name}{number} link set eth0 up")
            self.plug(number)

    def plug(self, number: int) -> None:
        ip(f"-n {self._name}bus link set to{number} up")

    def pull(self, number: int) -> None:
        """Cut the cable at the server's end. The host can still send, but receives no response."""
        ip(f"-n {self._name}bus link set to{number} down")

    def via(self, which: int | str) -> tuple[str, ...]:
        """Return the command prefix that runs a command in this network."""
        return ("ip", "netns", "exec", f"{self._name}{which}")

    def delete(self) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=LIMIT, check=False)


@pytest.fixture
def networks() -> Iterator[Networks]:
    networks = Networks()
    try:
        networks.make()
        yield networks
    finally:
        networks.delete()


async def test_two_hosts_never_lead_at_once_during_a_partition(networks: Networks, tmp_path: Path) -> None:
    server = NatsProcess(tmp_path / "nats", host="0.0.0.0", via=networks.via("bus"))
    with server:
        places = [(f"nats://{BUS.format(number)}:{server.port}", networks.via(number)) for number in range(2)]
        async with workers(tmp_path, *places) as both:
            await cut_off(networks, both)
            # The member that was cut off has reconnected, and leads because the other member is dead.
            back, other = sorted(both, key=lambda worker: worker.token)
            await other.kill()
            await until(lambda: back.token > other.last)
            await until(lambda: back.wrote > other.wrote)
        server.kill()
    with NatsProcess(tmp_path / "nats") as again:
        result = result_of(both, await read(again.url))
    assert result.wrong() == []
    assert len(result.terms) > 2


async def cut_off(networks: Networks, both: list[Worker]) -> None:
    """Cut the leader off, and wait until the other process leads."""
    await until(lambda: any(worker.token for worker in both))
    number, leader = max(enumerate(both), key=lambda each: each[1].token)
    networks.pull(number)
    other = both[1 - number]
    await until(lambda: other.last > leader.last)
    await until(lambda: leader.token == 0)
    networks.plug(number)

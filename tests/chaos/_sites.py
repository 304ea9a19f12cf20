"""The servers of storms: one NATS server, or a cluster of three. Both can be attacked."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

import nats
from nats.errors import Error as NatsError

from tests.nats_servers import NatsProcess, in_a_directory
from tests.networks import Switch

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Awaitable, Callable

    from nats.js import JetStreamContext

    from tests.chaos.report import Report

__all__ = ["Cluster", "OneServer", "Site", "by_hand", "on_cluster", "on_one_server"]


class Site(Protocol):
    """The servers of one storm."""

    #: The directory for the files of the storm.
    directory: Path

    @property
    def url(self) -> str: ...

    async def attack(self, chance: random.Random) -> None:
        """Make a server fail for a moment."""


class OneServer:
    """A server that is killed."""

    def __init__(self, directory: Path, server: NatsProcess) -> None:
        self.directory = directory
        self._server = server

    @property
    def url(self) -> str:
        return self._server.url

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[OneServer]:
        async with in_a_directory() as (directory, server):
            yield cls(directory, server)

    async def attack(self, chance: random.Random) -> None:
        await self._server.restart(after=chance.random())


class Cluster:
    """Three servers, each on its own host. Usually, an attack hits the server that leads the stream ``stream``."""

    def __init__(self, directory: Path, switch: Switch, stream: str) -> None:
        self.directory = directory
        self._switch = switch
        self._stream = stream
        routes = ", ".join(f'"nats://{switch.address(host)}:6222"' for host in switch.hosts)
        self._servers = {
            host: NatsProcess(
                directory / f"n{host}",
                host=switch.address(host),
                via=switch.via(host),
                settings=f"server_name: n{host}\n"
                f"cluster {{ name: all, listen: '{switch.address(host)}:6222', routes: [{routes}] }}",
            )
            for host in switch.hosts
        }

    @property
    def url(self) -> str:
        return ",".join(server.url for server in self._servers.values())

    @classmethod
    @asynccontextmanager
    async def open(cls, switch: Switch, stream: str) -> AsyncIterator[Cluster]:
        with TemporaryDirectory() as name:
            cluster = cls(Path(name), switch, stream)
            try:
                for server in cluster._servers.values():
                    await asyncio.to_thread(server.start)
                yield cluster
            finally:
                for server in cluster._servers.values():
                    await asyncio.to_thread(server.kill)

    async def attack(self, chance: random.Random) -> None:
        host = await self._leading() if chance.random() < 0.8 else 0
        host = host or chance.choice(self._switch.hosts)
        way = chance.choice((self._kill, self._freeze, self._cut, self._separate))
        await way(host, chance)

    async def _kill(self, host: int, chance: random.Random) -> None:
        await self._servers[host].restart(after=chance.random() * 2)

    async def _freeze(self, host: int, chance: random.Random) -> None:
        self._servers[host].freeze()
        await asyncio.sleep(chance.random() * 6)
        self._servers[host].thaw()

    async def _cut(self, host: int, chance: random.Random) -> None:
        await asyncio.to_thread(self._switch.cut, host)
        await self._heal(host, chance)

    async def _separate(self, host: int, chance: random.Random) -> None:
        await asyncio.to_thread(self._switch.separate, host)
        await self._heal(host, chance)

    async def _heal(self, host: int, chance: random.Random) -> None:
        try:
            await asyncio.sleep(chance.random() * 8)
        finally:
            await asyncio.to_thread(self._switch.heal, host)

    async def _leading(self) -> int:
        """Return the host of the stream's leader, or 0 if there is none."""
        with suppress(NatsError, TimeoutError, OSError):
            async with by_hand(self.url) as js:
                info = await js.stream_info(self._stream)
                return int(((info.cluster and info.cluster.leader) or "n0")[1:])
        return 0


@asynccontextmanager
async def by_hand(url: str) -> AsyncIterator[JetStreamContext]:
    """Yield a nats-py client that gives up after two seconds."""
    async with asyncio.timeout(10.0):
        client = await nats.connect(
            url.split(","), connect_timeout=2, max_reconnect_attempts=2, reconnect_time_wait=0.1, error_cb=_ignore
        )
    try:
        yield client.jetstream(timeout=2.0)
    finally:
        with suppress(NatsError, TimeoutError, OSError):
            await client.close()


async def _ignore(_: Exception) -> None:
    """Errors are raised by the requests."""


# -- storms ------------------------------------------------------------------------------------------------------------


def on_one_server(storm: Callable[[Site], Awaitable[Report]]) -> Report:
    """Run a storm against one server."""

    async def run() -> Report:
        async with OneServer.open() as site:
            return await storm(site)

    return asyncio.run(run())


def on_cluster(storm: Callable[[Site], Awaitable[Report]], stream: str) -> Report:
    """Run a storm against three servers, which store ``stream``."""

    async def run() -> Report:
        async with Cluster.open(switch, stream) as site:
            return await storm(site)

    switch = Switch(3)
    with switch.inside():
        return asyncio.run(run())

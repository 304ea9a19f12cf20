"""`ProbeServer` without clients, in virtual time. ``tests/realtime/observe/test_probes.py`` tests it with clients."""

from __future__ import annotations

import asyncio
import functools
import math
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from lifecycle import HealthCheckSource, Router, run
from lifecycle.observe import ProbeServer
from lifecycle.runtime import current, lifetime, shutdown
from lifecycle.sources import Source
from lifecycle.testing.virtual import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lifecycle.control import Emit
    from lifecycle.testing import Clock

run_virtual = functools.partial(run, loop_factory=VirtualLoop)


class Open(Source):
    """A source that records when it is closed."""

    def __init__(self) -> None:
        self.closed_at = math.inf
        self._over = asyncio.Event()

    async def run(self, _: Emit) -> None:
        await self._over.wait()

    def close(self) -> None:
        self.closed_at = asyncio.get_running_loop().time()
        self._over.set()


def closed_after(stop: Callable[[], object], **options: Any) -> tuple[float, float]:
    """Return the seconds from the stop until a source is closed, and until the main is cancelled."""
    source, router = Open(), Router()
    router.add_source(source)
    times: list[float] = []

    async def main() -> None:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(1)
        times.append(clock())
        stop()
        try:
            await asyncio.Event().wait()
        finally:
            times.append(clock())

    settings = {"exit_timeout": options.pop("exit_timeout", 25.0)}
    run_virtual(ProbeServer(port=0, **options), router, main, **settings)
    return source.closed_at - times[0], times[1] - times[0]


def test_sources_and_mains_continue_for_the_drain_delay() -> None:
    assert closed_after(shutdown, drain_delay=7) == (7, 7)


def test_without_drain_delay_the_shutdown_starts_at_once() -> None:
    assert closed_after(shutdown) == (0, 0)


@pytest.mark.parametrize("as_task", [False, True])
async def test_a_block_continues_for_the_drain_delay(clock: Clock, *, as_task: bool) -> None:
    """The delay is applied once, regardless of how the server is run."""
    probes = ProbeServer(port=0, drain_delay=7)
    async with lifetime(signals=False) as life, AsyncExitStack() as held:
        if as_task:
            life.go(probes.run)
            await probes.wait_running()
        else:
            await held.enter_async_context(probes)
        stopped_at = clock.time()
        life.shutdown()
        try:
            await asyncio.Event().wait()
        finally:
            assert clock.time() == stopped_at + 7
    assert clock.time() == stopped_at + 7


async def test_a_block_that_has_ended_has_no_drain_delay(clock: Clock) -> None:
    async with lifetime(signals=False) as life, ProbeServer(port=0, drain_delay=7):
        life.shutdown()
        stopped_at = clock.time()
    assert clock.time() == stopped_at


def test_the_drain_delay_leaves_time_for_hooks() -> None:
    assert closed_after(shutdown, drain_delay=60, exit_timeout=10) == (8, 8)


def test_a_program_that_could_not_start_has_no_drain_delay() -> None:
    times: list[float] = []

    class Failing:
        async def wait_running(self) -> None:
            await asyncio.Event().wait()

        async def run(self) -> None:
            loop = asyncio.get_running_loop()
            await asyncio.sleep(1)
            loop.call_later(3, lambda: times.append(loop.time()))
            raise OSError("no database")

    with pytest.raises(OSError, match="no database"):
        run_virtual(ProbeServer(port=0, drain_delay=60), Failing())
    assert times == []


@pytest.mark.parametrize("first", [True, False])
def test_a_probe_server_does_not_keep_a_program_running(*, first: bool) -> None:
    class Job:
        async def run(self) -> None:
            await asyncio.sleep(3)

    mains: list[Any] = [Job()]
    mains.insert(0 if first else 1, ProbeServer(port=0))
    run_virtual(*mains)


def test_a_probe_server_alone_is_a_program() -> None:
    async def stop_later() -> None:
        await asyncio.sleep(100)
        shutdown()

    class Probes(ProbeServer):
        async def run(self) -> None:
            current().go(stop_later)
            await super().run()
            pytest.fail("the program does not stop by itself")

    run_virtual(Probes(port=0))


async def test_it_can_be_opened_again_but_not_twice() -> None:
    probes = ProbeServer("localhost", 0)
    for _ in range(2):
        async with probes:
            first = probes.url
            assert not first.endswith(":0")
            with pytest.raises(RuntimeError, match="is already listening"):
                async with probes:
                    pass
        assert probes.url == "http://localhost:0"


async def test_a_port_in_use_is_reported() -> None:
    async with ProbeServer(port=0) as probes:
        port = int(probes.url.rpartition(":")[2])
        with pytest.raises(OSError, match=f"port {port} on 127.0.0.1 is in use"):
            async with ProbeServer(port=port):
                pass
        with pytest.raises(OSError, match="in use"):
            await ProbeServer(port=port).run()


@pytest.mark.parametrize("delay", [-1, math.inf, math.nan])
def test_an_invalid_drain_delay_raises(delay: float) -> None:
    with pytest.raises(ValueError, match="drain_delay"):
        ProbeServer(drain_delay=delay)


@pytest.mark.parametrize("port", [-1, 65_536])
def test_an_invalid_port_raises(port: int) -> None:
    with pytest.raises(ValueError, match=f"port={port} .*use 1 to 65535"):
        ProbeServer(port=port)


def test_checks_are_checked() -> None:
    db = HealthCheckSource("db", print)
    with pytest.raises(TypeError, match="must be a HealthCheckSource"):
        ProbeServer(checks=[print])  # type: ignore[list-item]  # that is the mistake
    with pytest.raises(ValueError, match="same name"):
        ProbeServer(checks=[db, HealthCheckSource("db", print)])


def test_an_ipv6_address_is_in_brackets_in_the_url() -> None:
    assert repr(ProbeServer("::1", 9000)) == "<ProbeServer http://[::1]:9000>"


async def test_the_url_of_a_unix_socket_names_its_file(tmp_path: Path) -> None:
    place = tmp_path / "probes"
    async with ProbeServer(f"unix:{place}") as probes:
        assert probes.url == f"http+unix://{quote(str(place), safe='')}"
        assert place.is_socket()
    assert not place.exists()

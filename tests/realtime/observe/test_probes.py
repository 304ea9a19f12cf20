"""Probes over real sockets, as Kubernetes and load balancers see them."""

from __future__ import annotations

import asyncio
import json
import signal
import time
import urllib.error
import urllib.request
from contextlib import closing
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from lifecycle import HealthCheckSource, Router, run
from lifecycle.observe import ProbeServer
from lifecycle.runtime import lifetime, shutdown
from lifecycle.testing import Recorder, running
from lifecycle.workers import TaskWorker
from tests.programs import LIMIT, Running

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PROGRAM = """
import asyncio
from lifecycle import Router, WebhookSource, run
from lifecycle.observe import ProbeServer

probes, hook, router = ProbeServer(port=0, drain_delay=15), WebhookSource(port=0), Router()
router.add_source(hook)
router.handle("webhook/**", lambda event: print("got", event.topic, flush=True))

async def main():
    print(probes.url, hook.url, flush=True)
    await asyncio.Event().wait()

run(probes, router, main)
"""


async def ask(url: str, method: str = "GET") -> tuple[int, Any]:
    async with aiohttp.ClientSession() as client, client.request(method, url) as answer:
        text = await answer.text()
        return answer.status, json.loads(text) if text else None


def test_a_program_starts_is_ready_and_stops() -> None:
    seen: dict[str, list[Any]] = {"/livez": [], "/readyz": []}
    probes, router = ProbeServer(port=0), Router()

    async def look() -> None:
        for path, answers in seen.items():
            answers.append(await ask(probes.url + path))

    class Slow:
        async def __aenter__(self) -> None:
            await look()

        async def __aexit__(self, *_: object) -> None:
            return

        async def run(self, _: object) -> None:
            await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.wait_for(until(lambda: ask(probes.url + "/readyz"), (200, {"status": "ready"})), 30)
        await look()
        shutdown()
        try:
            await asyncio.Event().wait()
        finally:
            # The server is stopped last, so it still reports the state while the other mains finish.
            await look()

    router.add_source(Slow())
    run(probes, router, main)
    assert seen == {
        "/livez": [(200, {"status": "live"})] * 3,
        "/readyz": [(503, {"status": "starting"}), (200, {"status": "ready"}), (503, {"status": "stopping"})],
    }


async def until(look: Callable[[], Awaitable[Any]], wanted: Any) -> None:
    while await look() != wanted:
        await asyncio.sleep(0.005)


async def test_health_names_the_checks_and_whether_each_is_up() -> None:
    database_is_up = True

    def database() -> bool:
        return database_is_up

    checks = HealthCheckSource("db", database, interval=0.02), HealthCheckSource("disk", lambda: None)
    never = HealthCheckSource("never", print)
    router = Router()
    router.fallback(Recorder())
    for check in checks:
        router.add_source(check)
    async with lifetime(signals=False), ProbeServer(port=0, checks=checks) as probes, running(router):
        async with asyncio.timeout(30):
            up = {"status": "ready", "checks": {"db": "up", "disk": "up"}}
            await until(lambda: ask(probes.url + "/healthz"), (200, up))
            database_is_up = False
            down = {"status": "ready", "checks": {"db": "down", "disk": "up"}}
            await until(lambda: ask(probes.url + "/healthz"), (503, down))
        assert await ask(probes.url + "/readyz") == (200, {"status": "ready"})
        async with ProbeServer(port=0, checks=[never]) as others:
            unknown = {"status": "ready", "checks": {"never": "unknown"}}
            assert await ask(others.url + "/healthz") == (503, unknown)


async def test_a_failed_worker_makes_it_unhealthy_and_not_unready() -> None:
    async def fail() -> None:
        raise ValueError("the mailbox is gone")

    async def wait() -> None:
        await asyncio.Event().wait()

    async with lifetime(signals=False), ProbeServer(port=0) as probes:
        async with TaskWorker("poll", wait):
            assert await ask(probes.url + "/healthz") == (200, {"status": "ready", "checks": {}})
        async with TaskWorker("poll", fail) as worker:
            await worker.wait()
            assert await ask(probes.url + "/healthz") == (503, {"status": "unhealthy", "checks": {}})
            assert await ask(probes.url + "/readyz") == (200, {"status": "ready"})
            assert await ask(probes.url + "/livez") == (200, {"status": "live"})


async def test_a_router_that_has_not_started_makes_it_unready() -> None:
    go_on = asyncio.Event()

    class Slow:
        async def __aenter__(self) -> None:
            await go_on.wait()

        async def __aexit__(self, *_: object) -> None:
            return

        async def run(self, _: object) -> None:
            await asyncio.Event().wait()

    router = Router()
    router.add_source(Slow())
    async with lifetime(signals=False) as life, ProbeServer(port=0) as probes:
        task = life.go(router.run)
        await asyncio.sleep(0)
        assert await ask(probes.url + "/healthz") == (503, {"status": "starting", "checks": {}})
        go_on.set()
        await router.wait_running()
        assert await ask(probes.url + "/healthz") == (200, {"status": "ready", "checks": {}})
        router.stop()
        await task


async def test_outside_a_lifetime_it_is_ready_while_it_listens() -> None:
    async with ProbeServer(port=0) as probes:
        assert await ask(probes.url + "/readyz") == (200, {"status": "ready"})


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "/livez", 200),
        ("HEAD", "/readyz", 200),
        ("GET", "/readyz?verbose", 200),
        ("POST", "/readyz", 405),
        ("GET", "/", 404),
        ("GET", "/readyz/", 404),
        ("GET", "/livez/ping", 404),
        ("DELETE", "/nothing", 404),
    ],
)
async def test_only_probes_are_answered(method: str, path: str, status: int) -> None:
    async with (
        ProbeServer(port=0) as probes,
        aiohttp.ClientSession() as client,
        client.request(method, probes.url + path) as answer,
    ):
        text = await answer.text()
        assert answer.status == status
        assert (text == "") == (method == "HEAD")
        assert answer.headers["Server"] == "lifecycle"
        assert answer.headers.get("Allow") == ("GET, HEAD" if status == 405 else None)


async def test_invalid_http_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    async with ProbeServer(port=0) as probes:
        host, _, port = probes.url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert b"400 Bad Request" in await reader.read()
        writer.close()
        await writer.wait_closed()
        assert await ask(probes.url + "/livez") == (200, {"status": "live"})
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def answer_of(url: str, body: bytes | None = None) -> int:
    try:
        with urllib.request.urlopen(url, body, LIMIT) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def wait_for(url: str, status: int) -> None:
    end = time.monotonic() + LIMIT
    while answer_of(url) != status:
        assert time.monotonic() < end, f"{url} did not return {status}"


def test_after_sigterm_it_is_not_ready_and_serves_for_the_drain_delay() -> None:
    with closing(Running("-c", PROGRAM, env={})) as program:
        program.until("\n")
        probes, hook = program.text.split()
        wait_for(f"{probes}/readyz", 200)
        program.process.send_signal(signal.SIGTERM)
        wait_for(f"{probes}/readyz", 503)
        assert answer_of(f"{hook}/deploy", b"{}") == 202
        program.until("got webhook/deploy")
        assert answer_of(f"{probes}/livez") == 200
        # The drain delay is part of the shutdown, so Ctrl+C forces the exit as usual.
        program.process.send_signal(signal.SIGINT)
        program.rest(1)

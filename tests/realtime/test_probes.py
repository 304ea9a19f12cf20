"""Health checks in a `Spec`: a port, a URL, or a command."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import psutil
import pytest
from aiohttp import web

from lifecycle.workers import Backoff, ProbeResult, Spec, Supervisor
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_aiohttp import AiohttpRawServer, AiohttpServer

SLEEP = ["sleep", "1000"]


async def job() -> None:
    await asyncio.Event().wait()


async def test_a_url_is_probed_for_any_kind_of_child(aiohttp_raw_server: AiohttpRawServer) -> None:
    status = 200

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(status=status)

    url = str((await aiohttp_raw_server(answer)).make_url("/health"))
    async with Supervisor("s", Spec("job", job, probe=url)) as supervisor:
        assert await supervisor.probe("job") == ProbeResult(healthy=True)
        status = 503
        message = f"did not respond at {url} with a status below 400: the last response had the status 503"
        assert await supervisor.probe("job") == ProbeResult(healthy=False, message=message)


async def test_a_port_is_probed(aiohttp_server: AiohttpServer) -> None:
    server = await aiohttp_server(web.Application())
    port = server.make_url("").port
    async with Supervisor("s", Spec("job", job, probe=f"port:{port}")) as supervisor:
        assert (await supervisor.probe("job")).healthy
        await server.close()
        message = f"did not accept connections on 127.0.0.1:{port}"
        assert await supervisor.probe("job") == ProbeResult(healthy=False, message=message)


async def test_a_command_is_probed_in_the_environment_and_directory_of_the_child(tmp_path: Path) -> None:
    probe = """cmd:sh -c 'test -e "$FLAG" || exit 3'"""
    spec = Spec("app", SLEEP, probe=probe, env={"FLAG": "healthy"}, cwd=tmp_path)
    async with Supervisor("s", spec) as supervisor:
        failed = await supervisor.probe("app")
        assert not failed.healthy
        assert failed.message.startswith("did not exit with status 0 (sh -c ")
        assert failed.message.endswith("): it exited with status 3")
        (tmp_path / "healthy").touch()
        assert await supervisor.probe("app") == ProbeResult(healthy=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes as another user")
async def test_a_command_is_probed_as_the_user_of_the_child() -> None:
    spec = Spec("app", SLEEP, probe="cmd:sh -c 'test $(id -un) = nobody'", user="nobody")
    async with Supervisor("s", spec) as supervisor:
        assert await supervisor.probe("app") == ProbeResult(healthy=True)


async def test_a_probe_whose_command_is_missing_fails() -> None:
    async with Supervisor("s", Spec("app", SLEEP, probe="cmd:no-such-program")) as supervisor:
        assert "was not found on PATH" in (await supervisor.probe("app")).message


async def test_a_command_that_takes_too_long_is_killed_with_its_children() -> None:
    spec = Spec("app", SLEEP, probe="cmd:sh -c 'sleep 777 & sleep 777'", probe_timeout=0.2)
    async with Supervisor("s", spec) as supervisor:
        message = "no response within 0.2 s"
        assert await supervisor.probe("app") == ProbeResult(healthy=False, message=message)
        left = [each for each in psutil.Process().children(recursive=True) if "777" in each.cmdline()]
        assert left == []


async def test_a_child_whose_probe_fails_is_restarted(tmp_path: Path) -> None:
    flag = tmp_path / "healthy"
    flag.touch()
    spec = Spec(
        "app",
        SLEEP,
        probe=f"cmd:test -e {flag}",
        probe_interval=0.05,
        failures=2,
        restart_unhealthy=True,
        backoff=Backoff(initial=0.01),
    )
    async with Supervisor("s", spec) as supervisor:
        flag.unlink()
        await until(lambda: supervisor.workers()[0].restarts == 1)


def test_a_probe_has_an_interval_by_default() -> None:
    assert Spec("app", SLEEP, probe="port:80").probe_interval == 10
    assert Spec("app", SLEEP).probe_interval is None

"""A lifetime inside FastAPI, Quart, Django and aiohttp, under the servers that run them."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.cli import main
from tests.programs import LIMIT, Running, connect, free_port
from tests.waiting import until_blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HERE = "tests.realtime.embedding"
HOSTS = {
    "uvicorn": ("-m", "uvicorn", f"{HERE}.with_fastapi:app", "--port", "{port}"),
    "uvicorn-django": ("-m", "uvicorn", f"{HERE}.with_django:app", "--port", "{port}"),
    "uvicorn-quart": ("-m", "uvicorn", f"{HERE}.with_quart:app", "--port", "{port}"),
    "hypercorn": ("-m", "hypercorn", f"{HERE}.with_quart:app", "-b", "127.0.0.1:{port}"),
    "gunicorn": (
        *("-m", "gunicorn", "-k", "uvicorn_worker.UvicornWorker", "--no-control-socket"),
        *("-b", "127.0.0.1:{port}", f"{HERE}.with_fastapi:app"),
    ),
    "aiohttp": ("-m", f"{HERE}.with_aiohttp", "{port}"),
}


class Host:
    """A server with the application, and a client."""

    def __init__(self, kind: str, port: int, env: dict[str, str]) -> None:
        self.program = Running(*(word.format(port=port) for word in HOSTS[kind]), env=env)
        self.port = port

    def ask(self, path: str, method: str = "GET") -> tuple[int, str]:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        try:
            client.request(method, path)
            with client.getresponse() as answer:
                return answer.status, answer.read().decode()
        finally:
            client.close()

    def health(self) -> tuple[int, Any]:
        status, body = self.ask("/health")
        return status, json.loads(body)

    def is_green(self) -> bool:
        with suppress(OSError, http.client.HTTPException):
            return self.health()[0] == 200
        return False

    def exit_code(self) -> int:
        """Wait for the end, after which no request is answered."""
        end = time.monotonic() + LIMIT
        while self.program._read(end):
            pass
        code = self.program.process.wait(LIMIT)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", self.port), LIMIT)
        return code


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    def started(kind: str, **env: str) -> Host:
        host = Host(kind, free_port(), {"XDG_RUNTIME_DIR": str(tmp_path), **env})
        hosts.append(host)
        connect(host.port)
        until_blocking(host.is_green, lambda: host.program.text)
        return host

    yield started
    for host in hosts:
        host.program.close()


@pytest.mark.parametrize("kind", ["uvicorn", "uvicorn-django", "hypercorn", "aiohttp"])
def test_ctl_stop_ends_the_host(kind: str, start: Callable[..., Host]) -> None:
    host = start(kind)
    assert host.ask("/mail/ann", "POST")[0] == 200
    components = {name: {"healthy": True, "message": ""} for name in ("jobs", "app", "app/poll")}
    assert host.health() == (200, {"ready": True, "live": True, "components": components})
    assert main(["ctl", "stop"]) == 0
    host.exit_code()
    assert "sent to ann" in host.program.text
    assert "the lifetime stops (cancel); " in host.program.text
    assert "closed" in host.program.text


@pytest.mark.parametrize(("kind", "code"), [("uvicorn", -15), ("hypercorn", 0), ("aiohttp", 1)])
def test_main_that_fails_ends_the_host(kind: str, code: int, start: Callable[..., Host]) -> None:
    host = start(kind)
    host.ask("/mail/nobody", "POST")
    assert host.exit_code() == code
    [line] = [line for line in host.program.text.splitlines() if "this process" in line]
    assert line.startswith("app failed: 'app' gives up: more than 0 restarts within 1 s, the last of 'poll'")
    assert host.program.text.count("closed") == 1


@pytest.mark.parametrize("kind", ["uvicorn", "uvicorn-quart", "aiohttp"])
def test_supervisor_that_gives_up_in_a_block_ends_the_host(kind: str, start: Callable[..., Host]) -> None:
    host = start(kind, MODE="block")
    host.ask("/mail/nobody", "POST")
    assert host.exit_code() != 0
    assert "worker 'app' failed: 'app' gives up" in host.program.text
    assert host.program.text.count("closed") == 1


def test_worker_that_fails_in_a_block_makes_the_program_unhealthy(start: Callable[..., Host]) -> None:
    host = start("uvicorn", MODE="worker")
    host.ask("/mail/nobody", "POST")
    until_blocking(lambda: not host.is_green())
    status, health = host.health()
    assert (status, health["ready"], health["live"]) == (503, False, False)
    assert health["components"]["poll"] == {"healthy": False, "message": "failed: the poll is dead"}
    host.program.until("worker 'poll' failed: the poll is dead")
    host.program.process.terminate()
    assert host.exit_code() == -signal.SIGTERM


def test_gunicorn_replaces_a_worker_that_stops_and_reloads(start: Callable[..., Host]) -> None:
    host = start("gunicorn")
    assert main(["ctl", "stop"]) == 0
    host.program.until("closed")
    until_blocking(host.is_green)
    host.program.process.send_signal(signal.SIGHUP)
    host.program.until("closed")
    until_blocking(host.is_green)
    host.program.process.terminate()
    assert host.exit_code() == 0
    assert host.program.text.count("closed") == 3


def test_two_hosts_run_side_by_side(start: Callable[..., Host]) -> None:
    first, second = start("uvicorn", NAME="first"), start("aiohttp", NAME="second")
    assert main(["ctl", "-p", "first", "stop"]) == 0
    first.exit_code()
    assert second.ask("/mail/ann", "POST")[0] == 200
    second.program.process.terminate()
    assert second.exit_code() == 0

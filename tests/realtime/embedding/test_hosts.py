"""A lifetime inside FastAPI, Quart, Django and aiohttp, under the servers that run them."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from lifecycle.cli import main
from tests.programs import LIMIT, Running, connect, free_port
from tests.waiting import until_blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The file in the current directory that each server loads.
PROGRAMS = {
    "uvicorn": "from tests.realtime.embedding.with_fastapi import app",
    "django": "from tests.realtime.embedding.with_django import app",
    "quart": "from tests.realtime.embedding.with_quart import app",
    "hypercorn": "from tests.realtime.embedding.with_quart import app",
    "gunicorn": "from tests.realtime.embedding.with_fastapi import app",
    "aiohttp": "from tests.realtime.embedding.with_aiohttp import main\nmain()",
}
UVICORN = ("-m", "uvicorn", "program:app", "--port", "{port}")
HOSTS = {
    "uvicorn": UVICORN,
    "django": UVICORN,
    "quart": UVICORN,
    "hypercorn": ("-m", "hypercorn", "program:app", "-b", "127.0.0.1:{port}"),
    "gunicorn": (
        *("-m", "gunicorn", "-k", "uvicorn_worker.UvicornWorker", "--no-control-socket"),
        *("-b", "127.0.0.1:{port}", "program:app"),
    ),
    "aiohttp": ("program.py", "{port}"),
}
RELOADING = {
    **{kind: (*HOSTS[kind], "--reload") for kind in ("uvicorn", "django", "quart", "hypercorn")},
    "gunicorn": HOSTS["gunicorn"],
    "aiohttp": ("-m", "lifecycle", "watch", "--", sys.executable, *HOSTS["aiohttp"]),
}
#: One server for each framework.
FOUR = ("uvicorn", "django", "hypercorn", "aiohttp")


class Host:
    """A server with the application, and a client."""

    def __init__(self, kind: str, where: Path, *, reload: bool, env: dict[str, str]) -> None:
        self.kind = kind
        self.port = free_port()
        self.file = where / "program.py"
        self.file.write_text(PROGRAMS[kind])
        words = (RELOADING if reload else HOSTS)[kind]
        env = {"PYTHONPATH": str(Path.cwd()), "XDG_RUNTIME_DIR": str(where), **env}
        self.program = Running(*(word.format(port=self.port) for word in words), cwd=where, env=env)

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

    def workers(self) -> list[psutil.Process]:
        """Return the supervisor's worker processes."""
        children = psutil.Process(self.program.process.pid).children(recursive=True)
        with suppress(psutil.NoSuchProcess):
            return [child for child in children if child.name() == "sleep"]
        return self.workers()

    def reload(self) -> None:
        """Change the program, and wait until its new version responds."""
        self.file.write_text(f"{self.file.read_text()}  # changed")
        if self.kind == "gunicorn":
            self.program.process.send_signal(signal.SIGHUP)
        self.program.until("closed")
        until_blocking(lambda: len(self.workers()) == 1 and self.is_green(), lambda: self.program.text)

    def exit_code(self) -> int:
        """Wait until the server has exited, check that it no longer answers requests, and return its exit code."""
        code = self.program.exit_code()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", self.port), LIMIT)
        return code


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    def started(kind: str, *, reload: bool = False, **env: str) -> Host:
        host = Host(kind, tmp_path, reload=reload, env=env)
        hosts.append(host)
        connect(host.port)
        until_blocking(host.is_green, lambda: host.program.text)
        return host

    yield started
    for host in hosts:
        host.program.close()


@pytest.mark.parametrize(("kind", "code"), [("uvicorn", -15), ("hypercorn", 0), ("aiohttp", 1)])
def test_main_that_fails_ends_the_host(kind: str, code: int, start: Callable[..., Host]) -> None:
    host = start(kind)
    host.ask("/mail/nobody", "POST")
    assert host.exit_code() == code
    [line] = [line for line in host.program.text.splitlines() if "this process" in line]
    assert line.startswith("app failed: 'app' gave up after more than 0 restarts within 1 s, most recently of 'poll'")
    assert host.program.text.count("closed") == 1


@pytest.mark.parametrize("kind", ["uvicorn", "quart", "aiohttp"])
def test_supervisor_that_gives_up_in_a_block_ends_the_host(kind: str, start: Callable[..., Host]) -> None:
    host = start(kind, MODE="block")
    host.ask("/mail/nobody", "POST")
    assert host.exit_code() != 0
    assert "worker 'app' failed: 'app' gave up" in host.program.text
    assert host.program.text.count("closed") == 1


@pytest.mark.parametrize("kind", FOUR)
def test_worker_that_fails_in_a_block_makes_the_program_unhealthy(kind: str, start: Callable[..., Host]) -> None:
    host = start(kind, MODE="worker")
    host.ask("/mail/nobody", "POST")
    until_blocking(lambda: not host.is_green())
    status, health = host.health()
    assert (status, health["ready"], health["live"]) == (503, False, False)
    assert health["components"]["poll"] == {"healthy": False, "message": "failed: the poll is dead"}
    host.program.until("worker 'poll' failed: the poll is dead")


@pytest.mark.parametrize(("kind", "code"), [("uvicorn", -15), ("django", -15), ("hypercorn", 0), ("aiohttp", 0)])
def test_sigterm_ends_the_host_and_its_workers(kind: str, code: int, start: Callable[..., Host]) -> None:
    host = start(kind)
    [worker] = host.workers()
    host.program.process.terminate()
    assert host.exit_code() == code
    assert not worker.is_running()
    assert host.program.text.count("closed") == 1
    assert "Traceback" not in host.program.text


@pytest.mark.parametrize("kind", [*FOUR, "gunicorn", "quart"])
def test_reload_of_the_host_replaces_the_workers(kind: str, start: Callable[..., Host]) -> None:
    host = start(kind, reload=True)
    for _ in range(2):
        [worker] = host.workers()
        host.reload()
        assert not worker.is_running()
        assert host.ask("/mail/ann", "POST")[0] == 200
        host.program.until("sent to ann")
    [worker] = host.workers()
    host.program.process.terminate()
    host.exit_code()
    assert not worker.is_running()
    assert "Traceback" not in host.program.text


def test_gunicorn_replaces_a_process_that_stops_and_sigterm_ends_it(
    start: Callable[..., Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = start("gunicorn")
    monkeypatch.chdir(tmp_path)
    assert main(["ctl", "stop"]) == 0
    host.program.until("closed")
    until_blocking(host.is_green)
    [worker] = host.workers()
    host.program.process.terminate()
    assert host.exit_code() == 0
    assert not worker.is_running()
    assert host.program.text.count("closed") == 2
    assert "Traceback" not in host.program.text


@pytest.mark.parametrize("kind", FOUR)
def test_ctl_stop_ends_one_of_two_hosts_of_one_name(
    kind: str, start: Callable[..., Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start(kind)
    second = start(kind)
    monkeypatch.chdir(tmp_path)
    [name] = (path.stem for path in tmp_path.rglob("web-*.sock"))
    assert main(["ctl", "-p", name, "stop"]) == 0
    second.exit_code()
    assert first.ask("/mail/ann", "POST")[0] == 200
    components = {name: {"healthy": True, "message": ""} for name in ("jobs", "app", "app/poll", "app/process")}
    assert first.health() == (200, {"ready": True, "live": True, "components": components})
    assert len(first.workers()) == 1
    assert main(["ctl", "stop"]) == 0
    first.exit_code()
    assert "sent to ann" in first.program.text
    for host in (first, second):
        assert "the lifetime is stopping (cancel); " in host.program.text
        assert "closed" in host.program.text
        assert "Traceback" not in host.program.text

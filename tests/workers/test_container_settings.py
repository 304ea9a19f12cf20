"""Container workers: rejected settings, the search for an engine, and the meaning of exit codes."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from lifecycle.workers import ContainerWorker, Status, WorkerFailed
from lifecycle.workers.containers import ContainerEnd, container_name, engine_address, failure_of, signal_number


async def listen(line: str, stream: str) -> None:
    """An async function, which is not a valid output."""


@pytest.mark.parametrize(
    ("image", "how", "error", "message"),
    [
        ("", {}, ValueError, "'app' has no image"),
        ("a", {"command": "sleep 1"}, TypeError, "command of 'app' must be a list of strings, got 'sleep 1'"),
        ("a", {"command": ["sleep", 1]}, TypeError, "must be a list of strings"),
        ("a", {"env": {"A=B": "1"}}, ValueError, "an environment variable's name must not be empty"),
        ("a", {"engine": "var/run/docker.sock"}, ValueError, "engine must be .*, got 'var/run/docker.sock'"),
        ("a", {"engine": "unix://"}, ValueError, "engine must be .*, got 'unix://'"),
        ("a", {"engine": "ssh://host"}, ValueError, "such as 'unix:///path/of/its.sock' or 'tcp://host:port'"),
        ("a", {"output": 3}, TypeError, "output must be a plain function"),
        ("a", {"output": listen}, TypeError, "output must be a plain function"),
    ],
)
def test_invalid_settings_are_refused_immediately(
    image: str, how: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ContainerWorker("app", image, **how)


def test_before_it_starts_it_has_no_container() -> None:
    worker = ContainerWorker("app", "redis:7")
    assert (worker.container, worker.state().kind, worker.state().contain) == (None, "container", None)
    assert worker.suspendable


# -- finding the engine ------------------------------------------------------------------------------------------------


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Remove all engine configuration, and return a directory for user sockets."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def listening(path: Path) -> socket.socket:
    path.parent.mkdir(exist_ok=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    return server


async def test_a_missing_socket_is_reported_with_the_required_extra(nowhere: Path) -> None:
    worker = ContainerWorker("db", "redis:7", engine=f"unix://{nowhere}/none.sock")
    with pytest.raises(WorkerFailed, match=r"'db' cannot start: no engine socket exists at .*/none\.sock") as failed:
        await worker.start()
    assert "extra 'docker'" in str(failed.value)
    assert worker.status is Status.FAILED


async def test_a_plain_path_is_the_path_of_a_socket(nowhere: Path) -> None:
    worker = ContainerWorker("db", "redis:7", engine=f"{nowhere}/none.sock")
    with pytest.raises(WorkerFailed, match=f"no engine socket exists at {nowhere}/none.sock"):
        await worker.start()


async def test_a_missing_extra_is_reported(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiodocker", None)
    with listening(nowhere / "s"):
        worker = ContainerWorker("db", "redis:7", engine=f"unix://{nowhere}/s")
        with pytest.raises(WorkerFailed, match=r"pip install 'lifecycle-control\[docker\]'"):
            await worker.start()


async def test_a_socket_without_a_listener_is_reported(nowhere: Path) -> None:
    listening(nowhere / "s").close()
    worker = ContainerWorker("db", "redis:7", engine=f"unix://{nowhere}/s")
    with pytest.raises(WorkerFailed, match=f"'db' cannot start: the engine at unix://{nowhere}/s does not respond"):
        await worker.start()


def test_environment_variables_precede_sockets_in_the_search(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://10.0.0.1:2375")
    with listening(nowhere / "podman" / "podman.sock"):
        assert engine_address(None) == "tcp://10.0.0.1:2375"
        assert engine_address("https://other:2376") == "https://other:2376"


def test_an_invalid_environment_variable_is_named(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://host")
    with pytest.raises(WorkerFailed, match=r"DOCKER_HOST must be an address .*, got 'ssh://host'"):
        engine_address(None)


def test_the_podman_socket_of_this_user_is_found_unless_docker_has_one(nowhere: Path) -> None:
    docker = Path("/var/run/docker.sock")
    with listening(nowhere / "podman" / "podman.sock"):
        first = docker if docker.is_socket() else f"{nowhere}/podman/podman.sock"
        assert engine_address(None) == f"unix://{first}"


# -- responses from the engine -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended", "message"),
    [
        (ContainerEnd(0), None),
        (ContainerEnd(0, out_of_memory=True), None),
        (ContainerEnd(1), "'db' exited with status 1"),
        (ContainerEnd(137), "'db' was killed by signal 9 (status 137), perhaps because the system ran out of memory"),
        (ContainerEnd(137, out_of_memory=True), "'db' ran out of memory and was killed; it exited with status 137"),
        (ContainerEnd(143), "'db' exited with status 143, as if killed by signal 15 (SIGTERM)"),
        (ContainerEnd(255), "'db' exited with status 255"),
    ],
)
def test_exit_codes_of_containers_are_distinguished(ended: ContainerEnd, message: str | None) -> None:
    error = failure_of("db", ended)
    assert (error and str(error)) == message


@pytest.mark.parametrize(
    ("text", "number"),
    [(None, 15), ("", 15), ("15", 15), ("2", 2), ("SIGINT", 2), ("int", 2), ("SIGRTMIN+3", 15), ("nonsense", 15)],
)
def test_the_stop_signal_of_an_image_is_parsed(text: str | None, number: int) -> None:
    assert signal_number(text) == number


@pytest.mark.parametrize(("name", "begins"), [("web 1", "web-1-"), ("_é", "worker-"), ("a" * 100, "a" * 40 + "-")])
def test_a_container_name_has_only_characters_that_engines_accept(name: str, begins: str) -> None:
    called = container_name(name)
    assert called.startswith(begins)
    assert called != container_name(name)
    assert len(called) == len(begins) + 12

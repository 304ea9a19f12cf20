"""Settings that a process worker rejects before its start."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.workers import ProcessWorker, Spec, WorkerFailed
from lifecycle.workers.readiness import parse_ready
from lifecycle.workers.stdio import Command, File, Inherited, fault_of
from lifecycle.workers.terminals import Terminal

if TYPE_CHECKING:
    from pathlib import Path


async def listen(line: str, stream: str) -> None:
    """An async function, which is not valid as an output."""


@pytest.mark.parametrize(
    ("argv", "how", "error", "message"),
    [
        ((), {}, ValueError, "'app' has no command"),
        (("",), {}, ValueError, "must start with a program and must not contain NUL"),
        (("a\0b",), {}, ValueError, "must start with a program and must not contain NUL"),
        ((["python", "app.py"],), {}, TypeError, "must consist of strings and paths"),
        ((1,), {}, TypeError, "must consist of strings and paths"),
        (("a",), {"stop_signal": 0}, ValueError, "stop_signal must be a valid signal.*, got 0"),
        (("a",), {"stop_signal": 1000}, ValueError, "stop_signal must be a valid signal.*, got 1000"),
        (("a",), {"env": {"A=B": "1"}}, ValueError, "an environment variable's name must not be empty"),
        (("a",), {"env": {"A": 1}}, TypeError, "environment variables must be strings.*got 'A': 1"),
        (("a",), {"output": 3}, TypeError, "output must be a plain function"),
        (("a",), {"output": listen}, TypeError, "output must be a plain function"),
        (("a",), {"detached": True}, ValueError, r"would die at its first line .* pass stdio=File\('app.log'\)"),
        (("a",), {"detached": True, "output": "inherit"}, ValueError, "this program reads its output"),
        (("a",), {"detached": True, "stdio": Terminal(print)}, ValueError, "this program reads its output"),
        (("a",), {"output": print, "stdio": Terminal(print)}, ValueError, "both output and stdio"),
        (
            ("a",),
            {"ready": "port:"},
            ValueError,
            "ready must be .*, got 'port:' .N must be a number from 1 to 65535",
        ),
        (("a",), {"user": "no such user"}, ValueError, "user='no such user' of 'app' does not exist on this machine"),
        (("a",), {"user": "root", "stdio": Inherited()}, ValueError, "both user and stdio"),
        (("a",), {"user": "root", "contain": "pidns"}, ValueError, "both user and contain='pidns'"),
        (("a",), {"ready": "port:0"}, ValueError, "from 1 to 65535"),
        (("a",), {"ready": "port:65536"}, ValueError, "from 1 to 65535"),
        (("a",), {"ready": "port:٣"}, ValueError, "from 1 to 65535"),
        (("a",), {"ready": "port: 80"}, ValueError, "from 1 to 65535"),
        (("a",), {"ready": "line:"}, ValueError, "the expression is empty"),
        (("a",), {"ready": "line:("}, ValueError, "not a regular expression: missing \\), unterminated subpattern"),
        (
            ("a",),
            {"ready": "line:x", "stdio": Inherited()},
            ValueError,
            "'app' has ready='line:x', which requires lines",
        ),
        (("a",), {"ready": "http://"}, ValueError, "a URL must have a host"),
        (("a",), {"ready": "http://a b/"}, ValueError, "and no spaces"),
        (("a",), {"ready": "http://a:99999/"}, ValueError, "Port out of range"),
        (("a",), {"ready": "http://[::1"}, ValueError, "Invalid IPv6 URL"),
        (("a",), {"ready": "notify:"}, ValueError, "unknown kind"),
        (("a",), {"ready": "5432"}, ValueError, "must be 'port:N', 'line:REGEX', 'http://…', 'https://…' or 'notify'"),
        (("a",), {"ready": 5432}, ValueError, "must be 'port:N'"),
        (("a",), {"ready": ""}, ValueError, "must be 'port:N'"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    argv: tuple[Any, ...], how: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ProcessWorker("app", *argv, **how)


def test_another_user_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    ProcessWorker("app", "a", user=65534)
    ProcessWorker("app", "a", user=65534, stdio=File("app.log"), detached=True)
    with pytest.raises(ValueError, match="user='root' of 'app' requires root, but this program runs as user 65534"):
        ProcessWorker("app", "a", user="root")


@pytest.mark.parametrize(
    ("ready", "awaited"),
    [
        ("port:5432", "accept connections on 127.0.0.1:5432"),
        ("line:^up: \\d+$", "write a line that matches '^up: \\\\d+$'"),
        ("http://localhost:80/ready?a=b:c", "respond at http://localhost:80/ready?a=b:c with a status below 400"),
        ("https://me:secret@host/", "respond at https://host/ with a status below 400"),
        ("notify", "send READY=1 to $NOTIFY_SOCKET"),
    ],
)
def test_each_readiness_check_describes_its_condition(ready: str, awaited: str) -> None:
    assert str(parse_ready(ready)) == awaited


async def _serve() -> None: ...


@pytest.mark.parametrize(
    "setting",
    [{"env": {"PASSWORD": "secret"}}, {"cwd": "/"}, {"user": "root"}, {"output": print}, {"start_timeout": 3}],
    ids=lambda setting: next(iter(setting)),
)
def test_a_spec_of_a_process_needs_a_list_of_arguments(setting: dict[str, Any]) -> None:
    [name] = setting
    with pytest.raises(ValueError, match=f"'db': {name} is only allowed for a list of arguments"):
        Spec("db", _serve, **setting)
    spec = Spec("db", ["postgres"], **setting)
    assert isinstance(spec.make(), ProcessWorker)
    assert "secret" not in repr(spec)


def test_a_spec_refuses_settings_that_its_worker_refuses() -> None:
    with pytest.raises(TypeError, match="environment variables must be strings"):
        Spec("db", ["postgres"], env={"PORT": 5432})  # type: ignore[dict-item]  # the point of the test
    with pytest.raises(ValueError, match=r"ready must be .*, got 'port:x'"):
        Spec("db", ["postgres"], ready="port:x")


def test_a_worker_can_be_created_outside_a_loop() -> None:
    for ready in ("port:80", "line:x", "http://localhost", "notify"):
        worker = ProcessWorker("app", sys.executable, "-c", "pass", ready=ready)
        assert (worker.status, worker.state().kind) == ("created", "process")


def test_an_unsearchable_directory_on_path_does_not_hide_that_a_program_is_missing(
    tmp_path: Path,
) -> None:
    """For an ordinary user, the system reports EACCES in both cases, but chmod helps in only one of them."""
    refused = PermissionError(errno.EACCES, "Permission denied")
    (tmp_path / "plain").touch(mode=0o644)
    env = {"PATH": str(tmp_path)}
    assert "was not found on PATH" in fault_of(Command(["missing"], env), refused)
    assert "is not executable" in fault_of(Command(["plain"], env), refused)


async def test_a_file_for_the_output_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "app.log"
    with pytest.raises(
        WorkerFailed, match=f"'app' cannot start: cannot open '{path}' .No such file or directory.; che"
    ):
        await ProcessWorker("app", "true", stdio=File(path)).start()

"""Containment: valid and rejected settings, and the comparison of cookies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.workers import ProcessWorker, TaskWorker, WorkerFailed
from lifecycle.workers.containment import cgroup, containment, guard_main
from lifecycle.workers.containment.containment import Level, PidnsCheck
from lifecycle.workers.containment.guard import (
    guard_manager,
    new_cookie,
    runtime_id,
    with_cookie,
    without_cookies,
)
from lifecycle.workers.containment.process_scan import COOKIE, CookieScan, Process, kill_found, read_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"contain": "jail"}, "contain must be one of 'auto', 'group', 'guard', 'cgroup', 'pidns', got 'jail'"),
        ({"contain": "detached"}, "'pidns', got 'detached'"),
        ({"contain": None}, "'pidns', got None"),
        ({"contain": "guard", "detached": True}, "contradict each other"),
    ],
)
def test_contradictory_containment_settings_are_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        ProcessWorker("app", "true", **how)


def test_detached_is_a_level_of_its_own() -> None:
    assert Level.wanted("auto", detached=True) is Level.DETACHED


def test_workers_without_a_process_show_no_level() -> None:
    async def work() -> None:
        pass

    assert ProcessWorker("app", "true").state().contain is None
    assert TaskWorker("task", work).state().contain is None


# -- features that this machine lacks -----------------------------------------------------------------------------


def no_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refused)


def no_cgroup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "own_cgroup", lambda: None)


def no_room_for_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "own_cgroup", lambda: Path("/proc"))


def no_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object, **_: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(str(args), 1, stderr=b"unshare failed: Operation not permitted\n")

    monkeypatch.setattr(containment, "pidns_check", PidnsCheck())
    monkeypatch.setattr(subprocess, "run", refused)


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")


def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)


@pytest.mark.parametrize(
    ("lack", "contain", "message"),
    [
        (no_pidfd, "guard", "a guard needs pidfds, which are refused here .Function not implemented."),
        (elsewhere, "guard", "which darwin does not have"),
        (frozen, "cgroup", "has no interpreter to run it"),
        (no_cgroup, "cgroup", "this system has no version 2 cgroups"),
        (
            no_room_for_cgroups,
            "cgroup",
            "cannot create a cgroup in /proc .*; run it as root, or with Delegate=yes",
        ),
        (no_namespace, "pidns", "`unshare` is not permitted here .unshare failed: Operation not permitted."),
    ],
)
async def test_an_unavailable_level_fails_the_start(
    monkeypatch: pytest.MonkeyPatch, lack: Callable[[pytest.MonkeyPatch], None], contain: str, message: str
) -> None:
    lack(monkeypatch)
    worker = ProcessWorker("app", "sleep", "1000", contain=contain)
    with pytest.raises(WorkerFailed, match=f"contain='{contain}' of 'app' is not available: .*{message}"):
        await worker.start()
    monkeypatch.undo()
    assert (worker.status, worker.state().pid, guard_manager.pid) == ("failed", None, None)


@pytest.mark.parametrize(
    ("lack", "level"), [(no_pidfd, "group"), (frozen, "group"), (no_cgroup, "guard"), (no_room_for_cgroups, "guard")]
)
async def test_auto_uses_the_strongest_available_level(
    monkeypatch: pytest.MonkeyPatch, lack: Callable[[pytest.MonkeyPatch], None], level: str
) -> None:
    lack(monkeypatch)
    async with ProcessWorker("app", "sleep", "1000") as worker:
        assert worker.state().contain == level


# -- cookies ------------------------------------------------------------------------------------------------------


def test_a_cookie_has_128_random_bits_and_a_number() -> None:
    first, second = new_cookie(), new_cookie()
    assert re.fullmatch(r"[0-9a-f]{32}:[0-9]+", first)
    assert first != second
    assert first.split(":")[0] == second.split(":")[0] == runtime_id()


def test_a_worker_of_a_worker_carries_both_cookies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COOKIE, "outer:1")
    assert with_cookie({"A": "b", COOKIE: "what a user gave"}, "inner:2") == {
        "A": "b",
        COOKIE: "outer:1,inner:2",
    }
    assert without_cookies({"A": "b", COOKIE: "outer:1"}) == {"A": "b"}


def test_a_copy_made_by_fork_has_another_runtime() -> None:
    here, there = os.pipe()
    ours = runtime_id()
    if not (pid := os.fork()):
        os.write(there, runtime_id().encode())
        os._exit(0)
    os.waitpid(pid, 0)
    theirs = os.read(here, 100).decode()
    os.close(here)
    os.close(there)
    assert len(theirs) == 32
    assert theirs != ours == runtime_id()


MINE = "0123456789abcdef0123456789abcdef:7"


@contextmanager
def executed(env: dict[str, str]) -> Iterator[int]:
    """Yield a process with ``env`` that has printed output. Without output, its environment might not be set yet."""
    pipe = subprocess.PIPE
    with subprocess.Popen(["/bin/cat"], env=env, stdin=pipe, stdout=pipe, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"!")
        assert process.stdout.read(1) == b"!"
        yield process.pid


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ({COOKIE: MINE}, True),
        ({COOKIE: f"other:1,{MINE}"}, True),
        ({COOKIE: MINE + "0"}, False),
        ({COOKIE: MINE[1:]}, False),
        ({COOKIE: MINE + " "}, False),
        ({COOKIE: MINE.upper()}, False),
        ({COOKIE: ""}, False),
        ({"MY_" + COOKIE: MINE}, False),
        ({"NOTE": f"{COOKIE}={MINE}"}, False),
        ({COOKIE + "S": MINE}, False),
        ({}, False),
    ],
)
def test_a_cookie_is_compared_whole(env: dict[str, str], found: bool) -> None:
    with executed(env) as pid:
        holders = CookieScan({MINE.encode()}.__contains__)
        assert [pid for pid, _ in holders()] == [pid] * found


def test_a_process_of_another_user_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.geteuid()
    with executed({COOKIE: MINE}):
        monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
        found = list(CookieScan({MINE.encode()}.__contains__)())
        monkeypatch.undo()
    assert found == []


def test_a_process_that_reused_a_pid_is_not_killed() -> None:
    """The pid is the same, but the process has a different start time."""
    process = subprocess.Popen(["/bin/sleep", "1000"])
    try:
        stranger = read_process(process.pid)
        assert stranger is not None
        old = iter([[(process.pid, stranger.start_time - 1)]])
        assert kill_found(lambda: next(old, [])) == 0
        assert process.poll() is None
        new = iter([[stranger.identity]])
        assert kill_found(lambda: next(new, [])) == 1
    finally:
        process.kill()
        process.wait()


def test_a_sweep_never_ends_ourselves() -> None:
    us = read_process(os.getpid())
    assert us is not None
    assert kill_found(lambda: [us.identity], limit=0.05) == 0


@pytest.mark.parametrize("runtime", ["", "0", "g" * 32, "0" * 31, "0" * 33])
def test_the_guard_refuses_a_weak_cookie(runtime: str) -> None:
    program = Path(guard_main.__file__)
    ended = subprocess.run(
        [sys.executable, "-I", "-S", program, runtime, "1", "3", "4"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 1
    assert b"could match other processes" in ended.stderr


def test_a_process_name_with_parentheses_is_parsed() -> None:
    stat = b"7 (a) R (b)) S 5 6 6 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0"
    process = Process(7, stat)
    assert (process.state, process.parent, process.group, process.identity) == (b"S", 5, 6, (7, 4711))

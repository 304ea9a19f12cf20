"""How a worker process starts and exits: failures are reported, and nothing outlives the parent."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from lifecycle.errors import RemoteError, WorkerFailed
from lifecycle.workers import Status
from lifecycle.workers.pool.connection import ConnectionClosed
from tests.realtime.pool.workers import LIMIT, connect, outcome, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.realtime.pool.workers import Spawn

# A task in the fixture manages and stops the worker.
pytestmark = pytest.mark.keeps_tasks

SERVED = "tests.realtime.pool.worker_targets"


async def test_a_worker_greets_and_becomes_ready(spawn: Spawn) -> None:
    worker = await spawn(f"{SERVED}:Plain", 1)
    await worker.connection.ready()
    await worker.connection.ready()
    assert await worker.result("echo", 1) == 1


@pytest.mark.parametrize(
    ("target", "init", "type_", "message"),
    [
        ("Broken", ["no model there"], "OSError", "no model there"),
        ("Broken", [], "TypeError", "Broken.__init__() missing 1 required positional argument: 'message'"),
        ("echo", [1], "TypeError", f"init=[1] was given, but '{SERVED}:echo' is a function; init is only for classes"),
        ("not_callable", [], "TypeError", f"target='{SERVED}:not_callable' is 42, which cannot be called"),
        ("nothing", [], "AttributeError", f"module '{SERVED}' has no attribute 'nothing'"),
    ],
)
async def test_a_target_that_fails_reports_why_and_its_worker_ends(
    spawn: Spawn, target: str, init: list[object], type_: str, message: str
) -> None:
    worker = await spawn(f"{SERVED}:{target}", *init)
    with pytest.raises(RemoteError) as failed:
        await worker.connection.ready()
    assert (failed.value.type, failed.value.message) == (type_, message)
    assert (await worker.end()).exit_code == 1
    assert not worker.broken


async def test_a_missing_module_is_named(spawn: Spawn) -> None:
    worker = await spawn("no_such_module_at_all:f")
    with pytest.raises(RemoteError, match="ModuleNotFoundError: No module named 'no_such_module_at_all'"):
        await worker.connection.ready()


async def test_init_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(TypeError, match="type object without altering it; use only numbers"):
        connect(f"{SERVED}:Plain", object(), codec="msgpack")


async def test_modules_next_to_the_program_are_not_imported_by_mistake(tmp_path: Path) -> None:
    """The package has a module ``codecs``, and the directory may contain modules of any name."""
    for name in ("codecs", "signal", "msgspec", "lifecycle"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    worker = connect(f"{SERVED}:echo", codec="msgpack", cwd=tmp_path)
    await worker.process.start()
    async with asyncio.timeout(LIMIT):
        await worker.connection.ready()
        assert await worker.result("echo", 1) == 1
        await worker.process.stop()


async def test_a_worker_with_threads_exits_by_itself_if_its_target_does_not_import_threading(
    spawn: Spawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Python 3.13, `threading` treats the thread that imports it as the main thread and waits for it at exit."""
    (tmp_path / "without_threading.py").write_text(
        "import _thread\n"
        "MAIN = _thread.get_ident()\n"
        "def is_main_right():\n"
        "    import threading\n"
        "    return threading.main_thread().ident == MAIN\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    worker = await spawn("without_threading:is_main_right", concurrency=2)
    async with asyncio.timeout(LIMIT):
        await worker.connection.ready()
    assert await worker.result("is_main_right") is True
    worker.connection.bye(0.5)
    assert (await worker.end()).exit_code == 0


async def test_bye_lets_the_running_call_finish(up: Spawn) -> None:
    worker = await up("Plain")
    request = worker.call("sleep", "", 0.05)
    worker.connection.bye(LIMIT)
    worker.connection.bye(LIMIT)
    assert await outcome(request) is None
    end = await worker.end()
    assert (end.status, end.exit_code) == (Status.FINISHED, 0)


@pytest.mark.parametrize(("served", "concurrency", "function"), [("Plain", 1, "sleep"), ("Loop", 2, "sleep")])
async def test_bye_cancels_calls_that_do_not_finish_in_time(
    up: Spawn, tmp_path: Path, served: str, concurrency: int, function: str
) -> None:
    worker = await up(served, concurrency=concurrency)
    request = worker.call(function, str(tmp_path / "started"))
    await until(tmp_path / "started")
    worker.connection.bye(0.05)
    # The parent has not cancelled the call, so the call fails because its connection is closed.
    assert isinstance(await outcome(request), ConnectionClosed)
    await worker.end()
    assert not worker.broken


@pytest.mark.parametrize(("served", "concurrency"), [("Plain", 1), ("Plain", 4), ("Loop", 4)])
async def test_a_stop_cancels_calls_and_the_worker_dies_of_the_signal(
    up: Spawn, tmp_path: Path, served: str, concurrency: int
) -> None:
    worker = await up(served, concurrency=concurrency)
    request = worker.call("spin", str(tmp_path / "started"))
    await until(tmp_path / "started")
    await worker.process.stop(LIMIT)
    end = await worker.end()
    assert (end.status, end.signal) == (Status.STOPPED, signal.SIGTERM)
    assert isinstance(await outcome(request), ConnectionClosed)
    assert not worker.broken


async def test_a_stop_ends_a_worker_that_is_idle_or_not_ready(spawn: Spawn, up: Spawn, tmp_path: Path) -> None:
    slow = await spawn(f"{SERVED}:Slow", str(tmp_path / "started"))
    await until(tmp_path / "started")
    for worker in (slow, await up("Plain")):
        await worker.process.stop(LIMIT)
        assert (await worker.end()).status is Status.STOPPED
    with pytest.raises(ConnectionClosed):
        await slow.connection.ready()


async def test_a_worker_that_dies_during_a_call_fails_it(up: Spawn) -> None:
    worker = await up("Plain")
    request = worker.call("die", int(signal.SIGKILL))
    assert isinstance(await outcome(request), ConnectionClosed)
    end = await worker.end()
    assert end.signal == signal.SIGKILL
    assert isinstance(end.error, WorkerFailed)
    assert isinstance(await worker.result("echo", 1), ConnectionClosed)
    with pytest.raises(ConnectionClosed):
        await worker.connection.ping()
    assert not worker.broken


async def test_a_worker_that_crashes_dumps_its_stacks(up: Spawn) -> None:
    worker = await up("Plain")
    assert isinstance(await worker.result("die", int(signal.SIGSEGV)), ConnectionClosed)
    end = await worker.end()
    assert end.signal == signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in end.stderr
    assert "in die" in end.stderr


async def test_a_forked_process_neither_hides_nor_survives_the_end_of_its_worker(up: Spawn) -> None:
    """The forked process leaves the process group, but still has the pipes open."""
    worker = await up("Plain")
    forked = psutil.Process(await worker.result("fork"))
    request = worker.call("die", int(signal.SIGKILL))
    assert isinstance(await outcome(request), ConnectionClosed)
    await worker.end()
    async with asyncio.timeout(LIMIT):
        while forked.is_running() and forked.status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.001)


PARENT = """
import asyncio, math, sys
from tests.realtime.pool.workers import connect, spec_of

async def main():
    worker = connect("tests.realtime.pool.worker_targets:Plain", codec="msgpack")
    await worker.process.start()
    await worker.connection.ready()
    forked = await worker.connection.call(spec_of("fork", deadline=math.inf)).future
    if sys.argv[1]:
        worker.connection.call(spec_of(sys.argv[1], sys.argv[2], deadline=math.inf))
    print(worker.process.state().pid, forked, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.parametrize("function", ["", "spin", "sleep"])
async def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path, function: str) -> None:
    """The worker may be idle or busy, and there is no guard process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, function, str(tmp_path / "started"), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT):
        pids = [int(word) for word in (await process.stdout.readline()).split()]
        workers = [psutil.Process(pid) for pid in pids]
        if function:
            await until(tmp_path / "started")
        process.kill()
        await process.wait()
        while any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in workers):
            await asyncio.sleep(0.001)

"""A supervisor of real processes: exits, inherited descriptors, and programs from the specification."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import psutil
import pytest

from lifecycle import Router, StatusEvent
from lifecycle.errors import WorkerFailed
from lifecycle.workers import Backoff, Gate, Spec, Status, Supervisor, TaskWorker, ThreadWorker, handover
from tests import programs
from tests.waiting import until

if TYPE_CHECKING:
    import threading
    from pathlib import Path

LIMIT = 20.0
SOON = Backoff(initial=0.01)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


async def gone_through(supervisor: Supervisor, name: str, *statuses: str) -> None:
    """Wait until the child ``name`` has passed through ``statuses`` in this order."""
    left = list(statuses)
    async with asyncio.timeout(LIMIT):
        async for event in supervisor.watch():
            if event.component == name and event.new == left[0]:
                left.pop(0)
                if not left:
                    return


def pid_of(supervisor: Supervisor, name: str) -> int:
    pid = {child.name: child.pid for child in supervisor.workers()}[name]
    assert pid is not None
    return pid


async def test_a_killed_process_is_restarted_with_its_previous_exit(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    code = f"""
        import os, pathlib, time
        with open({str(notes)!r}, "a") as file:
            print(os.environ["LIFECYCLE_PREV_EXIT"], os.environ["LIFECYCLE_ATTEMPT"],
                  os.environ["LIFECYCLE_RESUME_ID"], file=file, flush=True)
        if os.environ["LIFECYCLE_ATTEMPT"] == "2":
            raise SystemExit(3)
        time.sleep(1000)
    """
    async with Supervisor("s", Spec("app", python(code), backoff=SOON)) as supervisor:
        await until(lambda: notes.exists() and notes.read_text().endswith("\n"))
        third = asyncio.create_task(gone_through(supervisor, "app", "failed", "running", "failed", "running"))
        await asyncio.sleep(0)
        os.kill(pid_of(supervisor, "app"), signal.SIGKILL)
        await third
        await until(lambda: notes.read_text().count("\n") >= 3)
        assert supervisor.workers()[0].restarts == 2
    lines = [line.split() for line in notes.read_text().splitlines()]
    assert [(prev, attempt) for prev, attempt, _ in lines] == [("0", "1"), ("-9", "2"), ("3", "3")]
    assert len({resume_id for _, _, resume_id in lines}) == 1


async def test_a_thread_gets_its_previous_exit_from_handover() -> None:
    notes: list[tuple[str, int, int]] = []

    def work(stop: threading.Event) -> None:
        life = handover()
        notes.append((life.resume_id, life.prev_exit, life.attempt))
        if life.attempt < 3:
            raise ValueError(life.attempt)
        stop.wait()

    async with Supervisor("s", Spec("t", lambda: ThreadWorker("t", work), backoff=SOON)):
        async with asyncio.timeout(LIMIT):
            while len(notes) < 3:
                await asyncio.sleep(0.001)
    assert [(prev_exit, attempt) for _, prev_exit, attempt in notes] == [(0, 1), (-1, 2), (-1, 3)]
    assert len({resume_id for resume_id, _, _ in notes}) == 1


async def test_an_error_at_the_start_gives_the_reason(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("echo hello")
    for command, notes in (
        (["no-such-program-anywhere"], "was not found on PATH"),
        ([str(tmp_path / "script")], "is not executable"),
    ):
        supervisor = Supervisor("s", Spec("app", ["sleep", "1000"]), Spec("bad", command))
        with pytest.raises(WorkerFailed, match=f"its child 'bad' cannot: .*{notes}"):
            await supervisor.start()
        assert supervisor.workers()[0].status is Status.STOPPED


async def test_a_flooding_process_that_ignores_signals_is_stopped_on_time(tmp_path: Path) -> None:
    deaf = tmp_path / "deaf"
    flood = python(f"""
        import os, signal, sys
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open({str(deaf)!r}, "w").close()
        while True:
            os.write(1, b"x" * 65536 + b"\\n")
    """)
    frozen = python("""
        import os, signal
        os.kill(os.getpid(), signal.SIGSTOP)
    """)
    specs = [Spec("flood", flood, stop_timeout=0.2), Spec("frozen", frozen, stop_timeout=5)]
    async with Supervisor("s", *specs) as supervisor:
        pids = [pid_of(supervisor, "flood"), pid_of(supervisor, "frozen")]
        await until(lambda: psutil.Process(pids[1]).status() == psutil.STATUS_STOPPED and deaf.exists())
    assert [str(child.status) for child in supervisor.workers()] == ["killed", "stopped"]
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_a_mixed_tree_can_be_suspended_and_resumed() -> None:
    count = 0

    async def counting(gate: Gate) -> None:
        nonlocal count
        while True:
            await gate.checkpoint()
            await asyncio.sleep(0.001)
            count += 1

    def thread(stop: threading.Event) -> None:
        stop.wait()

    specs = [Spec("sleep", ["sleep", "1000"]), Spec("count", counting), Spec("t", lambda: ThreadWorker("t", thread))]
    async with Supervisor("s", *specs) as supervisor:
        await supervisor.suspend()
        assert [str(child.status) for child in supervisor.workers()] == ["suspended", "suspended", "running"]
        await until(lambda: psutil.Process(pid_of(supervisor, "sleep")).status() == psutil.STATUS_STOPPED)
        held = count
        await asyncio.sleep(0.05)
        assert count == held
        await supervisor.resume()
        await until(lambda: count != held)


async def test_status_changes_reach_a_router_as_events() -> None:
    seen: list[tuple[str, str]] = []
    supervisor, router = Supervisor("s", Spec("app", ["sleep", "1000"], backoff=SOON)), Router()
    router.add_source(supervisor.watch)

    @router.on(StatusEvent)
    async def see(event: StatusEvent) -> None:
        seen.append((event.topic, str(event.new)))
        if seen.count(("status/app", "running")) == 2:
            router.stop()

    async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as group:
        group.create_task(router.run())
        await until(lambda: router.state().running)
        await asyncio.sleep(0.01)
        async with supervisor:
            os.kill(pid_of(supervisor, "app"), signal.SIGKILL)
            await group.create_task(gone_through(supervisor, "app", "running"))
    notes = [new for topic, new in seen if topic == "status/app"]
    assert notes[:5] == ["starting", "running", "failed", "pending", "starting"]


def run_program(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(python(code), capture_output=True, text=True, timeout=LIMIT, check=False)


def test_a_supervisor_is_a_main_and_its_exhaustion_the_error_of_the_program() -> None:
    ran = run_program("""
        from lifecycle import Backoff, Intensity, Spec, Supervisor, run

        async def crash():
            raise ValueError("boom")

        run(Supervisor("app", Spec("a", crash, backoff=Backoff(initial=0)), intensity=Intensity(2, 5)))
    """)
    assert ran.returncode == 1
    assert "RestartLimitReached: 'app' gave up after more than 2 restarts within 5 s" in ran.stderr
    assert "ValueError: boom" in ran.stderr


def test_the_fourth_program_of_the_front_page() -> None:
    ran = run_program("""
        import asyncio
        from lifecycle import Gate, TaskWorker, run

        steps = 0

        async def count(gate: Gate) -> None:
            global steps
            while True:
                await gate.checkpoint()
                steps += 1

        async def main():
            async with TaskWorker("counter", count) as counter:
                await counter.suspend()
                held = steps
                await asyncio.sleep(0.05)
                print(steps == held)
                await counter.resume()
                await asyncio.sleep(0.05)
                print(steps > held)

        run(main)
    """)
    assert (ran.stdout, ran.returncode) == ("True\nTrue\n", 0)


async def test_the_fifth_program_of_the_front_page(free_port: int) -> None:
    server = python(f"""
        import socket, time
        time.sleep(0.2)
        with socket.create_server(("127.0.0.1", {free_port})) as server:
            while True:
                server.accept()[0].close()
    """)
    answered: list[bool] = []

    async def serve() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", free_port)
        writer.close()
        await writer.wait_closed()
        answered.append(True)
        await asyncio.Event().wait()

    app = Supervisor(
        "app",
        Spec("db", server, ready=f"port:{free_port}", backoff=SOON),
        Spec("api", serve, restart="on_failure"),
        strategy="rest_for_one",
    )
    async with app:
        await until(lambda: answered)
        again = asyncio.create_task(gone_through(app, "api", "running"))
        await asyncio.sleep(0)
        os.kill(pid_of(app, "db"), signal.SIGKILL)
        await again
    assert isinstance(app["api"], TaskWorker)


@pytest.fixture
def free_port() -> int:
    return programs.free_port()

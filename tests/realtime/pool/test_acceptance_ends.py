"""Stopping a pool, leftover processes, and a pool among other workers: P22, P23, P25 and P28 of the acceptance list."""

from __future__ import annotations

import asyncio
import os
import signal
import textwrap
from typing import TYPE_CHECKING

import pytest

from lifecycle.backoff import Intensity
from lifecycle.errors import InvalidTransition, PoolClosed, WorkerFailed, WorkerLost
from lifecycle.observe import mermaid
from lifecycle.workers import Spec, Status, Supervisor
from lifecycle.workers.pool import Phase, Pool, Process
from tests.programs import Running
from tests.realtime.pool.pools import gone, kill, pids, pool_of, ready, started
from tests.realtime.pool.workers import LIMIT
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


async def test_p22_a_stop_ends_running_calls_after_their_grace_period() -> None:
    pool = pool_of()
    await pool.start()
    (pid,) = pids(pool)
    call = asyncio.create_task(pool.call("sleep"))
    await until(lambda: pool.stats().busy == 1)
    await pool.stop(0.2)
    with pytest.raises(PoolClosed):
        await call
    assert gone(pid)
    assert pool.status is Status.KILLED
    assert pool.members() == ()


async def test_a_stop_lets_running_calls_finish_and_refuses_waiting_ones(tmp_path: Path) -> None:
    pool = pool_of()
    await pool.start()
    running = asyncio.create_task(pool.call("wait_for", str(tmp_path / "started"), str(tmp_path / "release")))
    await started(tmp_path / "started")
    waiting = asyncio.create_task(pool.call("pid"))
    await until(lambda: pool.stats().queued == 1)
    stopping = asyncio.create_task(pool.stop(LIMIT))
    with pytest.raises(PoolClosed):
        await waiting
    with pytest.raises(PoolClosed):
        await pool.call("pid")
    (tmp_path / "release").touch()
    pid = await running
    await stopping
    assert gone(pid)
    assert (pool.status, (await pool.wait()).error) == (Status.STOPPED, None)


async def test_a_call_whose_worker_dies_during_the_stop_reports_how(tmp_path: Path) -> None:
    pool = pool_of()
    await pool.start()
    call = asyncio.create_task(pool.call("wait_for", str(tmp_path / "started"), str(tmp_path / "release")))
    await started(tmp_path / "started")
    (pid,) = pids(pool)
    stopping = asyncio.create_task(pool.stop(LIMIT))
    await until(lambda: pool.status is Status.STOPPING)
    kill(pid, signal.SIGKILL)
    with pytest.raises(PoolClosed) as caught:
        await call
    lost = caught.value.__cause__
    assert isinstance(lost, WorkerLost)
    assert (lost.signal, "while running 'wait_for'" in str(lost)) == (signal.SIGKILL, True)
    await stopping


async def test_workers_run_their_cleanup_when_they_are_stopped(tmp_path: Path) -> None:
    async with pool_of() as pool:
        await pool.call("at_exit", str(tmp_path / "cleaned"))
        (worker,) = pool.members()
    assert (tmp_path / "cleaned").exists()
    assert (worker.status, worker.history[0].reason) == (Status.STOPPED, "exited")


async def test_p23_a_stop_is_legal_at_any_time(tmp_path: Path) -> None:
    never = pool_of()
    await never.stop()
    assert never.status is Status.STOPPED

    twice = pool_of()
    await twice.start()
    seen = pids(twice)
    await asyncio.gather(twice.stop(), twice.stop())
    await twice.stop()
    assert all(map(gone, seen))

    opening = pool_of("Waits", init=[str(tmp_path / "never")])
    start = asyncio.create_task(opening.start())
    await until(lambda: [pid for pid in pids(opening) if pid])
    seen = pids(opening)
    await opening.stop()
    with pytest.raises(WorkerFailed, match="was stopped while starting"):
        await start
    assert all(map(gone, seen))

    growing = pool_of("Waits", size=(0, 2), init=[str(tmp_path / "never")])
    await growing.start()
    call = asyncio.create_task(growing.call("pid"))
    await until(lambda: [pid for pid in pids(growing) if pid])
    seen = pids(growing)
    await growing.stop()
    with pytest.raises(PoolClosed):
        await call
    assert all(map(gone, seen))


@pytest.mark.parametrize("turns", range(0, 40, 8))
async def test_p23_a_stop_at_any_step_of_the_start_leaves_nothing(turns: int) -> None:
    pool = pool_of(size=(2, 2))
    start = asyncio.create_task(pool.start())
    for _ in range(turns):
        await asyncio.sleep(0)
    await pool.stop()
    with pytest.raises((WorkerFailed, InvalidTransition)):
        await start
    assert pool.members() == ()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[[str], Running]]:
    """Return a function that starts a program with this body after a common header."""
    running: list[Running] = []

    def start(body: str) -> Running:
        source = tmp_path / "program.py"
        source.write_text(PROGRAM + textwrap.dedent(body))
        running.append(Running("-X", "dev", str(source), env={"PYTHONPATH": os.getcwd()}))  # noqa: PTH109
        return running[-1]

    yield start
    for each in running:
        each.close()


PROGRAM = """
import asyncio, gc, signal, sys
from lifecycle.workers.pool import Pool, Process
target = "tests.realtime.pool.pool_targets:Desk"
"""


def pids_in(text: str) -> list[int]:
    (line,) = [line for line in text.splitlines() if line.startswith("pids ")]
    return [int(each) for each in line.split()[1:]]


async def test_p25_nothing_outlives_a_program_that_is_killed(program: Callable[[str], Running]) -> None:
    app = program("""
    async def main():
        async with Pool("pool", target, size=(3, 3)) as pool:
            calls = [asyncio.ensure_future(pool.call("sleep")) for _ in range(2)]
            while pool.stats().busy < 2:
                await asyncio.sleep(0.01)
            print("pids", *(worker.pid for worker in pool.members()), flush=True)
            await asyncio.gather(*calls)
    asyncio.run(main())
    """)
    app.until("pids ")
    app.until("\n")
    workers = pids_in(app.text)
    assert len(workers) == 3
    app.process.kill()
    await until(lambda: all(map(gone, workers)))


@pytest.mark.parametrize("how", ["loop.close()", "asyncio.run"])
async def test_p28_a_loop_closed_over_a_pool_leaves_a_warning_and_no_process(
    program: Callable[[str], Running], how: str
) -> None:
    app = program(f"""
    async def main():
        pool = Pool("pool", target, size=(2, 2))
        await pool.start()
        print("pids", *(worker.pid for worker in pool.members()), flush=True)
        return pool
    if {how!r} == "asyncio.run":
        pool = asyncio.run(main())
    else:
        loop = asyncio.new_event_loop()
        pool = loop.run_until_complete(main())
        loop.close()
    del pool
    gc.collect()
    print("collected", flush=True)
    sys.stdin.read()
    signal.pause()
    """)
    app.until("pids ")
    app.until("collected")
    workers = pids_in(app.text)
    # The workers exit while the program keeps running.
    await until(lambda: all(map(gone, workers)))
    assert app.process.poll() is None
    assert "ResourceWarning: <Pool 'pool'" in app.text
    assert "was not stopped before its loop" in app.text


async def test_a_suspended_pool_lets_running_calls_finish_and_others_wait(tmp_path: Path) -> None:
    async with pool_of() as pool:
        running = asyncio.create_task(pool.call("wait_for", str(tmp_path / "started"), str(tmp_path / "release")))
        await started(tmp_path / "started")
        await pool.suspend()
        await pool.suspend()
        assert pool.status is Status.SUSPENDED
        waiting = asyncio.create_task(pool.call("pid"))
        await until(lambda: pool.stats().queued == 1)
        (tmp_path / "release").touch()
        pid = await running
        # The suspended pool's worker keeps running, but receives no calls.
        assert pool.members()[0].phase is Phase.READY
        with pytest.raises(TimeoutError, match="queued"):
            await pool.call("pid", deadline=0.05)
        assert not waiting.done()
        await pool.resume()
        await pool.resume()
        assert await waiting == pid


async def test_a_pool_that_does_not_run_cannot_be_suspended() -> None:
    pool = pool_of()
    with pytest.raises(InvalidTransition):
        await pool.suspend()
    await pool.start()
    await pool.suspend()
    await pool.stop()
    assert (await pool.wait()).status is Status.STOPPED


async def test_a_worker_cannot_be_suspended_alone() -> None:
    async with pool_of() as pool:
        with pytest.raises(InvalidTransition, match="suspend its pool"):
            await pool.members()[0].suspend()
        assert await pool.call("echo", 1) == 1


async def test_a_worker_stopped_from_outside_is_replaced() -> None:
    async with pool_of(intensity=Intensity(0, 30.0)) as pool:
        (worker,) = pool.members()
        await worker.stop()
        assert await pool.call("pid") != worker.pid


async def test_a_supervisor_starts_a_pool_again_that_has_failed() -> None:
    made: list[Pool] = []

    def make() -> Pool:
        made.append(pool_of(intensity=Intensity(0, 30.0)))
        return made[-1]

    async with Supervisor("app", Spec("pool", make, restart="always")) as supervisor:
        assert await made[0].call("echo", 1) == 1
        kill(made[0].members()[0].pid, signal.SIGKILL)
        await until(lambda: len(made) == 2 and made[1].status is Status.RUNNING)
        assert await made[1].call("echo", 2) == 2
        await supervisor.suspend()
        assert made[1].status is Status.SUSPENDED
        await supervisor.resume()
        (child,) = supervisor.workers()
        assert (child.kind, child.restarts) == ("pool", 1)
    assert made[0].status is Status.FAILED
    assert (await made[1].wait()).status is Status.STOPPED


@pytest.mark.usefixtures("every_loop")
async def test_a_pool_can_be_run_as_a_program(program: Callable[[str], Running]) -> None:
    app = program("""
    import lifecycle
    pool = Pool("pool", target, size=(1, 1))
    async def main():
        return await pool.call("times", 42)
    print("came to", lifecycle.run(pool, main), pool.status)
    """)
    assert "came to 42 stopped" in app.rest()


async def test_the_state_of_a_pool_contains_its_workers(tmp_path: Path) -> None:
    async with pool_of(size=(2, 2)) as pool:
        call = asyncio.create_task(pool.call("wait_for", str(tmp_path / "started"), str(tmp_path / "release")))
        await started(tmp_path / "started")
        state = pool.state()
        assert (state.kind, state.status) == ("pool", Status.RUNNING)
        assert [(child.name, child.kind) for child in state.children] == [("pool-1", "member"), ("pool-2", "member")]
        assert sorted(child.health.message for child in state.children if child.health) == ["busy", "ready"]
        assert all(child.pid and child.contain == "group" for child in state.children)
        picture = mermaid.tree(state)
        assert "pool-1" in picture
        assert "pool-2" in picture
        probe = await pool.probe()
        assert (probe.healthy, probe.message) == (True, "1 idle, 1 busy, 0 starting, 0 degraded")
        (tmp_path / "release").touch()
        await call
    assert not (await pool.probe()).healthy


async def test_workers_get_the_environment_of_their_pool(tmp_path: Path) -> None:
    process = Process(env={"FLAVOUR": "sweet"}, cwd=tmp_path, contain="group", threads=3)
    pool = pool_of(process=process)
    pool.set_env("LIFECYCLE_RESUME_ID", "1234")
    async with pool:
        assert await pool.call("os:getenv", "FLAVOUR") == "sweet"
        assert await pool.call("os:getenv", "OMP_NUM_THREADS") == "3"
        assert await pool.call("os:getenv", "LIFECYCLE_RESUME_ID") == "1234"
        assert await pool.call("os:getcwd") == str(tmp_path)


async def test_a_pool_is_full_when_it_has_started() -> None:
    async with pool_of(size=(3, 5)) as pool:
        assert ready(pool) == 3
        stats = pool.stats()
        assert (stats.size, stats.idle, stats.starting, stats.saturation) == (3, 3, 0, 0.0)


async def test_a_worker_that_fails_again_is_logged_as_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    target = "tests.realtime.pool.worker_targets:Broken"
    pool = Pool("pool", target, init=("no model",), size=(1, 1), intensity=Intensity(2, 60))
    with pytest.raises(WorkerFailed):
        await pool.start()
    again = [record for record in caplog.records if "times in a row" in record.message]
    assert [record.levelname for record in again] == ["WARNING"]
    assert again[0].message.startswith("'pool' failed 2 times in a row: ")

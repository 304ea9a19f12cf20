"""Process restarts: the guard keeps running, and processes that left the group early are killed with the worker."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from pathlib import Path

from lifecycle.workers import Backoff, ProcessWorker, Spec, Supervisor
from lifecycle.workers.containment.guard import guard_manager

LIMIT = 20.0

#: First starts a daemon that keeps its environment and prints its PID.
EARLY = """
import os, time
if not os.fork():
    os.setsid()
    if not os.fork():
        print(os.getpid(), flush=True)
        time.sleep(1000)
    os._exit(0)
os.wait()
time.sleep(1000)
"""


async def test_the_guard_stays_from_one_life_to_the_next_and_goes_with_the_supervisor() -> None:
    spec = Spec("child", ["sleep", "1000"], backoff=Backoff(initial=0))
    async with asyncio.timeout(LIMIT), Supervisor("s", spec) as supervisor:
        guard, watch = guard_manager.pid, supervisor.watch()
        assert guard is not None
        for _ in range(3):
            pid = supervisor.workers()[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            async for event in watch:
                if event.new == "running":
                    break
        assert guard_manager.pid == guard
        assert supervisor.workers()[0].restarts == 3
    assert guard_manager.pid is None


async def test_a_supervisor_without_processes_has_no_guard() -> None:
    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    async with Supervisor("s", Spec("task", forever)):
        assert guard_manager.pid is None


async def test_a_process_forked_before_the_move_into_a_cgroup_is_moved_and_ends_with_its_worker() -> None:
    received: asyncio.Queue[int] = asyncio.Queue()
    worker = ProcessWorker(
        "early", sys.executable, "-I", "-S", "-c", EARLY, output=lambda line, _: received.put_nowait(int(line))
    )
    async with asyncio.timeout(LIMIT), worker:
        daemon = await received.get()
        fd = os.pidfd_open(daemon)
        while worker.state().contain == "cgroup" and "/lifecycle-" not in Path(f"/proc/{daemon}/cgroup").read_text():
            await asyncio.sleep(0.01)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(LIMIT * 1000), "the daemon was not killed in time"
    os.close(fd)

"""Several processes share the limits of a queue, even if some of them are killed."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from lifecycle.flows import Flows
from tests.realtime.flows._limited_worker import limited

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 50.0
JOBS = 60
KILLED = 2


class Line(NamedTuple):
    """A job began or ended in a process."""

    time: float
    ends: bool
    pid: int
    job: str
    customer: str


async def start(path: Path, log: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.realtime.flows._limited_worker", str(path), str(log)
    )


def read(log: Path) -> list[Line]:
    rows = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [Line(float(at), what == "end", int(pid), job, customer) for at, pid, what, job, customer in rows]


def most_at_once(lines: list[Line], kills: dict[int, float]) -> tuple[int, int]:
    """Return the largest numbers of jobs that ran at the same time: of all, and of one customer."""
    left = {(line.pid, line.job): line for line in lines if not line.ends}
    for line in lines:
        if line.ends:
            del left[line.pid, line.job]
    lines = lines + [line._replace(time=kills[line.pid], ends=True) for line in left.values()]
    running: Counter[str] = Counter()
    most = most_of_one = 0
    for line in sorted(lines, key=lambda line: (line.time, not line.ends)):
        running[line.customer] += -1 if line.ends else 1
        most, most_of_one = max(most, running.total()), max(most_of_one, *running.values())
    return most, most_of_one


async def test_processes_share_the_limits_even_if_some_are_killed(tmp_path: Path) -> None:
    path, log, kills = tmp_path / "flows.db", tmp_path / "log", dict[int, float]()
    async with Flows(path) as flows, asyncio.timeout(LIMIT):
        queue = limited(flows)
        jobs = [await queue.enqueue("serve", key=f"{n % 5}", customer=f"{n % 5}") for n in range(JOBS)]
        processes = [await start(path, log) for _ in range(4)]
        try:
            for process in processes[:KILLED]:
                # A process is killed while it runs a job.
                before = len(read(log))
                while not any(line.pid == process.pid and not line.ends for line in read(log)[before:]):
                    await asyncio.sleep(0.001)
                kills[process.pid] = time.monotonic()
                process.kill()
            assert {await job for job in jobs} == {"SUCCESS"}
        finally:
            for process in processes:
                if process.returncode is None:
                    process.kill()
                await process.wait()
    lines = read(log)
    assert {line.job for line in lines if line.ends} == {job.id for job in jobs}
    assert most_at_once(lines, kills) == (3, 1)

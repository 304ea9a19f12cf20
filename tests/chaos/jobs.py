"""Workers that are killed and stopped repeatedly.

Jobs are enqueued in one file, and four processes work on them. At random moments, a process is killed with SIGKILL and
replaced, or stopped with SIGSTOP for longer than its lease and then continued. At the end, every job must have been
completed once, and no process may have written to a flow after a different process had claimed it. With the store
``postgres``, the jobs are stored on a server, and the storm also kills that server or cuts its connections.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from lifecycle.flows import Flows, JobQueue, JobState, Priority
from tests.chaos._databases import database
from tests.chaos._worker import LEASE, STEPS
from tests.chaos.report import Report

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from tests.chaos._databases import File, OnServer

__all__ = ["storm"]

ROOT = Path(__file__).parents[2]

WORKERS = 4
#: The maximum number of incomplete jobs.
BACKLOG = 40
#: The time limit, in seconds, for completing the remaining jobs after the kills.
LIMIT = 90.0
#: The minimum number of kills.
KILLS = 2


class Storm:
    """The task that enqueues jobs, the workers, and the task that kills them."""

    def __init__(self, directory: Path, seed: int, database: File | OnServer) -> None:
        self.directory, self.database = directory, database
        self.chance = random.Random(seed)
        self.report = Report()
        # The number of workers that were stopped, and the seconds between each kill of a worker and the next claim of
        # its job.
        self.stops = 0
        self.taken: list[float] = []
        self.ids: list[str] = []
        self.lives = 0
        self.workers: list[tuple[str, Process]] = []
        # Workers that have reported that they are running.
        self.up: set[str] = set()
        # The time when each run was killed.
        self.killed: dict[str, float] = {}

    async def run(self, seconds: float) -> Report:
        async with Flows(self.database.where) as flows:
            queue = JobQueue(flows, max_attempts=10**6)
            enqueuing = asyncio.create_task(self._enqueue(queue))
            try:
                await self._rage(time.monotonic() + seconds)
                enqueuing.cancel()
                await self._calm(queue)
            finally:
                enqueuing.cancel()
                await self._end(signal.SIGKILL)
            await self._judge(queue)
        self.report.notes = f"{self.stops} stops; {self._speed()}"
        return self.report

    async def _enqueue(self, queue: JobQueue) -> None:
        while True:
            for _ in range(BACKLOG - len(await queue.jobs())):
                name, priority = f"job-{len(self.ids)}", self.chance.choice(list(Priority))
                after = self.chance.choice([0.0, 0.0, self.chance.random() * 0.3])
                await queue.enqueue("deploy", id=name, priority=priority, after=after)
                # A cancelled call may have stored nothing, so the job is recorded only after the call.
                self.ids.append(name)
            await asyncio.sleep(0.05)

    # -- the workers --------------------------------------------------------------------------------------------

    async def _start(self) -> tuple[str, Process]:
        self.lives += 1
        life = f"life-{self.lives}"
        argv = [sys.executable, "-m", "tests.chaos._worker", str(self.directory), self.database.where, life]
        with (self.directory / "errors").open("a") as errors:
            process = await asyncio.create_subprocess_exec(
                *argv, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=errors
            )
        return life, process

    async def _rage(self, end: float) -> None:
        self.workers = [await self._start() for _ in range(WORKERS)]
        while time.monotonic() < end or self.report.kills < KILLS:
            victim = self.chance.randrange(WORKERS)
            life, process = self.workers[victim]
            # The other workers are killed while they start.
            if self.chance.random() < 0.9:
                await self._up(life, process)
            await asyncio.sleep(self.chance.random() * 0.4)
            await asyncio.to_thread(self.database.trouble, self.chance)
            if self.chance.random() < 0.2:
                self._stop(process)
            else:
                await self._kill(life, process)
                self.workers[victim] = await self._start()

    async def _up(self, life: str, process: Process) -> None:
        if life in self.up:
            return
        assert process.stdout is not None
        async with asyncio.timeout(LIMIT):
            line = await process.stdout.readline()
        assert line == b"up\n", self._errors()
        self.up.add(life)

    async def _kill(self, life: str, process: Process) -> None:
        self.killed[life] = time.monotonic()
        process.kill()
        await process.wait()
        self.report.kills += 1

    def _stop(self, process: Process) -> None:
        process.send_signal(signal.SIGSTOP)
        self.stops += 1
        pause = LEASE * (1.1 + self.chance.random())
        asyncio.get_running_loop().call_later(pause, _go_on, process)

    async def _calm(self, queue: JobQueue) -> None:
        """Stop the kills. Wait until the remaining jobs are complete and the workers have exited cleanly."""
        for _, process in self.workers:
            _go_on(process)
        for life, process in self.workers:
            await self._up(life, process)
        with suppress(TimeoutError):
            async with asyncio.timeout(LIMIT):
                for each in self.ids:
                    await (await queue.get(each))
        await self._end(signal.SIGTERM)
        codes = [process.returncode for _, process in self.workers]
        assert codes == [0] * WORKERS, (codes, self._errors())

    async def _end(self, signum: int) -> None:
        for _, process in self.workers:
            if process.returncode is None:
                _go_on(process)
                process.send_signal(signum)
            async with asyncio.timeout(LIMIT):
                await process.wait()

    def _errors(self) -> str:
        return (self.directory / "errors").read_text()[-5000:]

    # -- results ------------------------------------------------------------------------------------------------------

    async def _judge(self, queue: JobQueue) -> None:
        self.report.operations = len(self.ids)
        found = {job.id: job for job in await queue.jobs(*JobState)}
        ended, claims = self._read()
        for each in self.ids:
            job = found.get(each)
            if job is None:
                self.report.lost.append(f"the job {each} does not exist")
            elif job.outcome != "SUCCESS":
                self.report.stuck.append(f"the job {each} did not succeed: {job}")
            elif ended[each] > 1 or not self._in_order(each):
                self.report.double.append(f"the job {each} was completed {ended[each]} times, or written out of order")
        for times in claims.values():
            times.sort()
            for (_, life), (then, heir) in pairwise(times):
                if life in self.killed and heir != life and then > self.killed[life]:
                    self.taken.append(then - self.killed[life])

    def _speed(self) -> str:
        """Describe how quickly the jobs of killed workers were claimed again."""
        if not self.taken:
            return "no job was taken over"
        return (
            f"{len(self.taken)} jobs taken over after {median(self.taken) * 1000:.0f} ms (median), at most "
            f"{max(self.taken) * 1000:.0f} ms"
        )

    def _read(self) -> tuple[Counter[str], dict[str, list[tuple[float, str]]]]:
        """Return the number of completions per job, and the time and worker of each claim."""
        ended, claims = Counter[str](), defaultdict[str, list[tuple[float, str]]](list)
        for path in self.directory.glob("life-*.log"):
            for line in path.read_text().splitlines():
                state, job, then = line.split()
                if state == JobState.COMPLETE:
                    ended[job] += 1
                else:
                    claims[job].append((float(then), path.stem))
        return ended, claims

    def _in_order(self, job: str) -> bool:
        """Return whether each task succeeded once, and no claim wrote a result after a later claim had written one."""
        changes = self.database.rows(
            "SELECT seq, kind, new, result FROM lifecycle_flow_changes WHERE flow = %s ORDER BY seq", job
        )
        claims = [result for _, kind, new, result in changes if kind == "task" and new == "SUCCESS"]
        ends = [new for _, kind, new, _ in changes if kind == "flow" and new == "SUCCESS"]
        turns = [claim for place, claim in enumerate(claims) if not place or claim != claims[place - 1]]
        return len(claims) == STEPS and len(ends) == 1 and len(turns) == len(set(turns))


def _go_on(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGCONT)


def storm(seconds: float, seed: int, *, store: str = "sqlite") -> Report:
    with tempfile.TemporaryDirectory() as directory, closing(database(store, Path(directory) / "jobs.db")) as kept:
        report = asyncio.run(Storm(Path(directory), seed, kept).run(seconds))
        report.kills += kept.attacks
        return report

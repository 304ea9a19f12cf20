"""Processes that have the same schedule, and that are killed and stopped repeatedly.

Four processes start a workflow each second. At random moments, mostly near a full second, each of them is killed with
SIGKILL and replaced. Before that, some are stopped with SIGSTOP and continued after up to two seconds. The workflows
are purged soon after they have ended, so their ids do not prevent a second start. At the end, exactly one workflow must
have run for each second. With the store ``postgres``, the storm also kills the server or cuts its connections.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections import defaultdict
from contextlib import asynccontextmanager, closing
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.chaos._databases import database
from tests.chaos.report import Report

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncGenerator

    from tests.chaos._databases import File, OnServer

__all__ = ["storm"]

ROOT = Path(__file__).parents[2]

PROCESSES = 4
#: The time limit, in seconds, for a process to start, and for the last workflows to end after the kills.
LIMIT = 90.0


class Line(NamedTuple):
    """A step that a process has run."""

    at: float
    life: str
    word: str


class Storm:
    """The processes, the tasks that kill them, and the checks."""

    def __init__(self, directory: Path, seed: int, database: File | OnServer) -> None:
        self.directory, self.database = directory, database
        self.chance = random.Random(seed)
        self.report = Report()
        self.lives = 0
        # The time when each process was killed.
        self.killed: dict[str, float] = {}

    async def run(self, seconds: float) -> Report:
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for place in range(PROCESSES):
                group.create_task(self._rage(end, attacks=not place))
        self.report.kills = len(self.killed) + self.database.attacks
        # Processes that start after the last kill continue all workflows that are left.
        async with self._process() as process, self._process():
            await _up(process)
            last = int(time.time()) + 1
            await self._end(last)
        self._judge(last)
        return self.report

    async def _rage(self, end: float, *, attacks: bool) -> None:
        while time.monotonic() < end or not self._read():
            async with self._process() as process:
                # The others are killed while they start.
                if self.chance.random() < 0.9:
                    await _up(process)
                await self._sleep()
                if self.chance.random() < 0.3:
                    await self._stop(process)
                if attacks:
                    await asyncio.to_thread(self.database.trouble, self.chance)

    async def _sleep(self) -> None:
        near = -time.time() % 1 if self.chance.random() < 0.7 else 0.0
        await asyncio.sleep(near + self.chance.random() * 0.2)

    async def _stop(self, process: Process) -> None:
        """Stop the process for a while, and let it continue for another while."""
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self.chance.random() * 2.0)
        process.send_signal(signal.SIGCONT)
        await self._sleep()

    @asynccontextmanager
    async def _process(self) -> AsyncGenerator[Process]:
        """Start a process, and kill it at the end."""
        self.lives += 1
        life = f"{self.lives}"
        argv = [sys.executable, "-m", "tests.chaos._scheduler", str(self.directory), self.database.where, life]
        with (self.directory / "errors").open("a") as errors:
            process = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdout=PIPE, stderr=errors)
        try:
            yield process
            assert process.returncode is None, (self.directory / "errors").read_text()[-5000:]
        finally:
            self.killed[life] = time.time()
            if process.returncode is None:
                process.kill()
            await process.wait()

    # -- results ------------------------------------------------------------------------------------------------------

    def _read(self) -> dict[int, list[Line]]:
        """Return the steps that have run, in order, by the time at which their workflow was due."""
        found: dict[int, list[Line]] = defaultdict(list)
        for path in self.directory.glob("*.log"):
            for line in path.read_text().splitlines():
                flow, word, at = line.split()
                due = datetime.fromisoformat(flow.partition("/")[2])
                found[int(due.timestamp())].append(Line(float(at), path.stem, word))
        return {due: sorted(lines) for due, lines in found.items()}

    async def _end(self, last: int) -> None:
        """Wait until the workflows that are due until ``last`` have ended."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            await asyncio.sleep(0.2)
            ended = {due for due, lines in self._read().items() if "end" in {line.word for line in lines}}
            if ended.issuperset(range(min(ended, default=last), last + 1)):
                return

    def _judge(self, last: int) -> None:
        """Check each second from the first start until ``last``."""
        found = self._read()
        times = range(min(found), last + 1)
        self.report.operations = len(times)
        for due in times:
            lines = found.get(due, [])
            words = [line.word for line in lines]
            if not lines:
                self.report.lost.append(f"no workflow was started for {due}")
            elif "end" not in words:
                self.report.stuck.append(f"the workflow for {due} did not end: {lines}")
            elif lines[0].at < due or not self._is_one(lines):
                self.report.double.append(f"the workflow for {due} was started twice, or too early: {lines}")

    def _is_one(self, lines: list[Line]) -> bool:
        """Return whether the steps are those of one workflow, which continues in another process only after a kill."""
        words = [line.word for line in lines]
        return words == sorted(words) and all(
            line.word != heir.word if line.life == heir.life else self.killed[line.life] < heir.at
            for line, heir in pairwise(lines)
        )


async def _up(process: Process) -> None:
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT):
        await process.stdout.readline()


def storm(seconds: float, seed: int, *, store: str = "sqlite") -> Report:
    with tempfile.TemporaryDirectory() as directory, closing(database(store, Path(directory) / "flows.db")) as kept:
        return asyncio.run(Storm(Path(directory), seed, kept).run(seconds))

"""Flows in a process that is killed repeatedly.

Random flows with reverts, retries and deciders run in a process that is killed with SIGKILL at random moments, even
while it starts. After each kill, a new process continues. At the end, each flow must have the same state and data as it
would have had without kills. No task with a stored success may have run again, and the transition tables must allow
each stored change. With the store ``postgres``, the flows are stored on a server, and the storm also kills that server
or cuts its connections.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lifecycle.flows import Flows
from tests.chaos._databases import database
from tests.chaos.report import Report
from tests.flows.legality import illegal
from tests.flows.numbered_flows import NumberedFlow, left_of

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from lifecycle.flows import Run
    from tests.chaos._databases import File, OnServer

__all__ = ["storm"]

ROOT = Path(__file__).parents[2]

LIMIT = 60.0
_MANY = 100_000

#: The minimum number of kills that interrupt a flow.
_KILLS = 2


class Storm:
    """The runs of a process, and the data collected from them."""

    def __init__(self, directory: Path, seed: int, database: File | OnServer) -> None:
        self.directory, self.database = directory, database
        self.chance = random.Random(seed)
        self.report = Report()
        # The number of kills that happened while a flow was running.
        self.interrupted = 0
        # The process that forks each run. It also prints how the run ended.
        self.runner: Process | None = None
        self.pid = 0
        self.life = 0
        # The keys of tasks whose success is stored, and the position of the next unread effect.
        self.stored: set[str] = set()
        self.read = 0

    async def run(self, seconds: float) -> Report:
        end = time.monotonic() + seconds
        await self._begin()
        try:
            while time.monotonic() < end or self.interrupted < _KILLS:
                await self._live_and_die()
                self._look()
            await self._last_life()
        finally:
            await self._stop()
        self._look()
        await self._compare()
        self.report.notes = f"{self.interrupted} kills interrupted a flow"
        return self.report

    # -- runs ------------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        argv = [sys.executable, "-m", "tests.chaos._flow_runner", str(self.directory), self.database.where]
        with (self.directory / "log").open("a") as log:
            self.runner = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=log)

    async def _stop(self) -> None:
        assert self.runner is not None
        self._kill()
        if self.runner.returncode is None:
            self.runner.kill()
        await self.runner.wait()

    def _kill(self) -> None:
        """Kill this run's process, unless the run has already ended."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def _start(self, last: int = 0) -> None:
        assert self.runner is not None
        assert self.runner.stdin is not None
        self.life += 1
        self.runner.stdin.write(f"{self.life} {last}\n".encode())
        self.pid = int(await self._heard("born"))

    async def _heard(self, word: str) -> str:
        """Return the rest of the next line that begins with ``word``."""
        assert self.runner is not None
        assert self.runner.stdout is not None
        async with asyncio.timeout(LIMIT):
            while line := (await self.runner.stdout.readline()).decode().split():
                if line[0] == word:
                    return line[-1]
                assert line[0] != "ended", self._log()
        raise AssertionError(self._log())

    async def _live_and_die(self) -> None:
        await self._start()
        if self.chance.random() < 0.1:
            await asyncio.sleep(self.chance.random() * 0.02)
        else:
            await self._heard("up")
            await asyncio.sleep(self.chance.random() ** 2 * 0.6)
            if await asyncio.to_thread(self.database.trouble, self.chance):
                await asyncio.sleep(self.chance.random() * 0.6)
        self._kill()
        status = await self._heard("ended")
        self.pid = 0
        assert status == str(-signal.SIGKILL), self._log()
        self.report.kills += 1
        self.database.forget_the_dead()

    async def _last_life(self) -> None:
        """Stop the kills, and wait until every flow has finished."""
        await self._start(self.report.operations)
        status = await self._heard("ended")
        self.pid = 0
        assert status == "0", self._log()

    def _log(self) -> str:
        return (self.directory / "log").read_text()[-5000:]

    # -- observations ----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read the effects since the last death, and check which of them are stored."""
        effects = self.directory / "effects"
        lines = effects.read_text().splitlines() if effects.exists() else []
        for line in lines[self.read :]:
            _, key = line.split()
            if key in self.stored:
                self.report.double.append(f"{key} was executed again")
        self.read = len(lines)
        rows = self.database.rows
        done = rows(
            "SELECT flow || '/' || name || '/' || CASE kind WHEN 'retry' THEN round ELSE undone + 1 END"
            " FROM lifecycle_flow_steps WHERE state = 'SUCCESS'"
        )
        self.stored |= {key for (key,) in done}
        for (begun,) in rows("SELECT max(CAST(id AS INTEGER)) + 1 FROM lifecycle_flows"):
            self.report.operations = max(self.report.operations, begun or 0)
        working = rows("SELECT 1 FROM lifecycle_flow_steps WHERE state IN ('RUNNING', 'REVERTING') LIMIT 1")
        self.interrupted += bool(working)

    async def _compare(self) -> None:
        async with Flows() as undisturbed, Flows(self.database.where) as killed:
            for number in range(self.report.operations):
                numbered = NumberedFlow(number)
                wanted, got = [
                    await _end(flows.start(numbered.flow, id=str(number)), exactly=numbered.sequential)
                    for flows in (undisturbed, killed)
                ]
                if wanted != got:
                    self.report.lost.append(f"flow {number}: expected {wanted}, got {got}")
                changes = await killed.store.changes(str(number), limit=_MANY)
                self.report.lost += [f"flow {number}: {wrong}" for wrong in illegal(changes)]


async def _end(run: Run, *, exactly: bool) -> tuple[Any, ...]:
    """Return the final result of a flow: its state, and the state and results of each task."""
    try:
        given = await run
    except Exception:  # noqa: BLE001  # a reloaded error has another type; the states show failures
        given = None
    return run.state, left_of(run.steps, run.state, exactly=exactly), given


def storm(seconds: float, seed: int, *, store: str = "sqlite") -> Report:
    with tempfile.TemporaryDirectory() as directory, closing(database(store, Path(directory) / "flows.db")) as kept:
        report = asyncio.run(Storm(Path(directory), seed, kept).run(seconds))
        report.kills += kept.attacks
        return report

"""Processes that run random workflows, and that are killed repeatedly.

Two workers start workflows in one file and continue those of each other. A third process sends signals and
cancellations, and repeats those that were not acknowledged before it was killed. At the end, the rows in the file must
equal those of the same workflows run without kills, no recorded step may have run again, and no two living processes
may have run the same attempt.
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
from collections import defaultdict
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lifecycle.flows import Change, StepRow
from lifecycle.flows.records import CANCEL
from lifecycle.flows.states import ENDS
from lifecycle.testing.virtual import VirtualLoop
from tests.chaos._databases import database
from tests.chaos.report import Report
from tests.chaos.workflow_crash_points import Life, histories_wrong, in_memory, left_of

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from tests.chaos._databases import File, OnServer

__all__ = ["storm"]

ROOT = Path(__file__).parents[2]

ROLES = ("worker", "worker", "sender")
#: The time limit, in seconds, for a process to start, and for the remaining workflows to end after the kills.
LIMIT = 120.0
#: The minimum number of kills per process.
KILLS = 2


class _Place:
    """One of the processes, and its successors."""

    def __init__(self, role: str, server: Process) -> None:
        # The process that forks the others. It also prints how they ended.
        self.role, self.server = role, server
        self.pid = self.life = 0

    async def start(self, life: int, *, last: bool = False) -> None:
        assert self.server.stdin is not None
        self.life = life
        self.server.stdin.write(f"{life} {last:d}\n".encode())
        self.pid = int(await self.heard("born"))

    async def heard(self, word: str) -> str:
        """Return the rest of the next line that begins with ``word``."""
        assert self.server.stdout is not None
        async with asyncio.timeout(LIMIT):
            while line := (await self.server.stdout.readline()).decode().split():
                if line[0] == word:
                    return line[-1]
                assert line[0] != "ended", f"a {self.role} has failed"
        raise AssertionError(f"a {self.role} has failed")

    def kill(self) -> None:
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def end(self) -> None:
        """Kill the process, which must still be running."""
        self.kill()
        status = await self.heard("ended")
        self.pid = 0
        assert status == str(-signal.SIGKILL), f"a {self.role} exited with status {status}"


class Storm:
    """The processes, the tasks that kill them, and the checks."""

    def __init__(self, directory: Path, seed: int, database: File | OnServer) -> None:
        self.directory, self.database = directory, database
        self.chance = random.Random(seed)
        self.report = Report()
        self.places: list[_Place] = []
        self.lives = 0
        # The time at which each process was killed.
        self.killed: dict[int, float] = {}

    async def run(self, seconds: float) -> Report:
        self.places = [_Place(role, await self._server(role)) for role in ROLES]
        try:
            end = time.monotonic() + seconds
            async with asyncio.TaskGroup() as group:
                for place in self.places:
                    group.create_task(self._rage(place, end))
            await self._calm()
        except BaseException:
            print(self._errors())
            raise
        finally:
            await self._stop()
        return self.report

    async def _server(self, role: str) -> Process:
        argv = [sys.executable, "-m", "tests.chaos._workflow_runner", str(self.directory), self.database.where, role]
        with (self.directory / "errors").open("a") as errors:
            return await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=errors)

    def _errors(self) -> str:
        return (self.directory / "errors").read_text()[-5000:]

    async def _stop(self) -> None:
        for place in self.places:
            place.kill()
            if place.server.returncode is None:
                place.server.kill()
            await place.server.wait()

    def _next_life(self) -> int:
        self.lives += 1
        return self.lives

    async def _rage(self, place: _Place, end: float) -> None:
        kills = 0
        while time.monotonic() < end or kills < KILLS:
            await place.start(self._next_life())
            # The others are killed while they start.
            if self.chance.random() < 0.9:
                await place.heard("up")
                await asyncio.sleep(self.chance.random() ** 2 * 3.0)
            self.killed[place.life] = time.monotonic()
            await place.end()
            kills += 1
            self.report.kills += 1

    async def _calm(self) -> None:
        """Stop the kills, and wait until all workflows have ended."""
        for place in self.places:
            await place.start(self._next_life(), last=True)
        end = time.monotonic() + LIMIT
        while (left := self._unfinished()) and time.monotonic() < end:
            await asyncio.sleep(0.2)
        self.report.stuck += [f"flow {flow} is {state}" for flow, state in left]
        for place in self.places:
            await place.end()

    def _unfinished(self) -> list[tuple[Any, ...]]:
        rows = self.database.rows("SELECT id, state FROM lifecycle_flows")
        return [(flow, state) for flow, state in rows if state not in ENDS]

    # -- results ------------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Compare the rows and the executed steps with those of undisturbed workflows."""
        tops = self._rows_of("SELECT id, id FROM lifecycle_flows WHERE parent = '' ORDER BY id")
        self.report.operations = len(self._rows_of("SELECT id, id FROM lifecycle_flows"))
        started = (self.directory / "started").read_text().split()
        self.report.lost += [f"workflow {flow} was started, but is not stored" for flow in started if flow not in tops]
        self._judge_histories()
        ends = self._ends()
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            for flow in tops:
                wanted = runner.run(self._undisturbed(int(flow), flow))
                got = {key: ends.pop(key, None) for key in wanted}
                self.report.lost += [
                    f"{key}: {wanted[key]} became {got[key]}" for key in wanted if wanted[key] != got[key]
                ]
        self.report.lost += [f"{key} is not expected: {row}" for key, row in ends.items()]

    async def _undisturbed(self, number: int, flow: str) -> dict[str, Any]:
        life = Life(number, in_memory(), 0.0, flow)
        assert await life.live()
        assert not await life.wrong()
        return await life.end()

    def _rows_of(self, query: str) -> dict[str, list[tuple[Any, ...]]]:
        """Return the rows without their first column, which is the flow's id, by that id."""
        found: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for flow, *row in self.database.rows(query):
            found[flow].append(tuple(row))
        return found

    def _ends(self) -> dict[str, Any]:
        """Return what `Life.end` returns, for all workflows."""
        ends: dict[str, Any] = {}
        flows = self._rows_of("SELECT id, state, result, error FROM lifecycle_flows")
        steps = self._rows_of(
            "SELECT flow, name, kind, state, intention, attempt, round, result, failure, revert_failure, history,"
            " undone, due FROM lifecycle_flow_steps"
        )
        signals = self._rows_of("SELECT flow, name, data, taken FROM lifecycle_signals ORDER BY number")
        for flow, (row,) in flows.items():
            ends |= left_of(flow, row, [StepRow(*each) for each in steps[flow]])
            received = [(name, data, bool(taken)) for name, data, taken in signals[flow] if name != CANCEL]
            ends[f"signals to {flow}"] = received
        return ends

    def _judge_histories(self) -> None:
        rows = self._rows_of(
            "SELECT flow, kind, name, old, new, reason, attempt, seq, at FROM lifecycle_flow_changes ORDER BY seq"
        )
        ended: dict[str, float] = {}
        for flow, history in rows.items():
            changes = [
                Change(kind, name, old, new, None, reason, attempt, flow, seq, at)
                for kind, name, old, new, reason, attempt, seq, at in history
            ]
            self.report.double += histories_wrong(changes)
            ended |= {f"{flow}/{each.name}/1": each.at for each in changes if each.new in ("SUCCESS", "FAILURE")}
        self._judge_effects(ended)

    def _judge_effects(self, ended: dict[str, float]) -> None:
        """Check that no recorded step ran again, and that no two living processes ran the same attempt."""
        runs: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
        for line in (self.directory / "effects").read_text().splitlines():
            process, begun, at, attempt, key = line.split(" ", 4)
            runs[key, attempt].append((float(begun), int(process)))
            if key not in ended:
                self.report.lost.append(f"{key} was executed, but has no recorded end")
            elif float(at) > ended[key]:
                self.report.double.append(f"{key} was executed again after it had been recorded")
        for each, times in runs.items():
            for (_, life), (then, heir) in pairwise(sorted(times)):
                if life not in self.killed or self.killed[life] > then:
                    self.report.double.append(f"{each} ran in process {heir} while process {life} was alive")


def storm(seconds: float, seed: int, *, store: str = "sqlite") -> Report:
    with tempfile.TemporaryDirectory() as directory, closing(database(store, Path(directory) / "flows.db")) as kept:
        raging = Storm(Path(directory), seed, kept)
        report = asyncio.run(raging.run(seconds))
        raging.judge()
        return report

"""A workflow has the same outcome even if its process is killed at one of its calls of the store.

The process is killed with SIGKILL before the call, after it, or while the store carries it out. The next process starts
at once, and is killed soon afterwards. Every other time, it runs already when the first one is killed, and takes the
workflow over. On PostgreSQL, the server also closes the connections of a process. Everything happens in real time.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from contextlib import AsyncExitStack, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lifecycle.testing.virtual import VirtualLoop
from tests import postgres
from tests.chaos._killed_runner import store_at
from tests.chaos.report import Report
from tests.chaos.workflow_crash_points import Life, histories_wrong, in_memory
from tests.engines import require

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Iterable, Iterator

__all__ = ["Point", "kill_at_each", "stores_of", "storm"]

ROOT = Path(__file__).parents[2]
#: Seconds within which a process must end, once nothing kills it.
LIMIT = 60.0
#: The number of workflows that run at the same time, each in its own store.
_AT_ONCE = 2
#: More calls than any workflow makes.
_CALLS = 400
_HOW = ("before", "during", "after")

#: The number of a workflow, the call at which its first process is killed, and how.
Point = tuple[int, int, str]


class _Runner:
    """Two processes that fork those that run a workflow."""

    def __init__(self, directory: Path, name: str, where: str, report: Report) -> None:
        self._directory, self._name, self._where, self._report = directory, name, where, report
        self._effects = directory / f"{name}.effects"
        self._servers: list[Process] = []

    async def __aenter__(self) -> Self:
        argv = [sys.executable, "-m", "tests.chaos._killed_runner", str(self._directory), self._where, self._name]
        for _ in range(2):
            self._servers.append(await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdin=PIPE, stdout=PIPE))
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            assert server.stdin is not None
            server.stdin.close()
            with suppress(ProcessLookupError):
                server.kill()
            await server.wait()

    async def _live(self, server: int, point: Point, life: int, calls: int, how: str) -> bool:
        """Return True if the workflow has ended, or False if its process was killed first."""
        process, flow = self._servers[server], _flow(point)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{point[0]} {flow} {life} {calls} {how}\n".encode())
        status = int(await process.stdout.readline() or 1)
        self._report.kills += status == -9  # SIGKILL
        assert status in (0, -9), f"the process of {flow} has failed"
        return status == 0

    async def kill(self, point: Point, end: dict[str, Any]) -> bool:
        """Run a workflow whose process is killed, and check it. Return True if it had ended before."""
        number, calls, how = point
        flow = _flow(point)
        self._report.operations += 1
        try:
            async with asyncio.timeout(LIMIT):
                if calls % 2:
                    lives = self._live(0, point, 0, calls, how), self._live(1, point, 0, 0, "never")
                    first, _ = await asyncio.gather(*lives)
                else:
                    first = await self._live(0, point, 0, calls, how)
                    if not await self._live(0, point, 1, 1 + calls % 4, how):
                        await self._live(0, point, 2, 0, "never")
        except TimeoutError:
            self._report.stuck.append(f"{flow} did not end")
            raise
        life = Life(number, lambda: store_at(self._where), 0.0, flow)
        if (got := await life.end()) != end:
            keys = [key for key in end | got if end.get(key) != got.get(key)]
            changed = "; ".join(f"{key}: {end.get(key)} became {got.get(key)}" for key in keys)
            self._report.lost.append(f"{flow}: {changed}")
        self._report.double += await self._repeated(life)
        return first and how != "cut"

    async def _repeated(self, life: Life) -> list[str]:
        """Return the steps that ran after they had been recorded."""
        async with store_at(self._where) as store:
            histories = [await store.changes(flow, limit=9999) for flow in life.needs.signals]
        changes = [change for history in histories for change in history]
        ended = {f"{each.flow}/{each.name}/1": each.at for each in changes if each.new in ("SUCCESS", "FAILURE")}
        wrong = [line for history in histories for line in histories_wrong(history)]
        for line in self._effects.read_text().splitlines():
            _, at, _, key = line.split(" ", 3)
            if key in ended and float(at) > ended[key]:
                wrong.append(f"{key} ran again after it had been recorded")
        return wrong


def _flow(point: Point) -> str:
    number, calls, how = point
    return f"{number}-{calls}-{how}"


async def kill_at_each(points: Iterable[Point], stores: Iterable[str], directory: Path, report: Report) -> None:
    """Kill processes at all ``points``, in several stores at once. Skip points after the end of a workflow."""
    left, over = iter(points), set[tuple[int, str]]()

    async def serve(runner: _Runner) -> None:
        for point in left:
            if (point[0], point[2]) in over:
                continue
            end = await asyncio.to_thread(_undisturbed, point)
            if await runner.kill(point, end):
                over.add((point[0], point[2]))

    async with AsyncExitStack() as stack:
        runners = [
            await stack.enter_async_context(_Runner(directory, str(place), where, report))
            for place, where in enumerate(stores)
        ]
        await asyncio.gather(*map(serve, runners))


def _undisturbed(point: Point) -> dict[str, Any]:
    """Return the end of a workflow that is not killed."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        life = Life(point[0], in_memory(), 0.0, _flow(point))
        assert runner.run(life.live())
        return runner.run(life.end())


def _random_points(seconds: float, seed: int, ways: tuple[str, ...]) -> Iterator[Point]:
    chance, end = random.Random(seed), time.monotonic() + seconds
    while True:
        number = chance.randrange(2**32)
        for calls in count(1):
            if calls > _CALLS or time.monotonic() > end:
                break
            yield number, calls, chance.choice(ways)
        if time.monotonic() > end:
            return


def stores_of(store: str, directory: Path, number: int) -> list[str]:
    """Return so many new stores: files, or the URLs of schemas on a server."""
    if store == "postgres":
        return [postgres.server().url() for _ in range(number)]
    return [str(directory / f"{place}.db") for place in range(number)]


def storm(seconds: float, seed: int, *, store: str = "sqlite") -> Report:
    report = Report()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if store == "postgres":
            require(store)
        ways = (*_HOW, "cut") if store == "postgres" else _HOW
        stores = stores_of(store, directory, _AT_ONCE)
        asyncio.run(kill_at_each(_random_points(seconds, seed, ways), stores, directory, report))
    return report

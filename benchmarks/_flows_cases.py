"""Our flows, and SQLite alone: ``python -m benchmarks._flows_cases CASE TASKS FILE``, one process per case.

It prints the wall time and CPU time of one flow in seconds. The time starts at `Flows.start`, so it includes checking
and planning.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
import sys
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from lifecycle.flows import Flows, linear, task, unordered

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from lifecycle.flows import Flow

    Case = Callable[[int, str], tuple[float, float]]

__all__ = ["CASES", "SLEEP", "main", "timed"]

#: Seconds that each task of the fan-out sleeps.
SLEEP = 0.1


def main(cases: Mapping[str, Case]) -> None:
    """Run the case named on the command line."""
    _, name, tasks, file = sys.argv
    print(json.dumps(cases[name](int(tasks), file)))


@contextmanager
def timed() -> Iterator[list[float]]:
    """Measure wall and CPU seconds of a block. Garbage is collected before the measurement."""
    gc.collect()
    figures: list[float] = []
    began, used = time.perf_counter(), time.process_time()
    yield figures
    figures += [time.perf_counter() - began, time.process_time() - used]


def _ours(
    pattern: Callable[..., Flow],
    fn: Callable[[], Awaitable[int]],
    *,
    stored: bool = True,
    durable: bool = False,
    times: int = 1,
) -> Case:
    """Run a flow, ``times`` times if one run is too short to measure."""

    async def measure(tasks: int, file: str) -> list[float]:
        flow = pattern("flow", *[task(fn, name=f"task{number}") for number in range(tasks)])
        async with Flows(file if stored else None, durable=durable) as flows:
            with timed() as figures:
                given = await flows.start(flow)
        assert len(given) == tasks
        return figures

    def case(tasks: int, file: str) -> tuple[float, float]:
        figures = [asyncio.run(measure(tasks, f"{file}{number}")) for number in range(times)]
        wall, used = (sum(each) / times for each in zip(*figures, strict=True))
        return wall, used

    return case


async def _nothing() -> int:
    return 1


async def _sleep() -> int:
    await asyncio.sleep(SLEEP)
    return 1


def _raw_commits(rows: int, file: str) -> tuple[float, float]:
    """Commit one row per transaction. This is the baseline."""
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("CREATE TABLE tasks (id INTEGER PRIMARY KEY, name TEXT, state TEXT)")
        with timed() as figures:
            for number in range(rows):
                db.execute("INSERT INTO tasks (name, state) VALUES (?, ?)", (f"task{number}", "SUCCESS"))
    wall, used = figures
    return wall, used


CASES: dict[str, Case] = {
    "linear_memory": _ours(linear, _nothing, stored=False, times=10),
    "linear_sqlite": _ours(linear, _nothing, times=10),
    "linear_sqlite_10000": _ours(linear, _nothing),
    "linear_durable": _ours(linear, _nothing, durable=True),
    "unordered_sqlite": _ours(unordered, _nothing, times=10),
    "fanout": _ours(unordered, _sleep),
    "raw_commits": _raw_commits,
}

if __name__ == "__main__":
    main(CASES)

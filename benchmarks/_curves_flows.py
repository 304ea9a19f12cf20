"""The CPU time of one flow and of its look-up, by the number of flows in an SQLite file."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lifecycle.flows import Flows, linear, task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks._curves_plots import Points

__all__ = ["by_rows", "fill"]

ROUNDS = 101
#: The limit, relative to the cost with the fewest rows and to the depth of an index.
LIMIT = 1.5

_FILL = """
WITH RECURSIVE numbers(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < {rows})
INSERT INTO {table} ({key}, {columns})
SELECT printf('%08x', number * {step}), {columns} FROM numbers, {table} WHERE {key} = 'first'
"""
_TABLES = {"lifecycle_flows": "id", "lifecycle_flow_steps": "flow", "lifecycle_flow_changes": "flow"}


async def _nothing() -> int:
    return 1


FLOW = linear("flow", task(_nothing))


def by_rows(sizes: tuple[int, ...]) -> Points:
    """Measure a flow of one task. The limit grows with the logarithm of the number of rows, as an index does."""
    found: dict[str, list[float]] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".curves-") as directory:
            for name, cost in _measured(Path(directory, "flows.db"), size).items():
                found.setdefault(name, []).append(cost)
    first = found["start and finish"][0]
    return found, [LIMIT * first * math.log(size, sizes[0]) for size in sizes]


def _measured(file: Path, rows: int) -> dict[str, float]:
    asyncio.run(_first(file))
    step = fill(file, rows)
    ids = [f"{(number * 7919 % rows + 1) * step:08x}" for number in range(ROUNDS)]
    return asyncio.run(_in_program(file, ids))


async def _first(file: Path) -> None:
    async with Flows(file) as flows:
        await flows.start(FLOW, id="first")


async def _in_program(file: Path, ids: list[str]) -> dict[str, float]:
    async with Flows(file) as flows:
        run = await _median([partial(_run, flows) for _ in ids])
        return {"start and finish": run, "load": await _median([partial(flows.store.load, each) for each in ids])}


def fill(file: Path, rows: int) -> int:
    """Add copies of the first flow, in the order of their ids. Return the distance between two ids."""
    step = 2**32 // (rows + 1)
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = OFF")
        for table, key in _TABLES.items():
            names = [name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")]
            columns = ", ".join(name for name in names if name not in (key, "number"))
            db.execute(_FILL.format(table=table, key=key, columns=columns, rows=rows, step=step))
    return step


async def _run(flows: Flows) -> None:
    await flows.start(FLOW)


async def _median(calls: list[Callable[[], Awaitable[object]]]) -> float:
    costs: list[float] = []
    for call in calls:
        began = time.process_time()
        await call()
        costs.append(time.process_time() - began)
    return statistics.median(costs) * 1e6

"""The cost of flows and jobs, compared with TaskFlow, DBOS, procrastinate and plain SQLite.

- ``linear``: TaskFlow runs 250 tasks and ``Flows`` 1,000, because TaskFlow's time per task grows with their number.
  Only our time includes the preparation of the flow. DBOS uses WAL mode.
  Most CPU time per task on SQLite is spent in system calls: the transaction, two checks of the file, and the wake-ups
  of the thread that writes.
- ``fanout``: a thousand tasks that sleep 0.1 s. ``jobs``: jobs are claimed and completed, eight at a time.
- ``postgres_jobs_over_procrastinate_N``: N processes run eight jobs at a time. ``Flows`` stores each step,
  while procrastinate stores only the completion.
- ``workflow``: sequential async steps in a workflow, as in DBOS. ``starts``: workflows without steps, started at the
  same time. ``sleeping``: 10,000 workflows that sleep for an hour. ``recovery``: all 10,000 workflows of a killed
  process run again. ``lookup``: `Flows.get`, median of 1,001 calls.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import _flows_cases, _flows_jobs, _flows_peers, _flows_postgres, _flows_workflows
from benchmarks._measure import Samples, interleaved, ratio, report

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BARS", "SIZES", "main", "results"]

#: Number of tasks, steps, rows or jobs in each case.
SIZES = {
    "linear_memory": 1000,
    "taskflow_memory": 1000,
    "linear_sqlite": 1000,
    "taskflow_sqlite": 250,
    "dbos": 1000,
    "workflow_sqlite": 1000,
    "workflow_starts": 1000,
    "dbos_starts": 1000,
    "linear_sqlite_10000": 10_000,
    "linear_durable": 1000,
    "unordered_sqlite": 1000,
    "raw_commits": 10_000,
    "fanout": 1000,
    "jobs": 2000,
    "jobs_by_hand": 2000,
    **_flows_workflows.SIZES,
}

BARS = {
    "linear_memory_over_taskflow": "at least 60",
    "linear_sqlite_over_taskflow": f"at least 80; TaskFlow had {SIZES['taskflow_sqlite']} tasks, ours 1,000",
    "linear_sqlite_over_dbos": "at least 5",
    "linear_10000_over_1000": "at most 1.2",
    "unordered_sqlite_over_raw_commits": "at least 0.15",
    "fanout_1000_sleeps_over_one": "at most 3",
    "jobs_over_raw": "at least 0.4",
    "import_ms_flows": "at most 30",
    "workflow_sqlite_over_dbos": "at least 5",
    "workflow_starts_over_dbos": "printed",
    **_flows_workflows.BARS,
    **_flows_postgres.BARS,
    "a_second": "printed",
    "cpu_microseconds_each": "printed",
    "sizes": "printed",
}

IMPORTED = """
import asyncio, time
began = time.perf_counter()
from lifecycle.flows import JobQueue, Flows, Times, graph, linear, task, unordered
print(time.perf_counter() - began)
"""

_MODULES = {
    "benchmarks._flows_cases": _flows_cases.CASES,
    "benchmarks._flows_jobs": _flows_jobs.JOBS,
    "benchmarks._flows_peers": _flows_peers.PEERS,
    "benchmarks._flows_workflows": _flows_workflows.WORKFLOWS,
}


def main() -> None:
    """Run all benchmarks in this module, and print their figures."""
    for reason in _flows_peers.missing().values():
        print(reason, file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".flows-") as directory:
        # There are only a few slow rounds, because TaskFlow takes ten seconds per round.
        measured = results(SIZES, directory, slow_rounds=3, rounds=5, imports=21)
    report("flows", {**measured, **_flows_postgres.figures()}, BARS)


def results(
    sizes: Mapping[str, int], directory: str, *, slow_rounds: int, rounds: int, imports: int
) -> dict[str, object]:
    """Return all figures for these numbers of tasks and rounds. Temporary files are in ``directory``."""
    absent = _flows_peers.missing()
    used: Samples = {}

    def turns(*names: str, rounds: int) -> Samples:
        there = [name for name in names if name.split("_")[0] not in absent]
        cases = {name: partial(_a_second, name, sizes[name], directory, used) for name in there}
        return interleaved(cases, rounds=rounds, warmup=0)

    slow = turns("linear_memory", "taskflow_memory", "linear_sqlite", "taskflow_sqlite", rounds=slow_rounds)
    linear = ("linear_sqlite", "linear_sqlite_10000", "unordered_sqlite", "raw_commits")
    tasks = turns(*linear, "workflow_sqlite", "dbos", rounds=rounds)
    starts = turns("workflow_starts", "dbos_starts", rounds=slow_rounds)
    durable = turns("linear_durable", rounds=rounds)
    jobs = turns("jobs", "jobs_by_hand", rounds=rounds)
    fanout = turns("fanout", rounds=rounds)
    a_second = slow | starts | tasks | durable | jobs | fanout
    return {
        "linear_memory_over_taskflow": _over(slow, "linear_memory", "taskflow_memory"),
        "linear_sqlite_over_taskflow": _over(slow, "linear_sqlite", "taskflow_sqlite"),
        "linear_sqlite_over_dbos": _over(tasks, "linear_sqlite", "dbos"),
        "linear_10000_over_1000": _over(tasks, "linear_sqlite", "linear_sqlite_10000"),
        "unordered_sqlite_over_raw_commits": _over(tasks, "unordered_sqlite", "raw_commits"),
        "fanout_1000_sleeps_over_one": sizes["fanout"] / max(fanout["fanout"]) / _flows_cases.SLEEP,
        "jobs_over_raw": _over(jobs, "jobs", "jobs_by_hand"),
        "workflow_sqlite_over_dbos": _over(tasks, "workflow_sqlite", "dbos"),
        "workflow_starts_over_dbos": _over(starts, "workflow_starts", "dbos_starts"),
        **_flows_workflows.figures(sizes, directory),
        "import_ms_flows": min(_import_ms() for _ in range(imports)),
        "a_second": {name: round(statistics.median(each)) for name, each in a_second.items()},
        "cpu_microseconds_each": {name: round(statistics.median(each) * 1e6) for name, each in used.items()},
        "sizes": dict(sizes),
    }


def _import_ms() -> float:
    """Return the import time in ms. Bytecode is kept between rounds, as for any program that runs repeatedly."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return float(subprocess.check_output([sys.executable, "-c", IMPORTED], env=kept)) * 1000


def _over(samples: Samples, over: str, under: str) -> float | None:
    return ratio(samples, over, under) if under in samples else None


def _a_second(name: str, size: int, directory: str, used: Samples) -> float:
    """Run one case in a separate process and return its rate per second. Add its CPU time to ``used``."""
    module = next(module for module, cases in _MODULES.items() if name in cases)
    with tempfile.TemporaryDirectory(dir=directory) as files:
        argv = [sys.executable, "-m", module, name, str(size), f"{files}/flows.db"]
        wall, cpu = json.loads(subprocess.check_output(argv, text=True).splitlines()[-1])
    used.setdefault(name, []).append(cpu / size)
    return float(size / wall)


if __name__ == "__main__":
    main()

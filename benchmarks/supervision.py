"""The cost of supervision, compared with supervisord, circus, runit and minimal code.

All supervisors run with their default settings.

- ``restart``: the time from SIGKILL of a child to the first output of its replacement. ``spawn`` is a bare ``Popen``.
- ``stop_1000_tasks``: most of the difference is two status changes and an ``Exit`` per task.
- ``stop_100_processes``: most of the time is spent in system calls: the signal, removing the cgroup, and reaping.
- ``bytes_per_task_worker``: the memory for one more task, as reported by tracemalloc.
- ``rss``: the memory of a program with a hundred sleeping children, including our guard process.
"""

from __future__ import annotations

import asyncio
import sys

from benchmarks._measure import report
from benchmarks._supervised_processes import idle_cpu_percent, restarts, rss_over_supervisord, stop_over_killpg
from benchmarks._supervised_tasks import bytes_per_task_worker, state_over_record, stop_over_gather
from benchmarks._supervisors import missing

__all__ = ["main"]

BARS = {
    "restart_supervisord_over_ours": "printed",
    "restart_circus_over_ours": "printed",
    "restart_over_spawn": "at most 4",
    "restart_runit_over_spawn": "printed",
    "state_over_record": "at most 4",
    "stop_1000_tasks_over_gather": "at most 5",
    "stop_100_processes_over_killpg": "at most 3",
    "bytes_per_task_worker": "at most 6,000",
    "rss_100_processes_over_supervisord": "at most 1.5",
    "idle_cpu_percent_100_processes": "under 0.3",
    "milliseconds_a_restart": "printed",
}


def main() -> None:
    """Run all benchmarks in this module, and print their figures."""
    for reason in missing().values():
        print(reason, file=sys.stderr)
    results: dict[str, object] = {
        "state_over_record": asyncio.run(state_over_record()),
        "stop_1000_tasks_over_gather": asyncio.run(stop_over_gather()),
        "stop_100_processes_over_killpg": stop_over_killpg(),
        "bytes_per_task_worker": asyncio.run(bytes_per_task_worker()),
        "rss_100_processes_over_supervisord": None if "supervisord" in missing() else rss_over_supervisord(),
        "idle_cpu_percent_100_processes": idle_cpu_percent(),
    }
    report("supervision", _of_restarts(restarts()) | results, BARS)


def _of_restarts(seconds: dict[str, float]) -> dict[str, object]:
    def over(kind: str, base: str) -> float | None:
        return seconds[kind] / seconds[base] if kind in seconds else None

    return {
        "restart_supervisord_over_ours": over("supervisord", "ours"),
        "restart_circus_over_ours": over("circus", "ours"),
        "restart_over_spawn": over("ours", "spawn"),
        "restart_runit_over_spawn": over("runit", "spawn"),
        "milliseconds_a_restart": {kind: round(each * 1000, 2) for kind, each in seconds.items()},
    }


if __name__ == "__main__":
    main()

"""The cost of a pool, compared with a spawned ``ProcessPoolExecutor`` and bare pipes.

Calls carry and return a kilobyte.

- ``pipe``: an echo without encoding, deadline or cancellation.
- ``pipelined``: 16 callers, 2 processes, 8 async calls per process. ``queued``: one call per process.
- ``stream``: compared with the same number of calls.
- ``cancel``: from the cancellation to the worker's next answer. ``kill_replace``: the same if the call holds the
  interpreter lock, with a grace of 0.5 s.
- ``recovery``: from SIGKILL until all workers are ready. ``spawn``: a worker without a pool.
"""

# The executor's processes import this module again, as they do with every program that starts them. So it has here what
# a program has that awaits calls, asyncio, and none of what is only there to measure.

from __future__ import annotations

import asyncio
import logging
import os

__all__ = ["main"]

BARS = {
    "roundtrip_over_pipe": "at most 2.5",
    "executor_over_roundtrip": "at least 2.5",
    "pipelined_calls_per_s_over_executor": "at least 2",
    "queued_calls_per_s_over_executor": "printed",
    "first_result_over_executor": "at least 1.5",
    "stream_items_over_calls": "at least 3",
    "cancel_ms_python_loop": "printed",
    "cancel_ms_sleep": "printed",
    "kill_replace_ms": "at most 500 + 3 x spawn_ms",
    "spawn_ms": "printed",
    "recovery_over_spawn": "at most 3",
    "rss_per_member_over_bare_python": "at most 1.6",
    "microseconds_a_call": "printed",
}


def main() -> None:
    """Measure and print."""
    # Bytecode is kept between rounds, as for any program that is started twice.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    from benchmarks._measure import report
    from benchmarks._pool_calls import calls
    from benchmarks._pool_processes import processes

    # Some cases kill workers on purpose.
    logging.getLogger("lifecycle.workers").setLevel(logging.ERROR)
    with asyncio.Runner() as runner:
        results = calls(runner) | processes(runner)
    report("pool", {name: results[name] for name in BARS}, BARS)


if __name__ == "__main__":
    main()

"""The cost of a pool, compared with a spawned ``ProcessPoolExecutor`` and bare pipes.

Each call sends and returns a kilobyte.

- ``pipe``: an echo without encoding, deadlines or cancellation.
- ``pipelined``: 16 callers, 2 processes, and 8 async calls per process. ``queued``: one call per process.
- ``stream``: a stream of items, compared with the same number of calls.
- ``cancel``: the time from the cancellation to the worker's next response. ``kill_replace``: the same for a call that
  holds the interpreter lock, with a grace period of 0.5 s.
- ``recovery``: the time from SIGKILL until all workers are ready. ``spawn``: the start of a worker without a pool.
"""

# The executor's processes import this module again, as they import any program's main module. It therefore imports
# asyncio, which a real program needs as well, and defers imports that only the measurement needs.

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
    """Run all benchmarks in this module, and print their figures."""
    # Bytecode is kept between rounds, as for any program that is started more than once.
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

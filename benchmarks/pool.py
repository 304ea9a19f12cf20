"""The cost of a pool compared with the standard library's and with pipes alone: ``python -m benchmarks.pool [--json]``.

Calls carry and return a kilobyte. Each figure is the best of a few short tries, and each ratio the median over rounds
that take turns. roundtrip_over_pipe: compared with a length-prefixed echo written by hand with asyncio's streams, which
encodes nothing, has no deadline, and cannot be cancelled. executor: `ProcessPoolExecutor` with spawned processes,
called through the loop. pipelined: 16 callers at once and 2 processes each, of which ours run 8 calls of an async
function at a time; queued: ours run one call of the same function that the executor calls. stream: compared with
consecutive calls of as many bytes. first_result: from creating a pool to its first result, in one process.

spawn is a worker's command started by hand, until it sends Hello. cancel: from cancelling a call that has run for a
moment until its worker has answered the next one. kill_replace: the same if the call holds the interpreter's lock, so
that its worker is killed after the grace of 0.5 s, until the next is ready. recovery: from SIGKILL until all are ready
again. rss: of a worker that has answered, compared with an interpreter that does nothing.
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

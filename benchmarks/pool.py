"""What a pool costs beside the standard library's and beside pipes alone: ``python -m benchmarks.pool [--json]``.

Calls carry and return a kilobyte; each of their figures is the best of a few short tries, and each ratio the median
over rounds that take turns. roundtrip_over_pipe: beside a length-prefixed echo written by hand with asyncio's streams,
which encodes nothing, has no deadline, and cannot be cancelled. executor: `ProcessPoolExecutor` with processes that are
spawned, called through the loop. pipelined: 16 callers at once, and 2 processes each, of which ours have 8 calls of an
async function at a time; queued: ours have one call of the very function that the executor calls. stream: beside calls
one after the other, of as many bytes. first_result: from no pool to its first result, in one process.

spawn is a member's command started by hand, until it says Hello. cancel: from the cancelling of a call that has run for
a moment until its member has answered the next one. kill_replace: the same where the call holds the interpreter's lock,
so that its member is killed after the grace of 0.5 s, until the next is ready; recovery: from SIGKILL until all are
ready again. rss: of a member that has answered, beside an interpreter that does nothing.
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
    # With bytecode kept between rounds, as it is wherever a program is started twice.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    from benchmarks._measure import report
    from benchmarks._pool_calls import calls
    from benchmarks._pool_processes import processes

    # That members are killed is what some of them are for.
    logging.getLogger("lifecycle.workers").setLevel(logging.ERROR)
    with asyncio.Runner() as runner:
        results = calls(runner) | processes(runner)
    report("pool", {name: results[name] for name in BARS}, BARS)


if __name__ == "__main__":
    main()

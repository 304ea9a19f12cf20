"""A process that works on a queue with limits: ``python -m tests.realtime.flows._limited_worker FILE LOG``.

It appends a line to LOG when a job begins and when it ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from lifecycle.flows import Flows, JobQueue, current_task, linear, task

__all__ = ["limited"]


def limited(flows: Flows) -> JobQueue:
    """Return the queue, which has the same limits in each process."""
    return JobQueue(flows, name="limited", concurrency=3, key_concurrency=1)


async def main(path: str, log: str) -> None:
    lines = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(what: str, customer: str) -> None:
        os.write(lines, f"{time.monotonic()} {os.getpid()} {what} {current_task().flow} {customer}\n".encode())

    @task
    async def serve(customer: str) -> None:
        write("begin", customer)
        await asyncio.sleep(0.02)
        write("end", customer)

    async with Flows(path, stop_timeout=0.0) as flows:
        await limited(flows).work({"serve": linear("serve", serve)})


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

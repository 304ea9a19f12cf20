"""A process that claims one job and works on it until it is killed: ``python -m tests.realtime.flows._worker FILE``.

The process prints one word per step. Only the first attempt is slow, so a process that takes over the job completes it.
"""

from __future__ import annotations

import asyncio
import os
import sys

from lifecycle.flows import Flows, JobQueue, linear, task

__all__ = ["SLOW"]


@task
async def first() -> int:
    return os.getpid()


@task
async def second(first: int) -> int:
    if first == os.getpid():
        print("working", flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            print("cancelled", flush=True)
    return os.getpid()


SLOW = linear("slow", first, second)


async def main(path: str, lease: str) -> None:
    async with Flows(path, stop_timeout=0.0) as flows:
        await JobQueue(flows).work({"slow": SLOW}, lease=float(lease))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

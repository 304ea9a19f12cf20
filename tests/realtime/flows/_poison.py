"""A worker that runs jobs until all are complete: ``python -m tests.realtime.flows._poison STORE``.

The flow ``killer`` ends its process. The flow ``neighbour`` waits until a killer could have started next to it.
"""

from __future__ import annotations

import asyncio
import os
import sys

from lifecycle.flows import Flows, JobQueue, linear, task

__all__ = ["main"]


@task
async def kill() -> None:
    # The neighbours start in the same loop iteration.
    await asyncio.sleep(0)
    os._exit(1)


@task
async def wait() -> None:
    await asyncio.sleep(0.1)


KILLER, NEIGHBOUR = linear("killer", kill), linear("neighbour", wait)


async def main(store: str) -> None:
    async with Flows(store, stop_timeout=0.0) as flows:
        queue = JobQueue(flows)
        work = asyncio.create_task(queue.work({"killer": KILLER, "neighbour": NEIGHBOUR}, lease=1.0))
        while await queue.jobs():
            await asyncio.sleep(0.05)
        work.cancel()
        await asyncio.wait([work])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

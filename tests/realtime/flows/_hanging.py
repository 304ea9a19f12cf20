"""A process that starts one workflow and hangs in its step: ``python -m tests.realtime.flows._hanging URL``.

The process prints a word when the step begins. The step ends at once in any other process.
"""

from __future__ import annotations

import asyncio
import os
import sys

from lifecycle.flows import Flows, step, workflow

__all__ = ["order"]


async def work() -> int:
    if __name__ == "__main__":
        print("working", flush=True)
        await asyncio.Event().wait()
    return os.getpid()


@workflow
async def order() -> int:
    return await step(work)


async def main(url: str) -> None:
    async with Flows(url) as flows:
        await flows.start(order, id="one")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

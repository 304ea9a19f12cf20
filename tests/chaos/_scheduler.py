"""A process of `tests.chaos.schedules`: it starts a workflow each second, and records the steps that it runs."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time

from lifecycle.errors import JournalError
from lifecycle.flows import Flows, current_task, step, workflow


async def main(directory: str, where: str, life: str) -> None:
    log = os.open(f"{directory}/{life}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    async def write(word: str) -> None:
        os.write(log, f"{current_task().flow} {word} {time.time()}\n".encode())
        await asyncio.sleep(random.random() * 0.02)

    @workflow
    async def tick() -> None:
        await step(write, "begin")
        await step(write, "end")

    async with Flows(where) as flows:
        flows.schedule("* * * * * *", tick, timezone="UTC")
        await flows.recover(tick)
        print("up", flush=True)
        while True:
            # Without the old workflows, a second start for the same time is not refused because of its id.
            await flows.purge(0)
            await asyncio.sleep(random.random() * 0.1)


def run() -> None:
    while True:
        try:
            asyncio.run(main(*sys.argv[1:]))
        except JournalError as error:
            # The server is down.
            print(error, file=sys.stderr)
            time.sleep(0.1)


if __name__ == "__main__":
    run()

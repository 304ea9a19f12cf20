"""One worker in `tests.chaos.jobs`: it runs until SIGTERM, and records the jobs that it claims and completes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

from lifecycle import hooks
from lifecycle.errors import JournalError
from lifecycle.flows import Flows, JobQueue, JobState, current_task, linear, task

if TYPE_CHECKING:
    from lifecycle.states import Machine, Transition

__all__ = ["LEASE", "STEPS"]

#: The duration of a lease in seconds.
LEASE = 1.0
#: The number of tasks per flow.
STEPS = 4

# The number of times that this process has claimed each job.
_claims: Counter[str] = Counter()


async def _step() -> str:
    """Return the process id and the number of the claim under which this task runs."""
    await asyncio.sleep(random.random() * 0.03)
    flow = current_task().flow
    return f"{os.getpid()}:{_claims[flow]}"


DEPLOY = linear("deploy", *[task(_step, name=f"step{number}") for number in range(STEPS)])


async def main(directory: str, where: str, life: str) -> None:
    log = os.open(f"{directory}/{life}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def write(_: object, *, machine: Machine[Any], transition: Transition[Any]) -> None:
        if transition.new in (JobState.CLAIMED, JobState.COMPLETE):
            _claims[machine.name] += transition.new == JobState.CLAIMED
            os.write(log, f"{transition.new} {machine.name} {time.monotonic()}\n".encode())

    hooks.state_changed.connect(write)
    async with AsyncExitStack() as stack:
        flows = await _entered(stack, where)
        work = asyncio.create_task(JobQueue(flows).work({"deploy": DEPLOY}, concurrency=40, lease=LEASE))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
        print("up", flush=True)
        with suppress(asyncio.CancelledError):
            await work


async def _entered(stack: AsyncExitStack, where: str) -> Flows:
    """Open the flows. If the server is down, print the error and exit, so that the process is restarted."""
    while True:
        try:
            return await stack.enter_async_context(Flows(where, stop_timeout=1.0))
        except JournalError as error:
            print(error, file=sys.stderr)
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

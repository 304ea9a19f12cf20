"""One figure: the time to await an event with bubus, divided by our time.

The process that measures it kills itself, because bubus prevents it from exiting.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from bubus import BaseEvent, EventBus

from benchmarks.router import dispatching, handler, ratio
from lifecycle.control import Router


class Job(BaseEvent[None]):  # type: ignore[misc]  # bubus has no types
    """An event."""


async def measure() -> None:
    """Print the ratio and exit."""
    logging.disable(logging.CRITICAL)
    exact, bus = Router(), EventBus()
    exact.handle("job/done", handler)
    bus.on(Job, handler)

    async def peer(events: int) -> None:
        for _ in range(events):
            await bus.dispatch(Job())

    print(await ratio(peer, dispatching(exact), events=20, rounds=7))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(measure())

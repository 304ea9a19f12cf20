"""A group member that `tests.chaos.bridge` kills. It records handled events, and its handler fails on poison events."""

from __future__ import annotations

import asyncio
import os
import random
import sys

from lifecycle import Router, run
from lifecycle.backoff import Backoff
from lifecycle.bridges import BusEvent, NatsBridge

__all__ = ["GROUP", "main"]

GROUP = "consumers"

#: The number of failures after which an event becomes a dead letter. Kills are not failures, so only poison events
#: become dead letters.
TRIES = 3


class Herald:
    """A source that starts after all others, and reports that the program now handles signals."""

    async def run(self, emit: object) -> None:
        print("up", flush=True)


def main() -> None:
    url, path = sys.argv[1:]
    handled = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    router = Router()
    router.add_source(
        NatsBridge(
            url,
            group=GROUP,
            subscribe=("chaos/**",),
            max_in_flight=32,
            ack_wait=1.0,
            max_deliver=TRIES,
            backoff=Backoff(initial=0.05, maximum=0.2),
        ),
        backoff=Backoff(initial=0.1, maximum=0.5),
    )

    @router.on("chaos/**", concurrency=16)
    async def handle(event: BusEvent) -> None:
        await asyncio.sleep(random.random() ** 4 * 0.1)
        if event.data["poison"]:
            raise ValueError(f"number {event.data['number']} is poison")
        os.write(handled, f"{event.data['number']} {event.attempt}\n".encode())

    router.add_source(Herald())
    run(router)


if __name__ == "__main__":
    main()

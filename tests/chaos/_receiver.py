"""The program that `tests.chaos.inbox` kills: ``python -m tests.chaos._receiver DIRECTORY LIFE``.

It receives webhooks and records the numbers that it handles. Each line in the file ``handled`` contains a number, the
run and the attempt.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lifecycle import (
    Backoff,
    Debounce,
    Event,
    GitHub,
    Inbox,
    Limits,
    Router,
    WebhookEvent,
    WebhookSource,
    delivery,
    run,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

SECRET = b"It's a Secret to Everybody"

#: Requests whose numbers are multiples of this number fail at the first attempt.
UNLUCKY = 17


class Spoken(WebhookSource):
    """Prints the address on which the program listens."""

    async def __aenter__(self) -> Any:
        await super().__aenter__()
        print(self.url, flush=True)
        return self


def number_of(event: WebhookEvent) -> int:
    return int(event.body)


def folded(pending: WebhookEvent | Event, new: WebhookEvent) -> Event:
    before: Sequence[int] = pending.data if isinstance(pending, Event) else [number_of(pending)]
    return Event(new.topic, [*before, number_of(new)])


def main(directory: Path, life: int) -> None:
    notes = os.open(directory / "handled", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(*numbers: int) -> None:
        # Use a single write, because a kill must not leave half a line.
        lines = "".join(f"{life} {number} {delivery().attempt}\n" for number in numbers)
        os.write(notes, lines.encode())

    async def one(event: WebhookEvent) -> None:
        number = number_of(event)
        if number % UNLUCKY == 0 and delivery().attempt == 1:
            raise ValueError(f"{number} brings no luck")
        await asyncio.sleep(random.random() * 0.004)
        note(number)
        await asyncio.sleep(random.random() * 0.004)

    async def batch(event: WebhookEvent | Event) -> None:
        note(*(event.data if isinstance(event, Event) else [number_of(event)]))

    inbox = Inbox(directory / "inbox.db", backoff=Backoff(initial=0.05, maximum=0.5))
    router = Router(buffer=4)
    router.add_source(Spoken(port=0, verify=GitHub(SECRET), inbox=inbox, limits=Limits(pending=12)))
    router.handle("webhook/one", one, concurrency=2)
    router.handle("webhook/batch", batch, debounce=Debounce(0.05, max_wait=0.2, merge=folded))
    run(router)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

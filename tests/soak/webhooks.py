"""The program's webhooks: they are stored in an inbox, and handled at least once despite all attacks."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from lifecycle import Backoff, Debounce, Event, GitHub, Inbox, Limits, Router, WebhookEvent, WebhookSource, delivery
from lifecycle.control import timeout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.soak.flow_jobs import FlowJobs
    from tests.soak.notes import Notes

__all__ = ["DEDUPE", "FILE", "PATHS", "SECRET", "Webhooks"]

SECRET = "It's a Secret to Everybody"
#: The paths that accept webhooks.
PATHS = ("plain", "batch", "stuck", "deploy", "job")
#: The name of the inbox file.
FILE = "inbox.db"
#: The number of seconds for which an id is remembered.
DEDUPE = 40.0

#: Requests whose number is a multiple of the first value fail at first. Multiples of the second take a long time.
_UNLUCKY, _SLOW = 17, 23
#: The maximum number of seconds for a stuck handler.
_PATIENCE = 0.5


class Webhooks:
    """The source and its handlers."""

    def __init__(self, notes: Notes, flow_jobs: FlowJobs) -> None:
        self._notes, self._flow_jobs = notes, flow_jobs
        inbox = Inbox(notes.directory / FILE, dedupe=DEDUPE, backoff=Backoff(initial=0.05, maximum=0.5))
        self.source = WebhookSource(port=0, verify=GitHub(SECRET), inbox=inbox, limits=Limits(pending=30))

    def add_to(self, router: Router) -> None:
        """Add the source and its handlers to ``router``."""
        router.add_source(self.source)
        router.handle("webhook/plain", self._plain, concurrency=2)
        router.handle("webhook/batch", self._batch, debounce=Debounce(0.05, max_wait=0.2, merge=_folded))
        router.handle("webhook/stuck", self._stuck, concurrency=4, middleware=[timeout(_PATIENCE)])
        router.handle("webhook/deploy", self._deploy, concurrency=4)
        router.handle("webhook/job", self._job, concurrency=4)

    async def _plain(self, event: WebhookEvent) -> None:
        number = _number(event)
        if number % _UNLUCKY == 0 and delivery().attempt == 1:
            raise ValueError(f"{number} brings no luck")
        await asyncio.sleep(0.3 if number % _SLOW == 0 else random.random() * 0.004)
        self._handled(number)
        await asyncio.sleep(random.random() * 0.004)

    async def _batch(self, event: WebhookEvent | Event) -> None:
        for number in event.data if isinstance(event, Event) else [_number(event)]:
            self._handled(number)

    async def _stuck(self, event: WebhookEvent) -> None:
        """Hang during the first attempt."""
        if delivery().attempt == 1:
            await asyncio.Event().wait()
        self._handled(_number(event))

    async def _deploy(self, event: WebhookEvent) -> None:
        await self._flow_jobs.deployed(_number(event))
        self._handled(_number(event))

    async def _job(self, event: WebhookEvent) -> None:
        await self._flow_jobs.posted(_number(event))
        self._handled(_number(event))

    def _handled(self, number: int) -> None:
        self._notes.note("handled", number, delivery().attempt)


def _number(event: WebhookEvent) -> int:
    return int(event.body)


def _folded(pending: WebhookEvent | Event, new: WebhookEvent) -> Event:
    before: Sequence[Any] = pending.data if isinstance(pending, Event) else [_number(pending)]
    return Event(new.topic, [*before, _number(new)])

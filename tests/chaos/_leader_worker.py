"""A candidate in `tests.chaos.leader`: it writes while it is the leader, and records the results.

It prints ``gained TOKEN``, ``lost TOKEN`` and ``put REVISION``. It prints ``refused`` if a write arrived after another
process had gained the lease.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from typing import TYPE_CHECKING

from nats.js.errors import APIError

from lifecycle import Router, run
from lifecycle.backoff import Backoff
from lifecycle.bridges import Leader, LeaderEvent, NotLeader
from lifecycle.bridges.lease import unanswered

if TYPE_CHECKING:
    from lifecycle.control import Emit

__all__ = ["NAME", "WRITES", "main"]

NAME = "chaos"
#: The prefix of the keys. Each write uses a separate key.
WRITES = "writes"

#: The interval between writes and the longest delay of a write, in seconds.
PAUSE, LATE = 0.02, 2.0


class Worker:
    """A candidate that writes while it is the leader. Each write contains the leader's token."""

    def __init__(self, url: str, path: str, lease: float) -> None:
        self.leader = Leader(NAME, url, lease=lease)
        self.router = Router()
        self.router.add_source(self.leader, backoff=Backoff(initial=0.1, maximum=0.5))
        self.router.handle("leader/*/*", self.changes)
        self.router.add_source(self)
        self._notes = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._count = 0

    def changes(self, event: LeaderEvent) -> None:
        self.note(f"{'gained' if event.leading else 'lost'} {event.token}")

    async def run(self, _: Emit) -> None:
        """Run as a source that starts after the previous source. By then, signals are handled."""
        print("up", flush=True)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.write())
            group.create_task(self.write_late())

    async def write(self) -> None:
        """Write with the fencing token."""
        while True:
            await asyncio.sleep(PAUSE)
            token = self.leader.token
            if token is not None:
                key, value = self.next(token)
                try:
                    self.note(f"put {await self.leader.put(key, value, token=token)}")
                except NotLeader:
                    self.note("refused")

    async def write_late(self) -> None:
        """Write after a delay, when the process may have lost the lease.

        Neither the clock nor the client can prevent such a write.
        """
        while True:
            await asyncio.sleep(PAUSE)
            candidate = self.leader._elector
            if candidate and (lease := candidate.lease).is_ours:
                (key, value), revision = self.next(lease.token), lease._revision
                await asyncio.sleep(LATE * random.random() ** 2)
                headers = {
                    "Nats-Expected-Last-Subject-Sequence": str(revision),
                    "Nats-Expected-Last-Subject-Sequence-Subject": lease.key.subject,
                }
                subject = f"{lease.key.subject}.{key.replace('/', '.')}"
                try:
                    answer = await candidate.connection.js.publish(subject, value, timeout=1.0, headers=headers)
                    self.note(f"put {answer.seq}")
                except APIError:
                    self.note("refused")
                except unanswered():
                    pass

    def next(self, token: int) -> tuple[str, bytes]:
        self._count += 1
        return f"{WRITES}/{os.getpid()}-{self._count}", json.dumps({"token": token, "pid": os.getpid()}).encode()

    def note(self, line: str) -> None:
        os.write(self._notes, f"{line}\n".encode())


def main() -> None:
    url, path, lease = sys.argv[1:]
    run(Worker(url, path, float(lease)).router)


if __name__ == "__main__":
    main()

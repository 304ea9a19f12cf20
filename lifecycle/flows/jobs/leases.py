"""`Leases`: the claims that a worker has, kept as long as it works, whatever the jobs are at.

All are extended at once, three times in the time that they last, and more often while the store does not answer. A
claim is lost if the store refuses to extend it, or if its time is over: then its worker stops the flow. Each claim
ends by itself; the others are kept.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from lifecycle._util import message_of
from lifecycle.errors import JournalError

if TYPE_CHECKING:
    from lifecycle.flows.jobs.jobs import Job
    from lifecycle.flows.jobs.queues import JobQueue

__all__ = ["Lease", "Leases"]

_log = logging.getLogger("lifecycle.flows")


#: How often in the time of a lease it is extended; and how often that is tried while the store does not answer.
_OFTEN, _OFTENER = 3, 15


class Lease:
    """A claim that is kept."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.until: float = job.row.until
        #: Done once the claim is lost.
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def lose(self) -> None:
        """Tell who works for it that the claim is over."""
        if not self.lost.done():
            self.lost.set_result(None)


class Leases:
    """Keeps claims that last ``seconds``, each known by the id of its job."""

    def __init__(self, queue: JobQueue, seconds: float) -> None:
        self._queue, self._seconds = queue, seconds
        self._held: dict[str, Lease] = {}
        self._some = asyncio.Event()

    def add(self, job: Job) -> Lease:
        """Keep the claim of ``job``; an older one that we have on it is lost."""
        if (older := self._held.get(job.id)) is not None:
            older.lose()
        self._held[job.id] = lease = Lease(job)
        self._some.set()
        return lease

    def remove(self, lease: Lease) -> None:
        """Keep it no more."""
        if self._held.get(lease.job.id) is lease:
            del self._held[lease.job.id]
        if not self._held:
            self._some.clear()

    async def keep(self) -> None:
        """Extend what is held, in time, until cancelled."""
        extended = True
        while True:
            await self._some.wait()
            await asyncio.sleep(self._seconds / (_OFTEN if extended else _OFTENER))
            self._drop("it was not extended in time" + (": is the event loop blocked?" if extended else ""))
            extended = await self._extend()

    async def _extend(self) -> bool:
        """Extend what is held; False if the store does not answer."""
        leases, now = list(self._held.values()), self._queue.now()
        until = now + self._seconds
        if not leases:
            return True
        try:
            # As long as the first of them lasts: the store may wait for a server that is away.
            async with asyncio.timeout(min(lease.until for lease in leases) - now):
                lost = await self._queue.store.renew([lease.job.row for lease in leases], now=now, until=until)
        except (JournalError, TimeoutError) as error:
            _log.warning("claims cannot be extended: %s", message_of(error) or "the store takes too long")
            return False
        epochs = {(row.id, row.epoch) for row in lost}
        for lease in leases:
            if (lease.job.id, lease.job.row.epoch) in epochs:
                lease.lose()
            else:
                lease.until = until
        return True

    def _drop(self, why: str) -> None:
        """Lose the claims whose time is over: another process may have them."""
        now = self._queue.now()
        for lease in list(self._held.values()):
            if lease.until <= now:
                _log.warning("the claim on job %s has expired: %s", lease.job.id, why)
                lease.lose()
                self.remove(lease)

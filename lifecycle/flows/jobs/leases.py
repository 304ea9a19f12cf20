"""`Leases`: the claims that a conductor has, kept as long as it works, whatever the jobs are at.

All are extended at once, three times in the time that they last. Where that is refused, or could not be done in time,
a claim is lost: whoever works for it is told, and stops.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from lifecycle._naming import words_of
from lifecycle.errors import JournalError

if TYPE_CHECKING:
    from lifecycle.flows.jobs.boards import Board
    from lifecycle.flows.jobs.jobs import Job

__all__ = ["Lease", "Leases"]

_log = logging.getLogger("lifecycle.flows")


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

    def __init__(self, board: Board, seconds: float) -> None:
        self._board, self._seconds = board, seconds
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
        while True:
            await self._some.wait()
            await asyncio.sleep(self._seconds / 3)
            await self._beat()

    async def _beat(self) -> None:
        leases = list(self._held.values())
        now = self._board.now()
        until = now + self._seconds
        try:
            # No longer than there is time: the store may wait for a server that is away.
            async with asyncio.timeout(min((lease.until for lease in leases), default=until) - now):
                lost = await self._board.store.renew([lease.job.row for lease in leases], now=now, until=until)
        except (JournalError, TimeoutError) as error:
            _log.warning("claims cannot be extended: %s", words_of(error) or "the store takes too long")
            self._lose(leases)
            return
        epochs = {(row.id, row.epoch) for row in lost}
        for lease in leases:
            if (lease.job.id, lease.job.row.epoch) in epochs:
                lease.lose()
            else:
                lease.until = until

    def _lose(self, leases: list[Lease]) -> None:
        """Those that have run out may be somebody else's."""
        now = self._board.now()
        for lease in leases:
            if lease.until <= now:
                lease.lose()

"""One who wants to lead, from the connection to its end: takes the lease when it is free, and keeps it while it can."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from lifecycle._async import wait_within
from lifecycle._util import reason_of
from lifecycle.bridges.buckets import ensure_bucket
from lifecycle.bridges.leases import Lease, unanswered
from lifecycle.bridges.vacancies import Vacancy
from lifecycle.errors import NotLeader

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.bridges.links import Link

__all__ = ["Candidate"]

_log = logging.getLogger("lifecycle.bridges")

#: How often in a lease it is renewed; and in how many parts of a lease one without an answer is tried again.
_RENEWALS, _TRIES = 3, 20


class Candidate:
    """Campaigns and holds, in turn; ``told`` gets the token when it leads, and 0 and the reason when no longer."""

    def __init__(self, link: Link, name: str, seconds: float, told: Callable[[int, str], None]) -> None:
        self.link = link
        self.lease: Final = Lease(link, name, seconds)
        self.vacancy: Final = Vacancy(self.lease.key.subject)
        self._name = name
        self._told = told
        self._stirred = asyncio.Event()
        self._ending = False

    async def prepare(self) -> None:
        """See that the server has what it takes.

        Raises:
            UnfitServer: when it cannot.
        """
        await ensure_bucket(self.link)
        await self.vacancy.listen(self.link)

    async def run(self) -> None:
        """Lead whenever it can be, until cancelled, or until it does not lead after `retire`."""
        while not self._ending:
            if await self._gained():
                self._told(self.lease.token, "")
                why = await self._held()
                self.lease.forget()
                self._told(0, why)
            elif not self._ending:
                await self.vacancy.wait()

    def stir(self) -> None:
        """The connection is back: see how things stand, whoever leads."""
        self.doubt()
        self.vacancy.stir()

    def doubt(self) -> None:
        """A write was refused: who leads finds out why."""
        self._stirred.set()

    def retire(self) -> None:
        """Lead no more after this time; the lease is kept as long as `run` runs."""
        self._ending = True
        self.vacancy.stir()

    async def _gained(self) -> bool:
        try:
            holder = await self.lease.take()
        except unanswered() as error:
            _log.debug("the leader %r cannot ask for its lease: %r", self._name, error)
            self.link.missed(reason_of(error))
            return False
        self.link.answered()
        self.vacancy.saw(holder)
        return self.lease.is_ours

    async def _held(self) -> str:
        """Renew as long as it goes; why it does not."""
        seconds = self.lease.seconds
        pause = seconds / _RENEWALS
        while True:
            await self._wait(min(pause, self.lease.left))
            if not self.lease.is_ours:
                return "it could not be renewed in time"
            try:
                # Whatever the server takes its time for: by then somebody has been told.
                async with asyncio.timeout(self.lease.left):
                    await self.lease.renew()
                self.link.answered()
                pause = seconds / _RENEWALS
            except NotLeader as error:
                return str(error)
            except unanswered() as error:
                _log.debug("the leader %r gets no answer: %r", self._name, error)
                self.link.missed(reason_of(error))
                pause = seconds / _TRIES

    async def _wait(self, seconds: float) -> None:
        if await wait_within(seconds, self._stirred):
            self._stirred.clear()

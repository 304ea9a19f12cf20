"""When it is worth asking whether a lease can be had: as soon as its holder gives it back, or falls silent.

Every write to the key of a lease is heard by whoever subscribes to it, and a holder writes three times in a lease. A
watch of the bucket would tell the end of a lease as well; but it is a consumer on one node of a cluster, and gone with
that without a word, while a subscription comes back with the connection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lifecycle._async import wait_within
from lifecycle.bridges.lease_keys import OPERATION, Holder, read_holder

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from lifecycle.bridges.links import Link

__all__ = ["Vacancy"]

_NOBODY = Holder("", "", 0.0)

#: The part of a lease after which a holder who has said nothing may be dead: one renewal, and a little.
_SILENCE = 0.4

#: Seconds between two looks at the lease of one that is silent; the server ends leases once a second.
_LOOK = 0.25


class Vacancy:
    """Hears who holds the lease with the key ``subject``."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        #: Who has it, as far as is known.
        self.holder: Holder = _NOBODY
        # When the holder was last heard of.
        self._heard = 0.0
        self._stirred = asyncio.Event()

    async def listen(self, link: Link) -> None:
        """Hear what is written to the key, as long as ``link`` lives."""
        await link.client.subscribe(self.subject, cb=self._hear)  # pyright: ignore[reportUnknownMemberType]  # of nats-py

    def saw(self, holder: Holder) -> None:
        """This one has the lease now."""
        if holder.id != self.holder.id:
            self._heard = asyncio.get_running_loop().time()
        self.holder = holder

    def stir(self) -> None:
        """It is worth a look, whatever was heard."""
        self._stirred.set()

    async def wait(self) -> None:
        """Return when the lease may be free."""
        now = asyncio.get_running_loop().time
        pause = _LOOK
        while pause > 0 and not await wait_within(pause, self._stirred):
            pause = self._heard + self.holder.lease * _SILENCE - now()
        self._stirred.clear()

    async def _hear(self, message: Msg) -> None:
        if OPERATION in (message.headers or {}):
            self.holder = _NOBODY
            self._stirred.set()
            return
        self.holder = read_holder(message.data)
        self._heard = asyncio.get_running_loop().time()

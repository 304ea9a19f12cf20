"""A lease: one key of a bucket on the server, which one process has at a time, as long as it goes on renewing it.

The key ends by itself when it was not renewed in time. Of several who want it one gets it, and who was frozen meanwhile
is told that it is over, as every write names the revision that it follows (``lease_keys``).
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lifecycle.bridges.lease_keys import Holder, LeaseKey, Refused, read_holder
from lifecycle.errors import NotLeader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lifecycle.bridges.links import Link

__all__ = ["Lease", "unanswered"]

#: The part of a lease that its holder gives up, so that it has let go when the server gives it to another.
_MARGIN = 0.1

#: Seconds for the last word.
_RELEASE = 1.0


class Lease:
    """A lease of ``seconds``, as one who wants it or has it sees it.

    Every write waits for the one before it: each has to name the revision that the one before has made.
    """

    def __init__(self, link: Link, name: str, seconds: float) -> None:
        self.seconds = seconds
        self.me: Final = Holder(uuid.uuid4().hex, f"{socket.gethostname()}:{os.getpid()}", seconds)
        self.key: Final = LeaseKey(link, name, self.me)
        #: The revision with which it was gained: the fencing token.
        self.token: int = 0
        # The last revision that we know to be ours, 0 for none; and until when it is ours by our own clock.
        self._revision = 0
        self._until = -math.inf
        self._turn = asyncio.Lock()

    @property
    def is_ours(self) -> bool:
        """Whether nobody else can have it now, as far as clocks can tell."""
        return self.left > 0

    @property
    def left(self) -> float:
        """Seconds that it is ours by our own clock."""
        return self._until - asyncio.get_running_loop().time() if self._revision else 0.0

    async def take(self) -> Holder:
        """Get it if nobody has it; who has it then.

        Raises:
            Exception: one of `unanswered`; it may be ours all the same, and is found so the next time.
        """
        async with self._turn:
            entry = await self.key.read()
            if entry.holder is not None and not self.key.is_mine(entry):
                return entry.holder
            sent = asyncio.get_running_loop().time()
            try:
                self._revision = await self.key.write(entry.revision)
            except Refused:
                return (await self.key.read()).holder or read_holder(None)
            self.token, self._until = self._revision, self._end(sent)
            return self.me

    async def renew(self) -> None:
        """Have it for its whole time from now on.

        Raises:
            NotLeader: when somebody else has it, or nobody.
            Exception: one of `unanswered`.
        """
        async with self._turn:
            sent = asyncio.get_running_loop().time()
            self._revision = await self._insist(lambda: self.key.write(self._revision))
            self._until = self._end(sent)

    async def put(self, key: str, value: bytes, token: int) -> int:
        """Write ``value`` if the lease is that of ``token`` in that very moment, by the server's account.

        Raises:
            NotLeader: when it is not.
            Unpublishable: for too long a key, and more than a message may hold.
            Exception: one of `unanswered`.
        """
        async with self._turn:
            # It may have been lost and gained again since, and another have led in between.
            if not self.is_ours or self.token != token:
                raise NotLeader(f"{key!r} was not written: this process does not lead, or no longer")
            return await self._insist(lambda: self.key.put(key, value, self._revision))

    def forget(self) -> None:
        """It is not ours any more, or not sure to be."""
        self._revision, self._until = 0, -math.inf

    async def release(self) -> None:
        """Give it back, so that another has it at once; where that cannot be said, it ends by itself."""
        try:
            with suppress(*unanswered(), Refused):
                async with asyncio.timeout(_RELEASE), self._turn:
                    await self.key.give_back()
        finally:
            self.forget()

    async def _insist(self, write: Callable[[], Awaitable[int]]) -> int:
        """What ``write`` returns; one that is refused may be so because the answer to another of ours was lost.

        Raises:
            NotLeader: when the lease is not ours.
            TimeoutError: when another write is still under way.
        """
        with suppress(Refused):
            return await write()
        await self._find_ours()
        with suppress(Refused):
            return await write()
        raise TimeoutError("another write came first")

    async def _find_ours(self) -> None:
        """Learn the revision of a write of ours whose answer was lost."""
        entry = await self.key.read()
        if not self.key.is_mine(entry) or entry.revision < self._revision:
            self.forget()
            raise NotLeader(f"{entry.holder.place if entry.holder else 'nobody'} has the lease")
        if entry.revision == self._revision:
            raise TimeoutError("another write is still under way")
        self._revision = entry.revision

    def _end(self, sent: float) -> float:
        """When what was sent at ``sent`` is over for us: the server counts from a later moment."""
        return sent + self.seconds * (1 - _MARGIN)


def unanswered() -> tuple[type[Exception], ...]:
    """What says nothing about the lease: the server cannot be talked to, or is not ready."""
    from nats.errors import Error as NatsError

    return (NatsError, TimeoutError, OSError)

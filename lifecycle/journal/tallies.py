"""`Tally`: how many there are of something that is kept on disk, for who must not wait for the disk to know it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Tally"]

_log = logging.getLogger("lifecycle.journal")

#: Seconds between two counts, however much happens.
_EVERY = 1.0


class Tally:
    """The last count of what ``count`` counts, made anew soon after `renew`; ``changed`` is called if it differs."""

    def __init__(self, count: Callable[[], Awaitable[dict[str, int]]], changed: Callable[[], object]) -> None:
        self._count, self._changed = count, changed
        #: How many of each; empty before the first count.
        self.figures: dict[str, int] = {}
        # How often it was opened and not yet closed.
        self._users = 0
        self._counting: asyncio.Task[None] | None = None
        # Whether something has happened since the last count began.
        self._stale = False

    def open(self) -> None:
        """Count from now on."""
        self._users += 1
        self.renew()

    async def close(self) -> None:
        """Count no more."""
        self._users -= 1
        if self._counting is not None and not self._users:
            # Whoever opens it in the meantime begins anew.
            counting, self._counting = self._counting, None
            counting.cancel()
            await asyncio.wait([counting])

    def renew(self) -> None:
        """Something has happened; nothing is done about it unless this is open."""
        self._stale = True
        if self._users and (self._counting is None or self._counting.done()):
            self._counting = asyncio.get_running_loop().create_task(self._go_on(), name="count")

    async def _go_on(self) -> None:
        while self._stale:
            self._stale = False
            await self._look()
            await asyncio.sleep(_EVERY)

    async def _look(self) -> None:
        try:
            figures = await self._count()
        except Exception as error:  # noqa: BLE001  # who has to write there says so; until then what was known stands
            _log.debug("it could not be counted: %s", error)
            return
        if figures != self.figures:
            self.figures = figures
            self._changed()

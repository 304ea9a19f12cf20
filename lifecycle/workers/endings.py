"""How an end that was asked for is brought about: ask, wait, force, wait a little, and at last give up."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol

from lifecycle.workers.graces import Grace

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Ending"]

_log = logging.getLogger("lifecycle.workers")


class _Terminate(Protocol):
    async def __call__(self, *, force: bool) -> None: ...


class Ending:
    """The end of the worker ``name``, from the moment that somebody wants it.

    ``terminate`` asks it, and forces it; then it has ``last_wait`` seconds before it is abandoned, which is logged with
    its ``whereabouts``.
    """

    __slots__ = ("_last_wait", "_name", "_terminate", "_whereabouts", "abandoned", "asked", "forced", "grace")

    def __init__(self, name: str, terminate: _Terminate, whereabouts: Callable[[], str], *, last_wait: float) -> None:
        self._name = name
        self._terminate = terminate
        self._whereabouts = whereabouts
        self._last_wait = last_wait
        self.grace = Grace()
        #: How far it went.
        self.asked = self.forced = self.abandoned = False

    async def of_start(self, starting: asyncio.Future[Any]) -> None:
        """Wait for the end of a start that was cancelled."""
        self.abandoned = not await self.grace.wait(starting)

    async def of_life(self, life: asyncio.Future[Any]) -> None:
        """Wait for the end of ``life``, and see to it; what is still alive after that is abandoned."""
        if not (self.asked or life.done()):
            await self._try_terminate(force=False)
            self.asked = True
        if await self.grace.wait(life):
            return
        self.forced = True
        await self._try_terminate(force=True)
        _, alive = await asyncio.wait({life}, timeout=self._last_wait)
        if alive:
            self.abandoned = True
            _log.error("%r cannot be ended and is left to itself: %s", self._name, self._whereabouts())

    def now(self, ask: Callable[[], None], overdue: Callable[[], None]) -> None:
        """Have it asked by ``ask``, which does not wait; ``overdue`` is called once it has had its time.

        Where it obeys there is no need of more, which makes the end of thousands cheap.
        """
        self.asked = True
        try:
            ask()
        except Exception:  # noqa: BLE001  # logged; the end must come all the same
            self._complain(force=False)
        self.grace.then(overdue)

    async def _try_terminate(self, *, force: bool) -> None:
        try:
            await self._terminate(force=force)
        except Exception:  # noqa: BLE001  # logged; the end must come all the same
            self._complain(force=force)

    def _complain(self, *, force: bool) -> None:
        _log.exception("%r could not be %s", self._name, "killed" if force else "asked to stop")

"""How an end that was asked for is brought about: ask, wait, force, wait a little, and at last give up.

How long it may take is a deadline that only ever comes nearer, also while somebody waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Any, Protocol

from lifecycle import hooks
from lifecycle.workers.model import FAILURES, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.workers.model import Exit

__all__ = ["Ending", "announce", "ask", "sooner"]

_log = logging.getLogger("lifecycle.workers")


class _Grace:
    """A period in which something may end by itself; it never is over until it was shortened."""

    __slots__ = ("_timeout", "_until")

    def __init__(self) -> None:
        # By the loop's clock.
        self._until = math.inf
        self._timeout: asyncio.Timeout | None = None

    def shorten(self, seconds: float) -> None:
        """Have it end ``seconds`` from now, unless it ends earlier anyway."""
        self._until = min(self._until, asyncio.get_running_loop().time() + seconds)
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(self._deadline)

    async def wait(self, future: asyncio.Future[Any]) -> bool:
        """Wait for ``future``, at most to the end of the period; whether it is done."""
        try:
            async with asyncio.timeout_at(self._deadline) as self._timeout:
                await asyncio.wait({future})
        except TimeoutError:
            pass
        finally:
            self._timeout = None
        return future.done()

    @property
    def _deadline(self) -> float | None:
        """For asyncio, which has None for never."""
        return None if self._until == math.inf else self._until


class _Ask(Protocol):
    def __call__(self, *, force: bool) -> None: ...


class _Terminate(Protocol):
    async def __call__(self, *, force: bool) -> None: ...


class Ending(_Grace):
    """The end of the worker ``name``, from the moment that somebody wants it.

    ``terminate`` asks it, unless it was ``asked`` before, and forces it; then it has ``last_wait`` seconds before it is
    abandoned, which is logged with its ``whereabouts``.
    """

    __slots__ = ("_last_wait", "_name", "_terminate", "_whereabouts", "abandoned", "asked", "forced")

    asked: bool
    forced: bool
    abandoned: bool

    def __init__(
        self, name: str, terminate: _Terminate, whereabouts: Callable[[], str], *, last_wait: float, asked: bool
    ) -> None:
        super().__init__()
        self._name = name
        self._terminate = terminate
        self._whereabouts = whereabouts
        self._last_wait = last_wait
        #: How far it went.
        self.asked, self.forced, self.abandoned = asked, False, False

    async def of_all(
        self, starting: asyncio.Future[Any] | None, life: Callable[[], asyncio.Future[Any] | None]
    ) -> None:
        """Wait for the end of a start that was cancelled, and see to that of the life, where it has begun.

        When the loop is closed, this is cancelled, as they are: it waits a moment for them, since somebody may wait
        for the end, and goes.
        """
        try:
            if starting is not None and not starting.done():
                self.abandoned = not await self.wait(starting)
            if (begun := life()) is not None:
                await self.of_life(begun)
        except asyncio.CancelledError:
            if left := {each for each in (starting, life()) if each is not None and not each.done()}:
                _, alive = await asyncio.wait(left, timeout=self._last_wait)
                self.abandoned = bool(alive)
            raise

    async def of_life(self, life: asyncio.Future[Any]) -> None:
        """Wait for the end of ``life``, and see to it; what is still alive after that is abandoned."""
        if not (self.asked or life.done()):
            await self._try_terminate(force=False)
            self.asked = True
        if await self.wait(life):
            return
        self.forced = True
        await self._try_terminate(force=True)
        _, alive = await asyncio.wait({life}, timeout=self._last_wait)
        if alive:
            self.abandoned = True
            _log.error("%r cannot be ended and is left to itself: %s", self._name, self._whereabouts())

    async def _try_terminate(self, *, force: bool) -> None:
        try:
            await self._terminate(force=force)
        except Exception:  # noqa: BLE001  # logged; the end must come all the same
            _complain(self._name, force=force)


def ask(name: str, asking: _Ask) -> None:
    """Ask the worker ``name`` to end, by something that takes no waiting."""
    try:
        asking(force=False)
    except Exception:  # noqa: BLE001  # as above
        _complain(name, force=False)


def sooner(timer: asyncio.TimerHandle | None, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle | None:
    """``timer``, or in its place one that calls ``call`` in ``seconds``, if that is sooner; there is none for never."""
    if seconds == math.inf:
        return timer
    loop = asyncio.get_running_loop()
    at = loop.time() + seconds
    if timer is not None:
        if timer.when() <= at:
            return timer
        timer.cancel()
    return loop.call_at(at, call)


def announce(worker: object, ended: Exit) -> None:
    """Tell of an end that was not a good one."""
    if ended.status in FAILURES:
        hook = hooks.worker_killed if ended.status is Status.KILLED else hooks.worker_failed
        hook.announce(worker, worker=worker, exit=ended)


def _complain(name: str, *, force: bool) -> None:
    _log.exception("%r could not be %s", name, "killed" if force else "asked to stop")

"""`Timers`: the timer of a `Flows` that continues workflows that wait, when they are due."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from lifecycle._async import start_task
from lifecycle._util import reason_of
from lifecycle.backoff import Backoff
from lifecycle.errors import JournalError
from lifecycle.flows.stores.base import clock_of
from lifecycle.flows.stores.presence import WAKE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from lifecycle.flows.records import FlowRow
    from lifecycle.flows.stores.base import Store
    from lifecycle.flows.stores.presence import Presence

__all__ = ["Timers"]

_log = logging.getLogger("lifecycle.flows")

#: The maximum number of seconds between two looks, in case a message is lost.
_LOOK = 30.0
#: The maximum number of workflows that are taken at the same time.
_AT_ONCE = 1000
#: Seconds until the first look, and until workflows are looked up again that could not be taken.
_AGAIN = 0.1
_TROUBLE = Backoff(initial=0.1, maximum=30.0)


class Timers:
    """Calls ``resume`` for each workflow that is due, and ``look`` every 30 seconds, from `know` to `close`.

    Between two looks there is a timer, and no task.
    """

    def __init__(
        self,
        store: Store,
        presence: Presence,
        resume: Callable[[FlowRow], Awaitable[None]],
        look: Callable[[], object],
    ) -> None:
        self._store, self._presence, self._resume, self._look = store, presence, resume, look
        # The names of the workflows that this process can run.
        self._names: set[str] = set()
        # The running look, and True if another one must follow.
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._failures = 0
        # True if the next look includes workflows that this process cannot run, those that were due at the last such
        # look, and the names of those that were logged.
        self._look_at_others = False
        self._overdue: set[tuple[str, int]] = set()
        self._logged: set[str] = set()
        # The timer for the next look, and for the next call of ``look``.
        self._next: asyncio.TimerHandle | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._silence: Callable[[], None] | None = None
        # The ids of the workflows that could not be continued since the last tick.
        self._broken: set[str] = set()
        #: True while no workflow may be continued.
        self.paused: bool = False

    def know(self, name: str) -> None:
        """Continue the workflows with this name from now on."""
        if self._silence is None:
            self._silence = self._presence.listen(WAKE, self.look_again)
            self._tick = asyncio.get_running_loop().call_later(_LOOK, self._ticked)
        if name not in self._names:
            # Several names usually follow each other.
            self._names.add(name)
            self._look_in(_AGAIN)

    def look_again(self) -> None:
        """Look for workflows that are due."""
        self._again = True
        if self._task is None and self._silence is not None and not self.paused:
            self._task = start_task(self._run(), name="timers of workflows")

    async def close(self) -> None:
        """Stop continuing workflows, once those that are being taken have started.

        If this is cancelled, it does not wait for them.
        """
        if self._silence is not None:
            self._silence()
        self._silence, self._again = None, False
        self._names.clear()
        for timer in (self._next, self._tick):
            if timer is not None:
                timer.cancel()
        if (task := self._task) is not None:
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                # The store does not respond.
                task.cancel()
                raise

    def _ticked(self) -> None:
        self._tick = asyncio.get_running_loop().call_later(_LOOK, self._ticked)
        self._look()
        self._look_at_others = True
        self._broken.clear()
        self.look_again()

    async def _run(self) -> None:
        wait = _LOOK
        try:
            while self._again:
                self._again = False
                wait = await self._continue_due()
        finally:
            self._task = None
        self._look_in(wait)

    def _look_in(self, seconds: float) -> None:
        if self._next is not None:
            self._next.cancel()
        if self._silence is not None:
            self._next = asyncio.get_running_loop().call_later(seconds, self.look_again)

    async def _continue_due(self) -> float:
        """Continue the workflows that are due, and return the seconds until the next one is."""
        clock = clock_of(self._store)
        try:
            rows = await self._store.due(self._names, now=clock(), limit=_AT_ONCE + len(self._broken))
            healthy = [row for row in rows if row.id not in self._broken][:_AT_ONCE]
            await self._resume_all(healthy)
            if len(healthy) == _AT_ONCE:
                return 0.0
            if self._look_at_others:
                self._look_at_others = False
                await self._log_overdue(clock())
            due = await self._next_due(clock() + _LOOK)
        except JournalError as error:
            _log.warning("cannot look for workflows that are due: %s", error)
            self._failures += 1
            return _TROUBLE.delay(self._failures - 1)
        self._failures = 0
        least = _AGAIN if rows else 0.0
        return _LOOK if due is None else min(_LOOK, max(least, due - clock()))

    async def _next_due(self, until: float) -> float | None:
        """Return when the next workflow that can continue is due, or None if that is after ``until``."""
        rows = await self._store.due(self._names, now=until, limit=1 + len(self._broken))
        return next((row.due for row in rows if row.id not in self._broken), None)

    async def _resume_all(self, rows: Sequence[FlowRow]) -> None:
        """Continue these workflows. Do not try again before the next tick to continue one that cannot continue.

        Raises:
            JournalError: if the store did not respond, after all workflows were tried.
        """
        errors = await asyncio.gather(*map(self._resume, rows), return_exceptions=True)
        for row, error in zip(rows, errors, strict=True):
            if isinstance(error, Exception) and not isinstance(error, JournalError):
                self._broken.add(row.id)
                _log.warning("flow %s cannot continue: %s", row.id, reason_of(error))
        if troubles := [error for error in errors if isinstance(error, JournalError)]:
            raise troubles[0]

    async def _log_overdue(self, now: float) -> None:
        """Log workflows with unknown names that have been due since the last call, once per name."""
        rows = await self._store.due(self._names | self._logged, now=now, limit=_AT_ONCE, others=True)
        before, self._overdue = self._overdue, {(row.id, row.epoch) for row in rows}
        for row in rows:
            if (row.id, row.epoch) in before and row.name not in self._logged:
                self._logged.add(row.name)
                _log.warning(
                    "workflow %r %r has been due for %g s, but no process continues it; pass %r to Flows.recover",
                    *(row.name, row.id, _LOOK, row.name),
                )

"""`Timers`: the looks of a `Flows` for workflows that are due, and for runs that no living process runs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from lifecycle._async import start_task
from lifecycle._util import reason_of
from lifecycle.backoff import Backoff
from lifecycle.errors import JournalError
from lifecycle.flows.stores.base import clock_of
from lifecycle.flows.stores.presence import GONE, WAKE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from lifecycle.flows.records import FlowRow
    from lifecycle.flows.stores.base import Store
    from lifecycle.flows.stores.presence import Presence

__all__ = ["Timers"]

_log = logging.getLogger("lifecycle.flows")

#: The maximum number of seconds between two looks for workflows that are due, in case a message is lost.
_LOOK = 30.0
#: The maximum number of workflows that are taken at the same time.
_AT_ONCE = 1000
#: Seconds until the first look, and until something is looked up again that could not be taken.
_AGAIN = 0.1
_TROUBLE = Backoff(initial=0.1, maximum=30.0)


class Runs(Protocol):
    """The runs of one `Flows` object."""

    async def take_and_run(self, row: FlowRow) -> None:
        """Take a flow and run it, unless another process takes it first."""
        ...

    async def find_left(self) -> tuple[list[FlowRow], bool]:
        """Return the known flows that no living process runs, and whether a process might have exited."""
        ...

    async def resume_interrupted(self) -> bool:
        """Continue the runs that the store has interrupted. Return False if there are none."""
        ...

    async def wake_known_parents(self) -> None:
        """Continue workflows that wait for children unknown here."""
        ...

    def wake(self) -> None:
        """Have all workflows look for signals, in case a message was lost."""
        ...

    def forget(self, id: str) -> None:  # noqa: A002  # the natural name
        """Remove a run that was left to other processes."""
        ...


class _Look:
    """A task that calls ``work`` when asked, and again after the number of seconds that ``work`` returns.

    Between two calls there is a timer, and no task. While ``work`` fails, the pauses become longer.
    """

    def __init__(self, what: str, work: Callable[[], Awaitable[float]]) -> None:
        self._what, self._work = what, work
        self._task: asyncio.Task[None] | None = None
        # True if another call must follow.
        self._asked = False
        self._next: asyncio.TimerHandle | None = None
        self._failures = 0
        #: True while ``work`` may be called.
        self.active: bool = False

    def ask(self) -> None:
        """Call ``work`` now, or once it may be called."""
        self._asked = True
        if self._task is None and self.active:
            self._task = start_task(self._run(), name=f"look for {self._what}")

    def ask_in(self, seconds: float) -> None:
        """Call ``work`` in this many seconds, unless that is planned to happen earlier."""
        loop = asyncio.get_running_loop()
        if self._next is not None:
            if self._next.when() <= loop.time() + seconds:
                return
            self._next.cancel()
        self._next = loop.call_later(seconds, self._fire)

    def _fire(self) -> None:
        self._next = None
        self.ask()

    async def _run(self) -> None:
        wait = 0.0
        try:
            while self._asked and self.active:
                self._asked = False
                self._drop_timer()
                wait = await self._try()
        finally:
            self._task = None
        if self.active:
            self.ask_in(wait)

    async def _try(self) -> float:
        try:
            wait = await self._work()
        except Exception as error:  # noqa: BLE001  # without another look, runs would be left for good
            _log.warning("cannot look for %s: %s", self._what, reason_of(error))
            self._failures += 1
            return _TROUBLE.delay(self._failures - 1)
        self._failures = 0
        return wait

    def _drop_timer(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def close(self) -> asyncio.Task[None] | None:
        """Call ``work`` no more, and return the task of a call that has not returned yet."""
        self.active = self._asked = False
        self._drop_timer()
        return self._task


class Timers:
    """Continues workflows that are due and runs that no living process runs, from the first `know` to `close`.

    Runs are looked for when a process exits, every few seconds if the store does not report exits, and with growing
    pauses after the store has interrupted runs of this process.
    """

    def __init__(self, store: Store, presence: Presence, runs: Runs) -> None:
        self._store, self._presence, self._runs = store, presence, runs
        # The names of the workflows that this process can run.
        self._names: set[str] = set()
        self._due = _Look("workflows that are due", self._continue_due)
        self._left = _Look("runs that no process runs", self._continue_left)
        # True if the next look includes workflows that this process cannot run, those that were due at the last such
        # look, and the names of those that were logged.
        self._look_at_others = False
        self._overdue: set[tuple[str, int]] = set()
        self._logged: set[str] = set()
        # True if parents that wait for unknown children must continue, because a process has exited.
        self._look_at_parents = False
        # How many looks in a row have found runs that the store had interrupted.
        self._interruptions = 0
        # The timer for the next look at everything.
        self._tick: asyncio.TimerHandle | None = None
        self._silences: list[Callable[[], None]] = []
        # The ids of the flows that could not be continued here, and for how many ticks they are left to others.
        self._broken: dict[str, int] = {}
        #: True while flows are suspended, so that none continue.
        self.paused: bool = False

    def know(self, name: str, *, waits: bool) -> None:
        """Continue the flows with this name from now on. ``waits`` is True for workflows, which may be due."""
        if not self._silences:
            listen = self._presence.listen
            self._silences = [listen(WAKE, self._due.ask), listen(GONE, self._look_after_exit)]
            self._tick = asyncio.get_running_loop().call_later(_LOOK, self._ticked)
            self._due.active = self._left.active = not self.paused
            self._left.ask_in(self._presence.look_every)
        if waits and name not in self._names:
            # Several names usually follow each other.
            self._names.add(name)
            self._due.ask_in(_AGAIN)

    def pause(self, *, paused: bool) -> None:
        """Stop or start to continue flows."""
        self.paused = paused
        self._due.active = self._left.active = bool(self._silences) and not paused
        self._due.ask()
        if self._left.active:
            self._left.ask_in(_AGAIN)

    def look_again(self) -> None:
        """Look for workflows that are due."""
        self._due.ask()

    def interrupted(self) -> None:
        """Look for runs soon, because the store has interrupted one."""
        if self._silences:
            self._left.ask_in(_TROUBLE.delay(self._interruptions))

    def leave(self, id: str) -> None:  # noqa: A002  # the natural name
        """Leave a workflow that does not match this code to other processes for about a minute and a half."""
        self._broken[id] = 3

    def try_all(self) -> None:
        """Try again to continue the flows that could not be continued here, because the code has changed."""
        if self._broken:
            self._broken.clear()
            self._due.ask()

    async def close(self) -> None:
        """Stop continuing flows, once those that are being taken have started.

        If this is cancelled, it does not wait for them.
        """
        for silence in self._silences:
            silence()
        self._silences = []
        self._names.clear()
        if self._tick is not None:
            self._tick.cancel()
        tasks = [task for look in (self._due, self._left) if (task := look.close()) is not None]
        try:
            if tasks:
                await asyncio.wait(tasks)
        except asyncio.CancelledError:
            # The store does not respond.
            for task in tasks:
                task.cancel()
            raise

    def _ticked(self) -> None:
        self._tick = asyncio.get_running_loop().call_later(_LOOK, self._ticked)
        self._runs.wake()
        self._look_at_others = self._look_at_parents = True
        expired = [id for id, ticks in self._broken.items() if ticks == 1]  # noqa: A001  # the natural name
        self._broken = {id: ticks - 1 for id, ticks in self._broken.items() if ticks > 1}  # noqa: A001  # the natural name
        for id in expired:  # noqa: A001  # the natural name
            self._runs.forget(id)
        self._due.ask()

    def _look_after_exit(self) -> None:
        self._look_at_parents = True
        # The process may have stored workflows that are due before the next look.
        self._due.ask()
        self._left.ask()

    # -- workflows that are due ----------------------------------------------------------------------------------------

    async def _continue_due(self) -> float:
        """Continue the workflows that are due, and return the seconds until the next one is."""
        if not self._names:
            return _LOOK
        clock = clock_of(self._store)
        rows = await self._store.due(self._names, now=clock(), limit=_AT_ONCE + len(self._broken))
        healthy = [row for row in rows if row.id not in self._broken][:_AT_ONCE]
        await self._continue_all(healthy)
        if len(healthy) == _AT_ONCE:
            return 0.0
        if self._look_at_others:
            self._look_at_others = False
            await self._log_overdue(clock())
        due = await self._next_due(clock() + _LOOK)
        least = _AGAIN if rows else 0.0
        return _LOOK if due is None else min(_LOOK, max(least, due - clock()))

    async def _next_due(self, until: float) -> float | None:
        """Return when the next workflow that can continue is due, or None if that is after ``until``."""
        rows = await self._store.due(self._names, now=until, limit=1 + len(self._broken))
        return next((row.due for row in rows if row.id not in self._broken), None)

    async def _continue_all(self, rows: Sequence[FlowRow]) -> None:
        """Continue these flows. Do not try again before the next tick to continue one that cannot continue.

        Raises:
            JournalError: if the store did not respond, after all flows were tried.
        """
        if self.paused:
            # The flows were suspended while the store was read.
            return
        errors = await asyncio.gather(*map(self._runs.take_and_run, rows), return_exceptions=True)
        for row, error in zip(rows, errors, strict=True):
            if isinstance(error, Exception) and not isinstance(error, JournalError):
                self._broken[row.id] = 1
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

    # -- runs that no process runs -------------------------------------------------------------------------------------

    async def _continue_left(self) -> float:
        """Continue the runs that no living process runs, and return the seconds until the next look."""
        found, unsure = await self._runs.find_left()
        rows = [row for row in found if row.id not in self._broken]
        if rows:
            _log.info("%d runs continue here, because their processes have exited: %s", len(rows), _some(rows))
        for start in range(0, len(rows), _AT_ONCE):
            await self._continue_all(rows[start : start + _AT_ONCE])
        interrupted = not self.paused and await self._runs.resume_interrupted()
        self._interruptions = self._interruptions + 1 if interrupted else 0
        if self._look_at_parents:
            self._look_at_parents = False
            await self._runs.wake_known_parents()
        return _AGAIN if unsure else self._presence.look_every


def _some(rows: Sequence[FlowRow]) -> str:
    names = ", ".join(f"{row.name} {row.id!r}" for row in rows[:3])
    return names if len(rows) <= 3 else f"{names}, …"  # noqa: PLR2004  # as many as are named

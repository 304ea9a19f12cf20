"""`Schedules`: tasks that start flows at the times of cron expressions, once for all processes with the same store."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from lifecycle._async import start_task, wall_clock
from lifecycle._cron import LATE
from lifecycle._util import reason_of
from lifecycle.backoff import Backoff
from lifecycle.errors import FlowError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from lifecycle._cron import Cron
    from lifecycle.flows.records import FlowRow
    from lifecycle.flows.stores.base import Store

__all__ = ["Schedule", "Schedules"]

_log = logging.getLogger("lifecycle.flows")

#: The maximum number of missed times that are caught up on.
_MOST = 100
#: The maximum number of seconds between reads of the system clock, which can be adjusted.
_LOOK = 30.0
_TROUBLE = Backoff(initial=1.0, maximum=60.0)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A flow to start, and the times of a cron expression."""

    #: The name that the store knows the schedule by. The ids of the flows begin with it.
    name: str
    cron: Cron
    catch_up: str
    #: Returns the row of a new flow with the given id.
    row: Callable[[str], FlowRow]

    def due(self, last: float, now: float) -> list[float]:
        """Return the times after ``last`` until ``now`` at which a flow must be started, oldest first."""
        times = list(islice(self._latest(last, now), _MOST + 1))[::-1]
        if len(times) > _MOST and self.catch_up == "all":
            _log.warning("schedule %s missed more than %d times; only the last %d are started", self.name, _MOST, _MOST)
            del times[0]
        if self.catch_up == "all":
            return times
        on_time = [each for each in times if now - each <= LATE]
        return on_time or (times[-1:] if self.catch_up == "once" else [])

    def next(self, after: float) -> float:
        """Return the first time after ``after``."""
        return self.cron.next(self._date(after)).timestamp()

    def _latest(self, last: float, now: float) -> Iterator[float]:
        """Yield the times after ``last`` until ``now``, the latest first."""
        times = (each.timestamp() for each in self.cron.before(self._date(now + 1)))
        return takewhile(lambda time: time > last, (time for time in times if time <= now))

    def _date(self, timestamp: float) -> datetime:
        return datetime.fromtimestamp(timestamp, self.cron.timezone)


class Schedules:
    """The schedules of one `Flows` object, each with a task that runs until `close`.

    ``start`` starts a flow whose row was created for this process.
    """

    def __init__(self, store: Store, start: Callable[[FlowRow], Awaitable[object]]) -> None:
        self._store, self._start = store, start
        # The tasks, by the name of the schedule.
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def add(self, schedule: Schedule) -> None:
        """Start flows at the times of ``schedule``.

        Raises:
            FlowError: if there is a schedule with the same name.
        """
        if schedule.name in self._tasks:
            raise FlowError(f"there is already a schedule {schedule.name!r}; pass another id for this one")
        self._tasks[schedule.name] = start_task(self._run(schedule), name=f"schedule {schedule.name}")

    async def close(self) -> None:
        """Start no more flows."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, schedule: Schedule) -> None:
        clock, failures = wall_clock(), 0
        done = 0.0
        while True:
            try:
                if done > clock() + LATE:
                    # The clock has been set back.
                    done = 0.0
                last = max(done, await self._last(schedule, clock()))
                done = await self._start_due(schedule, last, clock())
                failures = 0
            except Exception as error:  # noqa: BLE001  # the next attempt may succeed
                _log.warning("schedule %s cannot start its flow: %s", schedule.name, reason_of(error))
                await asyncio.sleep(_TROUBLE.delay(failures))
                failures += 1
                continue
            await _wait_until(schedule.next(done), clock)

    async def _last(self, schedule: Schedule, now: float) -> float:
        """Return the stored time of the last start. A time in the future comes from a wrong clock, so replace it."""
        last = await self._store.scheduled(schedule.name, now=now)
        if last <= now + LATE:
            return last
        _log.warning(
            "schedule %s was last started at %s, which is in the future, so a system clock was or is wrong; the "
            "schedule continues from now",
            schedule.name,
            _utc(last),
        )
        await self._store.reset_schedule(schedule.name, seen=last, now=now)
        return now

    async def _start_due(self, schedule: Schedule, last: float, now: float) -> float:
        """Start a flow for each time that is due after ``last``, and return the time up to which that is done."""
        for due in schedule.due(last, now):
            row = schedule.row(f"{schedule.name}/{_utc(due)}")
            if await self._store.start_scheduled(row, schedule.name, due=due):
                await self._start(row)
        return max(last, now)


def _utc(timestamp: float) -> str:
    # A damaged store may contain any number.
    last = datetime.max.replace(tzinfo=UTC).timestamp() - 1
    return f"{datetime.fromtimestamp(min(last, timestamp), UTC):%Y-%m-%dT%H:%M:%SZ}"


async def _wait_until(timestamp: float, clock: Callable[[], float]) -> None:
    """Wait until ``timestamp``, or until the clock has been set back."""
    longest = _LOOK if clock is time.time else math.inf
    now = clock()
    while now < timestamp:
        await asyncio.sleep(min(timestamp - now, longest))
        before, now = now, clock()
        if now < before - LATE:
            return

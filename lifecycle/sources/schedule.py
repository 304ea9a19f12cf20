"""Ticks at the times of a cron expression."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import random
import time
from collections import deque
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from lifecycle._async import wall_clock
from lifecycle._cron import LATE, Cron
from lifecycle._durations import in_seconds
from lifecycle.errors import Dropped
from lifecycle.events import TickEvent
from lifecycle.events.sources import Source

if TYPE_CHECKING:
    from lifecycle._durations import Duration
    from lifecycle.control import Delivery, Emit

__all__ = ["ScheduleSource"]

SECOND = timedelta(seconds=1)

#: The maximum number of seconds between reads of the system clock, which can be adjusted, and which keeps running while
#: the machine sleeps.
_LOOK = 30.0


class ScheduleSource(Source):
    """Sends a `TickEvent` at each time of a cron expression.

    An event's ``time`` is its scheduled time, in the schedule's time zone. When clocks go forward, a tick in the
    skipped hour is sent right after that hour. When they go back, a tick at a fixed hour is sent only once, as in
    Debian's cron.

    A tick is missed if the program was not running when the tick was due, or if the tick was more than a minute late,
    for example because the machine was asleep. ``catch_up`` determines what happens to missed ticks. With a ``state``
    file, a tick is recorded as done only once its handler has finished. If a crash interrupts the handler, the tick is
    sent again.

    Args:
        expression: Five fields (minute, hour, day of month, month, day of week), six fields with seconds first, or one
            of ``@hourly``, ``@daily``, ``@midnight``, ``@weekly``, ``@monthly``, ``@yearly`` and ``@annually``.
        name: The name of the ticks. Their topic is ``tick/<name>``.
        timezone: A name such as ``"Europe/Berlin"``, or a `datetime.tzinfo`. By default, the system's time zone.
        catch_up: The policy for missed ticks: ``"none"`` skips them, ``"once"`` sends only the last one, and ``"all"``
            sends each of them.
        state: A file that stores the time of the last completed tick. Without it, only ticks missed while the program
            is running can be caught up on.
        jitter: The maximum random delay of each tick, in seconds.

    Raises:
        ValueError: if the expression, the time zone or another setting is invalid, or if the expression never matches.
    """

    def __init__(
        self,
        expression: str,
        *,
        name: str = "schedule",
        timezone: str | tzinfo | None = None,
        catch_up: Literal["none", "once", "all"] = "none",
        state: str | os.PathLike[str] | None = None,
        jitter: Duration = 0.0,
    ) -> None:
        self._cron = Cron(expression, timezone, catch_up)
        self.expression: str = expression
        self.name: str = name
        self.timezone: tzinfo = self._cron.timezone
        self.catch_up: str = catch_up
        self.jitter: float = in_seconds("jitter", jitter, least=0, finite=True)
        self._state = None if state is None else Path(state)
        # The time of the last tick that was sent or skipped. None before the first run.
        self._last: datetime | None = None
        # Ticks that were sent and whose deliveries may not have ended, oldest first.
        self._sent: deque[tuple[datetime, Delivery]] = deque()

    def __repr__(self) -> str:
        return f"ScheduleSource({self.expression!r}, name={self.name!r})"

    async def __aenter__(self) -> Self:
        self._last = self._last or await asyncio.to_thread(self._restored, self._now())
        return self

    async def run(self, emit: Emit) -> None:
        """Send ticks until cancelled. The router calls this."""
        last = self._last or self._now()
        for count in itertools.count(1):
            self._last = last = await self._due(last)
            self._sent.append((last, await emit(TickEvent(last, count, self.name))))

    async def settle(self) -> None:
        """Store the last completed tick. The router calls this once every handler has finished."""
        await self._record(stopped=True)

    async def _due(self, last: datetime) -> datetime:
        """Wait for the next tick after ``last`` that should be sent, and return its time."""
        while True:
            tick, delay = self._cron.next(last), random.uniform(0, self.jitter)  # noqa: S311  # it only spreads load
            await self._reached(tick.timestamp() + delay)
            now = self._now()
            if self.catch_up == "all" or (now - tick).total_seconds() <= LATE + delay:
                return tick
            last = next(self._cron.before(now + SECOND))
            if self.catch_up == "once" or (now - last).total_seconds() <= LATE:
                return last

    async def _reached(self, timestamp: float) -> None:
        now = wall_clock()
        # Check the time periodically, because the system clock may be adjusted, and the loop's clock stops while the
        # machine sleeps.
        longest = _LOOK if now is time.time else math.inf
        while (left := timestamp - now()) > 0:
            await asyncio.sleep(min(left, longest))
            await self._record()

    def _now(self) -> datetime:
        return datetime.fromtimestamp(wall_clock()(), self.timezone)

    async def _record(self, *, stopped: bool = False) -> None:
        """Store the time up to which all ticks have been completed.

        If the router has ``stopped``, dropped ticks are not considered completed.
        """
        done = None
        while self._sent and self._sent[0][1].done:
            if stopped and isinstance(self._sent[0][1].error, Dropped):
                break
            done, _ = self._sent.popleft()
        if done is not None and self._state is not None:
            await asyncio.to_thread(self._store, done)

    def _store(self, done: datetime) -> None:
        assert self._state is not None, "only a schedule with a state file stores it"
        fresh = self._state.with_name(f"{self._state.name}.new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump({"name": self.name, "last": done.isoformat()}, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._state)

    def _restored(self, now: datetime) -> datetime:
        """Return the time of the last completed tick, or ``now`` if there is none yet."""
        if self._state is None:
            return now
        try:
            stored = json.loads(self._state.read_text(encoding="utf-8"))
            name, last = stored["name"], datetime.fromisoformat(stored["last"])
        except FileNotFoundError:
            self._store(now)
            return now
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(
                f"{self._state} is not a valid schedule state file ({error!r}); delete it to start without one"
            ) from error
        if name != self.name:
            raise ValueError(f"{self._state} belongs to the schedule {name!r}; use a separate file for {self.name!r}")
        return min(last.astimezone(self.timezone), now)

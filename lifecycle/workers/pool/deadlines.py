"""The deadlines of all calls of a pool, with one timer for them all: most calls end long before theirs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Deadlines", "Due"]


class Due(Protocol):
    """What has a deadline."""

    #: Seconds that it was given; `Deadlines` uses it as it likes.
    seconds: float
    #: The loop's time when they are over.
    until: float

    def overdue(self) -> None:
        """Its time is up; called once, unless it was discarded before."""
        ...


class Deadlines:
    """Tells each that was added when its time is up.

    To add and to discard take the same time however many there are, and set no timer but for the first.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # Those that were given the same time are in one row, in the order in which it is up.
        self._rows: dict[float, dict[Due, None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, due: Due) -> None:
        """Tell ``due`` at its time."""
        row = self._rows.get(due.seconds)
        if row is None:
            row = self._rows[due.seconds] = {}
        elif next(reversed(row)).until > due.until:
            # It began before others and comes after them; it gets a row of its own.
            due.seconds = -due.until
            row = self._rows.setdefault(due.seconds, {})
        row[due] = None
        if self._timer is None or due.until < self._timer.when():
            self._wake_at(due.until)

    def discard(self, due: Due) -> None:
        """Leave ``due`` alone; any number of times. A timer that was set for it finds nothing to do."""
        if (row := self._rows.get(due.seconds)) is not None:
            row.pop(due, None)
            if not row:
                # A caller that passes on what is left of its own deadline never gives the same seconds twice.
                del self._rows[due.seconds]

    def close(self) -> None:
        """Tell nobody any more."""
        self._rows.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _wake_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._look, when)

    def _look(self, when: float) -> None:
        self._timer = None
        # A timer may fire a little early, by the resolution of the clock.
        for due in list(self._over(max(when, self._loop.time()))):
            self.discard(due)
            due.overdue()
        firsts = [next(iter(row)).until for row in self._rows.values()]
        if firsts and self._timer is None:
            self._wake_at(min(firsts))

    def _over(self, now: float) -> Iterator[Due]:
        for row in self._rows.values():
            for due in row:
                if due.until > now:
                    break
                yield due

"""The time that a shutdown has: how much is left, and what happens when it is over, though the loop may be blocked."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from lifecycle.runtime.force import Alarm, dump_stacks, force_exit
from lifecycle.runtime.signals import signal_registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.runtime.lives import Life

__all__ = ["Deadline"]


class Deadline:
    """The one under which everything ends; every other time-out of a shutdown is cut to what is left of it."""

    def __init__(self, life: Life) -> None:
        self._life = life
        # When the process is ended by force, by the loop's clock.
        self._at = math.inf
        self._alarms: list[Alarm] = []
        # Whoever draws the first number dumps: the loop, or the alarm where that is blocked.
        self._dumps = itertools.count()

    def set(self) -> None:
        """Let the time run from now on; safe in threads and in signal handlers."""
        self._at = self._life.loop.time() + self._life.settings.exit_timeout
        self._alarms.append(Alarm(self._life.settings.exit_timeout, self._force))

    def left(self) -> float:
        """Seconds until the process is ended by force."""
        return max(0.0, self._at - self._life.loop.time())

    def left_for_work(self) -> float:
        """Seconds that routers, mains, workers and tasks may still take: a fifth of all is kept for the hooks."""
        whole = self._life.settings.exit_timeout
        return math.inf if math.isinf(whole) else max(0.0, self.left() - whole / 5)

    def expect_end(self) -> Callable[[], None]:
        """From now on it should take ``shutdown_timeout``; then stacks are dumped. Returns what calls that off."""
        seconds = self._life.settings.shutdown_timeout
        timer = self._life.loop.call_later(seconds, self._dump)
        # For a loop that is blocked. It also goes on where the loop ends and its threads do not.
        self._alarms.append(Alarm(seconds, self._dump))
        return timer.cancel

    def close(self) -> None:
        """It has ended: call off what would happen if it did not."""
        while self._alarms:
            self._alarms.pop().cancel()

    def _dump(self) -> None:
        if next(self._dumps) == 0:
            seconds = self._life.settings.shutdown_timeout
            dump_stacks(self._life.loop, f"not stopped after {seconds:g} s; what still runs:")

    def _force(self) -> None:
        force_exit(signal_registry(), self._life.lifetime, f"not stopped within {self._life.settings.exit_timeout:g} s")

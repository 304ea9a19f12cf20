"""From Ctrl+C to force exit: which signal means what. Sums only; nothing here touches the system."""

from __future__ import annotations

import math
import signal
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lifecycle.runtime.records import Settings

__all__ = ["Escalation", "Verdict"]


_TICK = 1e-6


class Verdict(Enum):
    """What a signal leads to."""

    #: Nothing more than that it was counted.
    COUNT = auto()
    #: It is told to the routers, and the program goes on.
    CAPTURE = auto()
    #: The shutdown begins.
    STOP = auto()
    #: The process ends at once.
    FORCE = auto()


class Escalation:
    """Counts the signals of a series and judges each.

    A series ends after ``reset_after`` seconds without a signal, but never once the program is stopping.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._last = -math.inf
        # Whether a router took a SIGINT of this series: it may need two of its own, and the next ones force.
        self._taken = False
        #: Signals in the present series.
        self.count: int = 0

    @property
    def limit(self) -> int:
        """The number in the series at which the process is ended by force; 0: never."""
        patience = self._settings.force_exit
        if patience == 0:
            return 0
        if self._taken or self._settings.cancel_on_interrupt is False:
            return patience + 2
        return max(patience, 2)

    def heed(self, signum: int, *, routed: bool, stopping: bool, now: float) -> Verdict:
        """Count a signal that came at ``now``; ``routed``: a running router wants this SIGINT."""
        # Timers fire up to a tick early: a signal after just that pause begins a series.
        if not stopping and now - self._last >= self._settings.reset_after - _TICK:
            self.reset()
        self._last = now
        self.count += 1
        if not stopping and signum != signal.SIGINT:
            return Verdict.STOP
        captured = not stopping and self._captures(routed=routed)
        self._taken |= captured and routed
        if 0 < self.limit <= self.count:
            return Verdict.FORCE
        if captured:
            return Verdict.CAPTURE
        return Verdict.COUNT if stopping else Verdict.STOP

    def reset(self) -> None:
        """Begin a new series."""
        self.count = 0
        self._taken = False

    def _captures(self, *, routed: bool) -> bool:
        wanted = self._settings.cancel_on_interrupt
        if wanted is not None:
            return not wanted
        return routed or self._settings.force_exit >= 2  # noqa: PLR2004  # from 2 on, the first asks and the next force

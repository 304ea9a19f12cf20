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
        # How many of the counted presses have been handled: one at most.
        self._handled = 0
        #: Signals in the present series, without the presses that were handled before the last one.
        self.count: int = 0

    def limit(self, *, routed: bool = False) -> int:
        """The number in the series at which the process is ended by force; 0: never.

        ``routed``: a running router would take a SIGINT now.
        """
        patience, wanted = self._settings.force_exit, self._settings.cancel_on_interrupt
        if patience == 0:
            return 0
        if self._taken or wanted is False or (wanted is None and routed):
            return patience + 2
        return max(patience, 2)

    def heed(self, signum: int, *, routed: bool, heard: bool = False, stopping: bool, now: float) -> Verdict:
        """Count a signal that came at ``now``.

        ``routed``: a running router has a route for this SIGINT; ``heard``: one has a route for `InterruptEvent`.
        """
        # Timers fire up to a tick early: a signal after just that pause begins a series.
        if not stopping and now - self._last >= self._settings.reset_after - _TICK:
            self.reset()
        self._last = now
        self.count += 1
        if not stopping and signum != signal.SIGINT:
            return Verdict.STOP
        captured = not stopping and self._captures(routed=routed, heard=heard)
        self._taken |= captured and routed
        if 0 < self.limit() <= self.count:
            return Verdict.FORCE
        if captured:
            return Verdict.CAPTURE
        return Verdict.COUNT if stopping else Verdict.STOP

    def reset(self) -> None:
        """Begin a new series."""
        self.count = self._handled = 0
        self._taken = False

    def handled(self) -> None:
        """Note that a press was handled: of such presses only the last counts, as the first of the router's two."""
        self.count -= self._handled
        self._handled = min(1, self.count)

    def forgive(self) -> None:
        """Do not count a press at all, because it did what it was meant for."""
        self.count -= 1
        if self.count <= 0:
            self.reset()

    def _captures(self, *, routed: bool, heard: bool) -> bool:
        wanted = self._settings.cancel_on_interrupt
        if wanted is not None:
            return not wanted
        # From 2 on, the first press may ask for another; where nothing hears it, it begins the shutdown.
        return routed or (heard and self._settings.force_exit >= 2)  # noqa: PLR2004

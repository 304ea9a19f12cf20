"""The effect of the next Ctrl+C, SIGTERM or SIGHUP on a program, from a captured key press to a forced exit.

`Presses` is a state machine without I/O and without a clock. A program and its prompt share one.
"""

from __future__ import annotations

import math
import signal
from enum import Enum, auto

__all__ = ["Action", "Captor", "Presses"]

#: Timers may fire up to this many seconds early.
_TICK = 1e-6
#: A second SIGINT within this many seconds belongs to the same key press. A wrapper may forward a signal that the
#: terminal has already sent to us.
_ONE_PRESS = 0.05
#: A SIGTERM or SIGHUP within this many seconds of the previous signal belongs to the same request to stop. systemd, GNU
#: timeout and the terminal signal a whole group, and a parent in that group then stops its children with SIGTERM.
_ONE_REQUEST = 1.0


class Action(Enum):
    """The effect of a signal."""

    #: The signal is counted but has no other effect.
    COUNT = auto()
    #: The routers receive it, and the program continues.
    CAPTURE = auto()
    #: The shutdown begins.
    STOP = auto()
    #: The process ends immediately.
    FORCE = auto()
    #: The signal belongs to the previous key press or request to stop, and has no effect.
    REPEAT = auto()


class Captor(Enum):
    """The route of a running router that would receive a Ctrl+C."""

    #: There is none.
    NONE = auto()
    #: A route for `InterruptEvent` or `ClearLineEvent`.
    EVENT = auto()
    #: A route for ``signal/interrupt``.
    SIGNAL = auto()


class Presses:
    """Counts the signals in a series and chooses an action for each.

    A series ends after ``reset_after`` seconds without a signal, but never once the program is stopping. `run`
    documents the settings.
    """

    def __init__(self, force_exit: int = 1, cancel_on_interrupt: bool | None = None, reset_after: float = 5.0) -> None:
        self._force_exit, self._cancels, self._reset_after = force_exit, cancel_on_interrupt, reset_after
        # The times of the last key press, of the last signal that was not a repetition, and of the last counted signal.
        self._pressed = self._requested = self._counted = -math.inf
        # True if a router has captured a SIGINT in this series. The router may need two key presses, so only later ones
        # force an exit.
        self._taken = False
        # How many of the counted key presses have been handled: 0 or 1.
        self._handled = 0
        #: The number of signals in the current series. If several key presses were handled, only the last of them is
        #: included.
        self.count: int = 0
        #: The effect of the last signal, or None before the first one.
        self.last: Action | None = None

    def limit(self, captor: Captor = Captor.NONE) -> int:
        """Return how many signals in a series force an exit. 0 means never.

        ``captor`` is the route that would receive a SIGINT now.
        """
        if self._force_exit == 0:
            return 0
        routed = self._cancels is None and captor is Captor.SIGNAL
        if self._taken or routed or self._cancels is False:
            return self._force_exit + 2
        return max(self._force_exit, 2)

    def signal(self, signum: int, now: float, *, captor: Captor = Captor.NONE, stopping: bool = False) -> Action:
        """Count a signal that arrived at the time ``now``, and return its effect.

        ``captor`` is the route that would receive a SIGINT, and ``stopping`` is true once the program is stopping.
        """
        self.last = self._judge(signum, now, captor, stopping=stopping)
        return self.last

    def _judge(self, signum: int, now: float, captor: Captor, *, stopping: bool) -> Action:
        is_press = signum == signal.SIGINT
        if self._repeats(now, is_press=is_press, stopping=stopping):
            return Action.REPEAT
        self._requested, self._pressed = now, now if is_press else self._pressed
        if not stopping and now - self._counted >= self._reset_after - _TICK:
            self.reset()
        self._counted = now
        self.count += 1
        captured = is_press and not stopping and self._captures(captor)
        self._taken |= captured and captor is Captor.SIGNAL
        if not is_press and not stopping:
            return Action.STOP
        if 0 < self.limit() <= self.count:
            return Action.FORCE
        if captured:
            return Action.CAPTURE
        return Action.COUNT if stopping else Action.STOP

    def _repeats(self, now: float, *, is_press: bool, stopping: bool) -> bool:
        if is_press:
            return now - self._pressed < _ONE_PRESS
        # The signal before it may have been a SIGINT that was captured, so a first SIGTERM always counts.
        return stopping and now - self._requested < _ONE_REQUEST

    def _captures(self, captor: Captor) -> bool:
        if self._cancels is not None:
            return not self._cancels
        # If `force_exit` is 2 or more, a router may handle the first key press. If no route handles it, the shutdown
        # begins.
        return captor is Captor.SIGNAL or (captor is Captor.EVENT and self._force_exit >= 2)  # noqa: PLR2004

    def handled(self) -> None:
        """Record that a key press was handled.

        Only the last such press is counted, because it may be the first of two that a router needs.
        """
        self.count -= self._handled
        self._handled = min(1, self.count)

    def forgive(self) -> None:
        """Remove a key press from the count, because it had its intended effect."""
        self.count -= 1
        if self.count <= 0:
            self.reset()

    def reset(self) -> None:
        """Begin a new series."""
        self.count = self._handled = 0
        self._taken = False

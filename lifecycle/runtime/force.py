"""The end by force: no cleaning up, status 1, whatever state the program is in; and the alarm that sets it off.

Of threads only `_thread` is used: an alarm may be set inside a signal handler, where taking one of `threading`'s locks
could wait for the very code that was interrupted.
"""

from __future__ import annotations

import _thread
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from lifecycle import hooks
from lifecycle.runtime.signals import owner

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.runtime.lifetimes import Lifetime

__all__ = ["Alarm", "force_exit"]

#: Seconds that the receivers of `hooks.forced_exit` get at most: they run where anything may be locked.
_GRACE = 0.25

_STATUS = 1


class Alarm:
    """Calls ``action`` after ``seconds``, in a thread that does not hold the process back, unless cancelled.

    If no thread can be started, it does nothing.
    """

    def __init__(self, seconds: float, action: Callable[[], None]) -> None:
        # Both are held until: it is cancelled; its thread is done.
        self._cancelled = _thread.allocate_lock()
        self._over = _thread.allocate_lock()
        self._cancelled.acquire()
        self._over.acquire()
        try:
            _thread.start_new_thread(self._wait, (min(seconds, _thread.TIMEOUT_MAX), action))
        except RuntimeError:
            # The system has no thread left. A shutdown without a deadline, or an exit without a backstop, still ends.
            self._over.release()

    def cancel(self) -> None:
        """Make sure that it does not go off any more; waits for its thread to end. Call it once."""
        self._cancelled.release()
        self._over.acquire()

    def _wait(self, seconds: float, action: Callable[[], None]) -> None:
        try:
            if not self._cancelled.acquire(timeout=seconds):
                action()
        finally:
            self._over.release()


def _say(text: str) -> None:
    """Write to descriptor 2: a prompt's `sys.stderr` holds text back until the loop prints it above the prompt."""
    if sys.__stderr__ is None:
        return  # the process was started without stderr, so descriptor 2 may be any file, such as a database
    with suppress(OSError):
        # Behind a prompt or an echoed ^C, the message needs a line of its own.
        os.write(2, (f"\n{text}" if os.isatty(2) else text).encode())


def force_exit(sender: Lifetime, reason: str) -> None:
    """Say so, announce it, give the terminal back and end the process; callable in any thread and signal handler."""
    handlers = owner()
    backstop = Alarm(_GRACE, lambda: handlers.end_process(_STATUS))
    handlers.terminal.restore()
    _say(f"ended by force: {reason}\n")
    hooks.forced_exit.announce(sender, status=_STATUS, reason=reason)
    # A receiver may have changed the modes.
    handlers.terminal.restore()
    handlers.end_process(_STATUS)
    # Only a test's stand-in returns.
    backstop.cancel()

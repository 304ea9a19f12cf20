"""What must happen at its time even if the event loop is blocked: the stack dump and the last resort.

Only `_thread` is used: an alarm may be set inside a signal handler, where taking one of `threading`'s locks could
wait for the very code that was interrupted.
"""

from __future__ import annotations

import _thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Alarm"]


class Alarm:
    """Calls ``action`` after ``seconds``, in a thread that does not hold the process back, unless cancelled."""

    def __init__(self, seconds: float, action: Callable[[], None]) -> None:
        # Both are held until: it is cancelled; its thread is done.
        self._cancelled = _thread.allocate_lock()
        self._over = _thread.allocate_lock()
        self._cancelled.acquire()
        self._over.acquire()
        _thread.start_new_thread(self._wait, (min(seconds, _thread.TIMEOUT_MAX), action))

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

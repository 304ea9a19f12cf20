"""In a member: which of two threads reads what it is sent.

The main thread reads for itself while it has nothing else to do: a call that comes then runs at once, and is not
handed from thread to thread, which would take longer than all else about it. While a call runs for more than a moment,
the second thread reads, so that pings are answered and cancellations are heard; the next call that it reads, it hands
over, and the reading with it.
"""

from __future__ import annotations

import _thread
from _queue import Empty, SimpleQueue
from contextlib import suppress

# Checkers know the name; see lifecycle._lazy.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SharedReader"]

#: Seconds after which the second thread looks what the main thread is about, while calls come and go.
_MOMENT = 0.002


class Interrupted(BaseException):
    """Raised in the main thread to have it stop reading."""


class SharedReader:
    """Reads, in one thread at a time.

    Args:
        read: waits for bytes, and returns them; none at the end.
        take: is told of them; False if there is nothing more to read.
    """

    def __init__(self, read: Callable[[], bytes], take: Callable[[bytes], bool]) -> None:
        self._read = read
        self._take = take
        # Whether the main thread may read at all, and whether it is the one to read now.
        self._shared = False
        self._lent = False
        # Whether it is reading, how often it has begun to, and whether it waits for bytes at this very moment.
        self._reading = False
        self._turns = 0
        self._waiting = False
        self._interrupted = False
        self._over = False
        # Guards who is to read, and whether the main thread does. No signal handler takes it: it might be held.
        self._lock = _thread.allocate_lock()
        # Whether the second thread waits to be woken, for however long, and what wakes it.
        self._parked = False
        self._wakes: SimpleQueue[None] = SimpleQueue()

    # -- the second thread ----------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Read whenever the main thread does not, to the end."""
        while not self._over:
            if self._lent:
                self._watch()
            elif not self._take(self._read()):
                return

    def lend(self) -> None:
        """Have the main thread read from now on, if it ever does: it is about to be given something to do."""
        self._lent = self._shared

    def _watch(self) -> None:
        """Return when it is this thread's turn."""
        while self._lent:
            before = self._reading, self._turns
            self._pause(_MOMENT)
            with self._lock:
                if before != (self._reading, self._turns):
                    continue
                # For all that time it has waited for bytes, or has been busy with something else.
                self._parked = self._reading
                if not self._reading:
                    self._lent = False
            if self._parked:
                self._pause(None)

    def _pause(self, seconds: float | None) -> None:
        with suppress(Empty):
            self._wakes.get(timeout=seconds)

    # -- the main thread ------------------------------------------------------------------------------------------

    def share(self) -> None:
        """Say that the main thread will read when it has nothing else to do."""
        self._shared = True

    def hear(self) -> bool:
        """Read once; False if that is the other thread's to do."""
        with self._lock:
            if not self._lent:
                return False
            self._reading = True
            self._turns += 1
        try:
            self._over = not self._take(self._await())
        except Interrupted:
            return True
        finally:
            with self._lock:
                self._reading = False
        if self._over:
            self.give_back()
        return not self._over

    def _await(self) -> bytes:
        self._waiting = True
        try:
            if self._interrupted:
                raise Interrupted
            return self._read()
        finally:
            self._waiting = False

    def turn_away(self) -> None:
        """Have the other thread see to it when this one does something else for more than a moment."""
        if self._parked:
            self._parked = False
            self._wakes.put(None)

    def give_back(self) -> None:
        """Have the other thread read from now on."""
        with self._lock:
            self._lent = False
            self._parked = False
        self._wakes.put(None)

    def interrupt(self) -> None:
        """In a signal handler: have the main thread wait no more, neither now nor later."""
        self._interrupted = True
        if self._waiting:
            self._waiting = False
            raise Interrupted

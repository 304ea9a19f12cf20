"""In a member: where calls run, one at a time: in the main thread, where a signal interrupts even what sleeps."""

from __future__ import annotations

import _thread
import signal
from _queue import SimpleQueue

from lifecycle.workers.pool.child.calls import Call, Cancelled, perform

# Checkers know the name; see lifecycle._lazy.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from lifecycle.workers.pool.child.channel import Channel
    from lifecycle.workers.pool.child.readers import SharedReader

__all__ = ["MainEngine"]


class MainEngine:
    """One call at a time, in the main thread.

    Args:
        find: the function of a name.
        channel: where chunks go.
        done: told of each call and the frame that answers it.
        reader: read while there is nothing else to do.
    """

    kind: type[Call] = Call

    def __init__(
        self,
        find: Callable[[str], Any],
        channel: Channel,
        done: Callable[[Call, list[Any]], None],
        *,
        reader: SharedReader,
    ) -> None:
        self._find = find
        self._channel = channel
        self._done = done
        self._reader = reader
        self._waiting: SimpleQueue[Call | None] = SimpleQueue()
        self._current: Call | None = None
        self._thread = _thread.get_ident()

    def run(self, start: Callable[[], None]) -> None:
        """Start, and then do what was submitted, until it is closed."""
        signal.signal(signal.SIGUSR1, self._interrupt)
        start()
        self._reader.share()
        try:
            while self._next():
                pass
        finally:
            self._reader.give_back()

    def submit(self, call: Call) -> None:
        """Do ``call`` in its turn."""
        self._waiting.put(call)

    def cancel(self, call: Call) -> None:
        """Interrupt ``call``, if it is open, and have it answered as cancelled."""
        call.cancelled = True
        call.credits.put(0)
        # If another one runs by the time that the signal arrives, the handler sees that it is not meant.
        signal.pthread_kill(self._thread, signal.SIGUSR1)

    def credit(self, call: Call, number: int) -> None:
        """Let ``call`` send ``number`` more chunks."""
        call.credits.put(number)

    def close(self) -> None:
        """Take no more; `run` returns when what was submitted is done."""
        self._waiting.put(None)

    def _next(self) -> bool:
        while self._waiting.empty() and self._reader.hear():
            pass
        call = self._waiting.get()
        if call is None:
            return False
        if call.window:
            # It is to hear of credits at once.
            self._reader.give_back()
        else:
            self._reader.turn_away()
        self._current = call
        frame = perform(call, self._find, self._channel)
        self._current = None
        self._done(call, frame)
        return True

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        call = self._current
        if call is not None and call.open and call.cancelled:
            # Once: what it does to clean up is not interrupted.
            call.open = False
            raise Cancelled

"""In a member: where plain functions run, several at a time: each in a thread, interrupted between lines of Python."""

from __future__ import annotations

import _thread
import ctypes
import threading
from _queue import SimpleQueue

from lifecycle.workers.pool.child.calls import Call, Cancelled, perform
from lifecycle.workers.pool.child.signals import ask_me, ask_others

# Checkers know the name; see lifecycle._lazy.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from lifecycle.workers.pool.child.channel import Channel

__all__ = ["ThreadCall", "ThreadEngine"]


class ThreadCall(Call):
    """A call in a thread of its own.

    Python raises `Cancelled` at some line after it was asked to; so what was asked for is taken back when the call
    is left, and both happen under one lock.
    """

    __slots__ = ("_lock", "_thread")

    def __init__(self, *items: Any) -> None:
        super().__init__(*items)
        self._lock = _thread.allocate_lock()
        self._thread: int | None = None

    def enter(self) -> None:
        """Let it be interrupted from here on."""
        with self._lock:
            self._thread = _thread.get_ident()
        super().enter()

    def leave(self) -> None:
        """Let it not be interrupted any more, not even by what is on its way."""
        super().leave()
        with self._lock:
            if self._thread is not None and self.cancelled:
                _raise_in(self._thread, None)
            self._thread = None

    def interrupt(self) -> None:
        """Raise `Cancelled` in it soon, if it is open."""
        with self._lock:
            if self.cancelled:
                return
            self.cancelled = True
            if self._thread is not None:
                _raise_in(self._thread, Cancelled)
        self.credits.put(0)


class ThreadEngine:
    """Several calls at a time, each in a thread; it is given what `MainEngine` is."""

    kind: type[Call] = ThreadCall

    def __init__(self, find: Callable[[str], Any], channel: Channel, done: Callable[[Call, list[Any]], None]) -> None:
        self._find = find
        self._channel = channel
        self._done = done
        self._closed: SimpleQueue[None] = SimpleQueue()
        self._threads: set[threading.Thread] = set()

    def run(self, start: Callable[[], None]) -> None:
        """Start, wait until it is closed, and for what still runs then."""
        start()
        ask_others()
        self._closed.get()
        self.join()

    def join(self) -> None:
        """Wait for what runs."""
        for thread in list(self._threads):
            thread.join()

    def submit(self, call: Call) -> None:
        """Do ``call`` now."""
        thread = threading.Thread(target=self._work, args=(call,), name=f"call {call.number}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def cancel(self, call: Call) -> None:
        """Interrupt ``call``, if it is open, and have it answered as cancelled."""
        assert isinstance(call, ThreadCall)
        call.interrupt()

    def credit(self, call: Call, number: int) -> None:
        """Let ``call`` send ``number`` more chunks."""
        call.credits.put(number)

    def close(self) -> None:
        """Take no more; `run` returns when what was submitted is done."""
        self._closed.put(None)

    def _work(self, call: Call) -> None:
        ask_me()
        self._done(call, perform(call, self._find, self._channel))
        self._threads.discard(threading.current_thread())


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error and ctypes.py_object(error))

"""In a member: signals are heard, whichever thread they come to and whatever the main thread waits for.

Python calls their handlers in the main thread, and does not wake that where another thread has got the signal, or
where it came in the moment before the main thread began to wait.
"""

from __future__ import annotations

import _thread
import faulthandler
import os
import signal
from contextlib import suppress

__all__ = ["ask_me", "ask_others", "heed", "write_stacks"]

#: What the parent asks by what keeps a call.
_ASK = signal.SIGUSR2
#: What the main thread is woken by; by itself, it does nothing.
_NUDGE = signal.SIGURG
#: Seconds after which it is woken again, if that came too early.
_AGAIN = 0.02


def write_stacks() -> None:
    """Have a thread that is asked write to stderr what it is doing, though the interpreter be held by a call in C.

    Each writes of itself alone: to look at another, which goes on meanwhile, may crash the process. So those are asked
    that run calls.
    """
    faulthandler.register(_ASK, all_threads=False)


def ask_others() -> None:
    """Have this thread not be asked: it runs no calls."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {_ASK})


def ask_me() -> None:
    """Have this thread be asked, which whoever made it need not be."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {_ASK})


def heed() -> None:
    """Have the main thread, which calls this, hear of signals as they come.

    A process that user code forks is left to itself.
    """
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    waker = _Waker()
    signal.signal(_NUDGE, waker.woken)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_forget)
    _thread.start_new_thread(waker.relay, (told,))


class _Waker:
    """Wakes the thread that makes it."""

    def __init__(self) -> None:
        self._main = _thread.get_ident()
        # Free from the moment when it is awake.
        self._awake = _thread.allocate_lock()

    def relay(self, told: int) -> None:
        """Wake it for each signal that is told of."""
        ask_others()
        # User code may close what is not its own.
        with suppress(OSError):
            while numbers := os.read(told, 4096):
                if set(numbers) != {_NUDGE}:
                    self._wake()

    def woken(self, *_: object) -> None:
        """It is awake, and has called the handlers of all signals before this one."""
        if self._awake.locked():
            self._awake.release()

    def _wake(self) -> None:
        self._awake.acquire(blocking=False)
        while True:
            signal.pthread_kill(self._main, _NUDGE)
            if self._awake.acquire(timeout=_AGAIN):
                return


def _forget() -> None:
    signal.set_wakeup_fd(-1)
    for number in (_NUDGE, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)

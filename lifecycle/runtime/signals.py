"""The one owner of the process's signal handlers: the only global state of the library.

Handlers are plain Python ones, which the interpreter runs in the main thread between two bytecodes and inside calls
that wait (``time.sleep``, ``lock.acquire``), so that they work while the event loop is blocked. They are taken when
the first receiver comes and given back, as they were found, when the last one goes.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from lifecycle.runtime.force import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Handlers", "Receiver", "owner", "replace_owner"]

#: Called in the main thread at any point of the program: it must be quick, take no lock, and not raise.
Receiver: TypeAlias = Callable[[int], None]


class Handlers:
    """Shares signals among any number of receivers."""

    #: How often, in seconds, to look whether a library has taken a signal away: the system does not tell.
    check_every: ClassVar[float | None] = 1.0

    def __init__(self) -> None:
        # Tuples that are replaced, never changed: a signal may come in the middle of anything.
        self._receivers: dict[int, tuple[Receiver, ...]] = {}
        self._sources: dict[int, tuple[Receiver, ...]] = {}
        # What stood there before us.
        self._before: dict[int, Any] = {}
        #: The other thing that the system has one of.
        self.terminal: Final = Terminal()

    def can_take(self, signum: int) -> bool:
        """Whether a receiver that comes now would be called; outside the main thread only for what is taken."""
        return signum in self._before or threading.current_thread() is threading.main_thread()

    def take(self, signums: Iterable[int], receive: Receiver, *, source: bool = False) -> Callable[[], None]:
        """Call ``receive`` with each of ``signums`` that comes; returns what ends that.

        ``source`` says that the receiver makes events of them. Signals that cannot be taken are left out.
        """
        taken = [signum for signum in signums if self.can_take(signum)]
        self.retake()
        for signum in taken:
            self._receivers[signum] = (*self._receivers.get(signum, ()), receive)
            if source:
                self._sources[signum] = (*self._sources.get(signum, ()), receive)
            if signum not in self._before:
                self._before[signum] = self._install(signum)

        def release() -> None:
            while taken:
                self._release(taken.pop(), receive)

        return release

    def has_source(self, signum: int) -> bool:
        """Whether somebody makes events of this signal."""
        return bool(self._sources.get(signum))

    def retake(self) -> None:
        """Take back what a library took meanwhile; what it had put there is not called any more."""
        if threading.current_thread() is threading.main_thread():
            for signum in self._before:
                if not self._holds(signum):
                    self._install(signum)

    def deliver(self, signum: int, _frame: object = None) -> None:
        """The handler itself."""
        receivers = self._receivers.get(signum, ())
        for receive in receivers:
            receive(signum)
        if not receivers and signum in self._before:
            # The last receiver went in a thread that could not give the signal back.
            self._restore(signum, self._before.pop(signum))
            signal.raise_signal(signum)

    def end_process(self, status: int) -> None:
        """End the process now, without any cleaning up."""
        os._exit(status)

    def has_terminal(self) -> bool:
        """Whether the process has a controlling terminal."""
        try:
            os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        except OSError:
            return False
        return True

    def is_ignored(self, signum: int) -> bool:
        """Whether whoever started the process had this signal ignored, as nohup does."""
        return signum not in self._before and signal.getsignal(signum) is signal.SIG_IGN

    # -- the system -------------------------------------------------------------------------------------------------

    def _install(self, signum: int) -> Any:
        return signal.signal(signum, self.deliver)

    def _holds(self, signum: int) -> bool:
        return signal.getsignal(signum) == self.deliver

    def _restore(self, signum: int, before: Any) -> None:
        # None stands for a handler that was not installed from Python and cannot be put back.
        if self._holds(signum):
            signal.signal(signum, signal.SIG_DFL if before is None else before)

    def _release(self, signum: int, receive: Receiver) -> None:
        self._receivers[signum] = _without(self._receivers[signum], receive)
        self._sources[signum] = _without(self._sources.get(signum, ()), receive)
        if not self._receivers[signum] and threading.current_thread() is threading.main_thread():
            self._restore(signum, self._before.pop(signum))


def _without(receivers: tuple[Receiver, ...], gone: Receiver) -> tuple[Receiver, ...]:
    at = receivers.index(gone) if gone in receivers else len(receivers)
    return receivers[:at] + receivers[at + 1 :]


_owner = Handlers()


def owner() -> Handlers:
    """Who has the signal handlers of this process."""
    return _owner


def replace_owner(handlers: Handlers) -> Handlers:
    """Let ``handlers`` stand in, for a test; returns who was there."""
    global _owner  # the one global state that the system forces on us
    before, _owner = _owner, handlers
    return before

"""The process's signal handlers, which `SignalRegistry` shares among any number of receivers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from lifecycle.runtime.force import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Receiver", "SignalRegistry", "replace_registry", "signal_registry"]

#: A function that may be called in the main thread at any point in the program. It must be quick, and must not take a
#: lock or raise an error.
Receiver: TypeAlias = Callable[[int], None]


# -- the handlers of the process --------------------------------------------------------------------------------------


class SignalRegistry:
    """Owns the process's signal handlers, and shares each signal among any number of receivers.

    The handlers are plain Python functions. The interpreter runs them in the main thread between two bytecodes and
    inside calls that wait (``time.sleep``, ``lock.acquire``), so they work while the event loop is blocked. They are
    installed when the first receiver is added, and the previous handlers are restored when the last one is removed.
    """

    #: How often, in seconds, to check whether a library has replaced our handlers. We have to poll, because the system
    #: does not report this.
    check_every: ClassVar[float | None] = 1.0

    def __init__(self) -> None:
        # The tuples are replaced and never modified, because a signal may arrive at any point in the code below.
        self._receivers: dict[int, tuple[Receiver, ...]] = {}
        self._sources: dict[int, tuple[Receiver, ...]] = {}
        # The handlers that were installed before ours.
        self._before: dict[int, Any] = {}
        #: The terminal, kept here because a process has only one terminal, just as it has only one handler per signal.
        self.terminal: Final = Terminal()

    def can_take(self, signum: int) -> bool:
        """Return whether a new receiver of this signal would be called.

        Outside the main thread, it is called only if the signal already has a receiver.
        """
        return signum in self._before or threading.current_thread() is threading.main_thread()

    def take(self, signums: Iterable[int], receive: Receiver, *, source: bool = False) -> Callable[[], None]:
        """Call ``receive`` whenever one of ``signums`` arrives. Return a function that removes the receiver.

        ``source`` marks a receiver that turns signals into events. Signals that cannot be handled are left out.
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
        """Return whether a receiver turns this signal into events."""
        return bool(self._sources.get(signum))

    def retake(self) -> None:
        """Reinstall the handlers that a library has replaced. The library's handlers are no longer called."""
        if threading.current_thread() is threading.main_thread():
            for signum in self._before:
                if not self._holds(signum):
                    self._install(signum)

    def deliver(self, signum: int, _frame: object = None) -> None:
        """Call the receivers of a signal. This is the installed handler."""
        receivers = self._receivers.get(signum, ())
        for receive in receivers:
            receive(signum)
        if not receivers and signum in self._before:
            # The last receiver was removed in a different thread, which could not restore the previous handler.
            self._restore(signum, self._before.pop(signum))
            signal.raise_signal(signum)

    def handles_sigterm(self) -> bool:
        """Return whether there is a handler for SIGTERM, ours or another library's.

        Without a handler, SIGTERM kills the process.
        """
        return signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN)

    def send_sigterm(self) -> None:
        """Send SIGTERM to this process."""
        os.kill(os.getpid(), signal.SIGTERM)

    def end_process(self, status: int) -> None:
        """End the process immediately, without any cleanup."""
        os._exit(status)

    def has_terminal(self) -> bool:
        """Return whether the process has a controlling terminal."""
        try:
            os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        except OSError:
            return False
        return True

    def is_ignored(self, signum: int) -> bool:
        """Return whether the process was started with this signal ignored, for example by nohup."""
        return signum not in self._before and signal.getsignal(signum) is signal.SIG_IGN

    # The following methods make system calls. Tests replace them.

    def _install(self, signum: int) -> Any:
        return signal.signal(signum, self.deliver)

    def _holds(self, signum: int) -> bool:
        return signal.getsignal(signum) == self.deliver

    def _restore(self, signum: int, before: Any) -> None:
        # None means that the previous handler was not installed from Python, so it cannot be restored.
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


_registry = SignalRegistry()


def signal_registry() -> SignalRegistry:
    """Return the registry of this process."""
    return _registry


def replace_registry(registry: SignalRegistry) -> SignalRegistry:
    """Use ``registry`` from now on, and return the previous one. This is meant for tests."""
    global _registry  # the library's only global state, because the system has one handler per signal
    before, _registry = _registry, registry
    return before

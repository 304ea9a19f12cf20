"""Signals: owning the process's signal handlers, and carrying out the action that `Presses` chooses for each signal.

`SignalRegistry` shares the handlers among any number of receivers. `receiving_signals` makes a lifetime one of them.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from lifecycle import hooks
from lifecycle.errors import LifecycleError
from lifecycle.events.base import ClearLineEvent, InterruptEvent, ReloadEvent
from lifecycle.runtime.force import Terminal, force_exit, tell_terminal
from lifecycle.runtime.presses import Action, Captor

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Generator, Iterable

    from lifecycle.events import Topical
    from lifecycle.runtime.lifetimes import Life
    from lifecycle.runtime.stopping import RouterLike

__all__ = [
    "Receiver",
    "SignalRegistry",
    "receiving_signals",
    "replace_registry",
    "signal_registry",
]

_log = logging.getLogger("lifecycle.runtime")

_SIGHUP: int | None = getattr(signal, "SIGHUP", None)

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


# -- the signals of one lifetime --------------------------------------------------------------------------------------


@contextmanager
def receiving_signals(life: Life) -> Generator[None]:
    """If this is the main thread, let ``life`` receive signals during the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    receiver = _LifetimeSignals(life)
    life.hears_signals = True
    release = signal_registry().take(receiver.signums, receiver.receive)
    receiver.keep()
    try:
        yield
    finally:
        receiver.stop_keeping()
        release()


class _LifetimeSignals:
    """Performs the actions that `Presses` chooses."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._registry = signal_registry()
        self._keeping: asyncio.TimerHandle | None = None
        # Check this at the start, because once a terminal has been closed, it is no longer the controlling terminal.
        self._had_terminal = self._registry.has_terminal()

    @property
    def signums(self) -> list[int]:
        signums: list[int] = [signal.SIGINT, signal.SIGTERM]
        if _SIGHUP is not None and not self._registry.is_ignored(_SIGHUP):
            signums.append(_SIGHUP)
        return signums

    def receive(self, signum: int) -> None:
        """Handle a signal. This runs inside signal handlers, so any work that can wait is left to the loop."""
        life = self._life
        stopping = life.stopping
        if signum == _SIGHUP and self._hang_up(signum, stopping=stopping):
            return
        captor = Captor.NONE if stopping or signum != signal.SIGINT else life.captor()
        action = life.presses.signal(signum, life.loop.time(), captor=captor, stopping=stopping)
        if action is Action.REPEAT:
            return
        life.call_soon(self._announce, signum, life.presses.count)
        if action is Action.FORCE:
            name = signal.Signals(signum).name
            reason = f"{name} was signal number {life.presses.count} in a row"
            force_exit(signal_registry(), life.lifetime, reason)
        elif action is Action.STOP:
            life.begin_for_signal(signum)
        elif action is Action.CAPTURE:
            # Check for a source now, because a source that starts later has not received this signal.
            life.call_soon(self._capture, self._registry.has_source(signal.SIGINT), captor)

    def keep(self) -> None:
        """Reinstall the handlers periodically, in case a library has replaced them."""
        if self._registry.check_every is not None:
            self._registry.retake()
            self._keeping = self._life.loop.call_later(self._registry.check_every, self.keep)

    def stop_keeping(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()

    def _hang_up(self, signum: int, *, stopping: bool) -> bool:
        """Send SIGHUP to its routes, or reload the routers if there is no terminal.

        Return whether a router handled the signal.
        """
        life = self._life
        routed = bool(life.routers_for("signal/hangup"))
        if routed:
            life.call_soon(self._announce, signum, life.presses.count)
            life.call_soon(self._route, signum, self._registry.has_source(signum))
        # During a shutdown, the routers may already have ended. Even then, SIGHUP does not count towards a forced exit.
        reloads = not self._had_terminal and bool(life.all_routers() or (stopping and life.had_router))
        if reloads:
            life.call_soon(self._reload)
        return routed or reloads

    def _announce(self, signum: int, count: int) -> None:
        hooks.signal_received.announce(self._life.lifetime, signum=signum, count=count)

    def _capture(self, sent_by_source: bool, captor: Captor) -> None:
        """Send a captured Ctrl+C to the routers."""
        if self._life.routers_for("signal/interrupt"):
            self._route(signal.SIGINT, sent_by_source)
            return
        _send(self._life.all_routers(), InterruptEvent(), ClearLineEvent())
        if captor is Captor.NONE:
            tell_terminal(f"no route takes this Ctrl+C{self._life.next_step()}")

    def _route(self, signum: int, sent_by_source: bool) -> None:
        """Send a signal to the routers with a specific route for it, unless a source turns the signal into events."""
        from lifecycle.events.records import SignalEvent

        event = SignalEvent(signum)
        if not sent_by_source:
            _send(self._life.routers_for(event.topic), event)

    def _reload(self) -> None:
        _send(self._life.all_routers(), ReloadEvent())


def _send(routers: Iterable[RouterLike], *events: Topical) -> None:
    """Send ``events`` to each router. It is not an error if an event has no route, or if its lane is full."""
    for router in routers:
        for event in events:
            try:
                router.emit_nowait(event)
            except LifecycleError as error:
                _log.debug("%r was not accepted by %r: %s", event, router, error)

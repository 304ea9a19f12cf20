"""Signals: owning the process's signal handlers, choosing an action for each signal, and performing it.

`SignalRegistry` shares the handlers among any number of receivers. `Escalation` counts a lifetime's signals and chooses
the action for each, from the first Ctrl+C to a forced exit. `receiving_signals` connects the two for one lifetime.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
from collections.abc import Callable
from contextlib import contextmanager
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from lifecycle import hooks
from lifecycle.errors import LifecycleError
from lifecycle.events.base import ClearLineEvent, InterruptEvent, ReloadEvent
from lifecycle.runtime.force import Terminal, force_exit, tell_terminal

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Generator, Iterable

    from lifecycle.events import Topical
    from lifecycle.runtime.lifetimes import Life, Settings
    from lifecycle.runtime.stopping import RouterLike

__all__ = [
    "Escalation",
    "KeyPresses",
    "Receiver",
    "SignalAction",
    "SignalRegistry",
    "receiving_signals",
    "replace_registry",
    "signal_registry",
]

_log = logging.getLogger("lifecycle.runtime")

_SIGHUP: int | None = getattr(signal, "SIGHUP", None)

#: Timers may fire up to this many seconds early.
_TICK = 1e-6
#: A second SIGINT within this many seconds belongs to the same key press. A wrapper may forward a signal that the
#: terminal has already sent to us.
_ONE_PRESS = 0.05
#: A SIGTERM or SIGHUP within this many seconds of the previous signal belongs to the same request to stop. systemd, GNU
#: timeout and the terminal signal a whole group, and a parent in that group then stops its children with SIGTERM.
_ONE_REQUEST = 1.0

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


# -- from Ctrl+C to a forced exit -------------------------------------------------------------------------------------


class SignalAction(Enum):
    """The effect of a signal on a lifetime."""

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


class KeyPresses:
    """Recognises additional signals for the same key press or request to stop, such as those sent by a wrapper."""

    def __init__(self) -> None:
        # The times of the last key press and of the last signal that was not a repetition.
        self._pressed = self._last = -math.inf

    def repeats(self, signum: int, now: float, *, stopping: bool = False) -> bool:
        """Return whether the signal repeats the previous press or request. Otherwise, record it as a new one.

        A SIGTERM or SIGHUP repeats a request only if the program is ``stopping``. The previous signal may have been a
        SIGINT with a different effect.
        """
        is_press = signum == signal.SIGINT
        repeated = now - self._pressed < _ONE_PRESS if is_press else stopping and now - self._last < _ONE_REQUEST
        if not repeated:
            self._last = now
            self._pressed = now if is_press else self._pressed
        return repeated


class Escalation:
    """Counts the signals in a series and chooses an action for each. It makes no system calls.

    A series ends after ``reset_after`` seconds without a signal, but never once the program is stopping.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._last = -math.inf
        self._presses = KeyPresses()
        # True if a router has handled a SIGINT in this series. The router may need two key presses, so only later ones
        # force an exit.
        self._taken = False
        # How many of the counted key presses have been handled: 0 or 1.
        self._handled = 0
        #: The number of signals in the current series. If several key presses were handled, only the last of them is
        #: included.
        self.count: int = 0

    def limit(self, *, routed: bool = False) -> int:
        """Return how many signals in a series force an exit. 0 means never.

        ``routed`` is true if a running router would handle a SIGINT now.
        """
        patience, wanted = self._settings.force_exit, self._settings.cancel_on_interrupt
        if patience == 0:
            return 0
        if self._taken or wanted is False or (wanted is None and routed):
            return patience + 2
        return max(patience, 2)

    def judge(self, signum: int, *, routed: bool, handled: bool = False, stopping: bool, now: float) -> SignalAction:
        """Count a signal that arrived at the time ``now``, and return its effect.

        ``routed`` is true if a running router has a route for this SIGINT. ``handled`` is true if a running router has
        a route for `InterruptEvent`.
        """
        if self._presses.repeats(signum, now, stopping=stopping):
            return SignalAction.REPEAT
        if not stopping and now - self._last >= self._settings.reset_after - _TICK:
            self.reset()
        self._last = now
        self.count += 1
        if not stopping and signum != signal.SIGINT:
            return SignalAction.STOP
        captured = not stopping and self._captures(routed=routed, handled=handled)
        self._taken |= captured and routed
        if 0 < self.limit() <= self.count:
            return SignalAction.FORCE
        if captured:
            return SignalAction.CAPTURE
        return SignalAction.COUNT if stopping else SignalAction.STOP

    def reset(self) -> None:
        """Begin a new series."""
        self.count = self._handled = 0
        self._taken = False

    def handled(self) -> None:
        """Record that a key press was handled.

        Only the last such press is counted, because it may be the first of two that a router needs.
        """
        self.count -= self._handled
        self._handled = min(1, self.count)

    def uncount(self) -> None:
        """Remove a key press from the count, because it had its intended effect."""
        self.count -= 1
        if self.count <= 0:
            self.reset()

    def _captures(self, *, routed: bool, handled: bool) -> bool:
        wanted = self._settings.cancel_on_interrupt
        if wanted is not None:
            return not wanted
        # If `force_exit` is 2 or more, a router may handle the first key press. If no route handles it, the shutdown
        # begins.
        return routed or (handled and self._settings.force_exit >= 2)  # noqa: PLR2004


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
    """Performs the actions that `Escalation` chooses."""

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
        asked = signum == signal.SIGINT and not stopping
        routed = asked and bool(life.routers_for("signal/interrupt"))
        handled = asked and any(life.routers_for(event.topic) for event in (InterruptEvent, ClearLineEvent))
        action = life.escalation.judge(signum, routed=routed, handled=handled, stopping=stopping, now=life.loop.time())
        if action is SignalAction.REPEAT:
            return
        life.call_soon(self._announce, signum, life.escalation.count)
        if action is SignalAction.FORCE:
            name = signal.Signals(signum).name
            reason = f"{name} was signal number {life.escalation.count} in a row"
            force_exit(signal_registry(), life.lifetime, reason)
        elif action is SignalAction.STOP:
            life.begin_for_signal(signum)
        elif action is SignalAction.CAPTURE:
            # Check for a source now, because a source that starts later has not received this signal.
            life.call_soon(self._capture, self._registry.has_source(signal.SIGINT), handled)

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
            life.call_soon(self._announce, signum, life.escalation.count)
            life.call_soon(self._route, signum, self._registry.has_source(signum))
        # During a shutdown, the routers may already have ended. Even then, SIGHUP does not count towards a forced exit.
        reloads = not self._had_terminal and bool(life.all_routers() or (stopping and life.had_router))
        if reloads:
            life.call_soon(self._reload)
        return routed or reloads

    def _announce(self, signum: int, count: int) -> None:
        hooks.signal_received.announce(self._life.lifetime, signum=signum, count=count)

    def _capture(self, sent_by_source: bool, handled: bool) -> None:
        """Send a captured Ctrl+C to the routers."""
        if self._life.routers_for("signal/interrupt"):
            self._route(signal.SIGINT, sent_by_source)
            return
        _send(self._life.all_routers(), InterruptEvent(), ClearLineEvent())
        if not handled:
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

"""`receiving_signals` lets a lifetime receive signals, and carries out the actions that `Presses` chooses."""

from __future__ import annotations

import logging
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lifecycle import hooks
from lifecycle.errors import LifecycleError
from lifecycle.events.base import ClearLineEvent, InterruptEvent, ReloadEvent
from lifecycle.runtime.force import force_exit, tell_terminal
from lifecycle.runtime.presses import Action, Captor
from lifecycle.runtime.signals import signal_registry

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Generator, Iterable

    from lifecycle.events import Topical
    from lifecycle.runtime.lifetimes import Lifetime
    from lifecycle.runtime.parts import RouterLike

__all__ = ["receiving_signals"]

_log = logging.getLogger("lifecycle.runtime")

_SIGHUP: int | None = getattr(signal, "SIGHUP", None)


@contextmanager
def receiving_signals(life: Lifetime) -> Generator[None]:
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

    def __init__(self, life: Lifetime) -> None:
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
            force_exit(signal_registry(), life, reason)
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
        routed = "signal/hangup" in life.captured
        if routed:
            life.call_soon(self._announce, signum, life.presses.count)
            life.call_soon(self._route, signum, self._registry.has_source(signum))
        # During a shutdown, the routers may already have ended. Even then, SIGHUP does not count towards a forced exit.
        reloads = not self._had_terminal and bool(life.all_routers() or (stopping and life.had_router))
        if reloads:
            life.call_soon(self._reload)
        return routed or reloads

    def _announce(self, signum: int, count: int) -> None:
        hooks.signal_received.announce(self._life, signum=signum, count=count)

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

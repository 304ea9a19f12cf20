"""What a lifetime does with signals: `escalation` judges them, and this carries the verdict out.

`receive` runs inside signal handlers, at any point of the program: it works while the loop is blocked, and leaves to
the loop whatever can wait.
"""

from __future__ import annotations

import logging
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lifecycle import hooks
from lifecycle.errors import LifecycleError
from lifecycle.events import ClearLineEvent, InterruptEvent, ReloadEvent, SignalEvent
from lifecycle.runtime.escalation import Verdict
from lifecycle.runtime.force import force_exit, tell_terminal
from lifecycle.runtime.records import Reason
from lifecycle.runtime.signals import owner
from lifecycle.runtime.stopping import has_route_for

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Generator, Iterable

    from lifecycle.events import Topical
    from lifecycle.runtime.lives import Life
    from lifecycle.runtime.stopping import RouterLike

__all__ = ["receiving_signals"]

_log = logging.getLogger("lifecycle.runtime")

_SIGHUP: int | None = getattr(signal, "SIGHUP", None)


@contextmanager
def receiving_signals(life: Life) -> Generator[None]:
    """Let ``life`` receive signals for a block, if this is the main thread: they belong to it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    receiver = _Receiver(life)
    life.hears_signals = True
    release = owner().take(receiver.signums, receiver.receive)
    receiver.keep()
    try:
        yield
    finally:
        receiver.stop_keeping()
        release()


class _Receiver:
    def __init__(self, life: Life) -> None:
        self._life = life
        self._handlers = owner()
        self._keeping: asyncio.TimerHandle | None = None
        # As it was at the start: when the terminal goes away, it is no controlling terminal any more.
        self._had_terminal = self._handlers.has_terminal()

    @property
    def signums(self) -> list[int]:
        signums: list[int] = [signal.SIGINT, signal.SIGTERM]
        if _SIGHUP is not None and not self._handlers.is_ignored(_SIGHUP):
            signums.append(_SIGHUP)
        return signums

    def receive(self, signum: int) -> None:
        life = self._life
        stopping = life.reason is not Reason.NONE
        if signum == _SIGHUP and self._hang_up(signum, stopping=stopping):
            return
        asked = signum == signal.SIGINT and not stopping
        routed = asked and life.takes_interrupt()
        heard = asked and any(
            has_route_for(router, event.topic)
            for router in life.all_routers()
            for event in (InterruptEvent, ClearLineEvent)
        )
        verdict = life.escalation.heed(signum, routed=routed, heard=heard, stopping=stopping, now=life.loop.time())
        life.call_soon(self._announce, signum, life.escalation.count)
        if verdict is Verdict.FORCE:
            force_exit(
                owner(), life.lifetime, f"{signal.Signals(signum).name} came as number {life.escalation.count} in a row"
            )
        elif verdict is Verdict.STOP:
            life.begin(Reason.INTERRUPT if signum == signal.SIGINT else Reason.TERMINATE, signum)
        elif verdict is Verdict.CAPTURE:
            # Asked now: a source that starts in a moment has not had this one.
            life.call_soon(self._capture, self._handlers.has_source(signal.SIGINT), heard)

    def _hang_up(self, signum: int, *, stopping: bool) -> bool:
        """Give SIGHUP to the routes for it, or let routers reload without a terminal; whether it was taken."""
        life, routers = self._life, self._life.all_routers()
        routed = any(has_route_for(router, "signal/hangup") for router in routers)
        if routed:
            life.call_soon(self._announce, signum, life.escalation.count)
            life.call_soon(self._route, signum, self._handlers.has_source(signum))
        # Once the routers have ended with the rest, it is still no impatience.
        reloads = not self._had_terminal and bool(routers or (stopping and life.had_router))
        if reloads:
            life.call_soon(self._reload)
        return routed or reloads

    def keep(self) -> None:
        """Take the signals back from time to time, where a library took them."""
        if self._handlers.check_every is not None:
            self._handlers.retake()
            self._keeping = self._life.loop.call_later(self._handlers.check_every, self.keep)

    def stop_keeping(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()

    def _announce(self, signum: int, count: int) -> None:
        hooks.signal_received.announce(self._life.lifetime, signum=signum, count=count)

    def _capture(self, sent_by_source: bool, heard: bool) -> None:
        """Send a captured Ctrl+C to the routers."""
        routers = self._life.all_routers()
        if any(has_route_for(router, "signal/interrupt") for router in routers):
            self._route(signal.SIGINT, sent_by_source)
            return
        _send(routers, InterruptEvent(), ClearLineEvent())
        if not heard:
            tell_terminal(f"no route takes this Ctrl+C{self._life.next_step()}")

    def _route(self, signum: int, sent_by_source: bool) -> None:
        """Send a signal to the routers that have a route made for it, unless a source makes events of signals."""
        event = SignalEvent(signum)
        if not sent_by_source:
            _send([router for router in self._life.all_routers() if has_route_for(router, event.topic)], event)

    def _reload(self) -> None:
        _send(self._life.all_routers(), ReloadEvent())


def _send(routers: Iterable[RouterLike], *events: Topical) -> None:
    """Send ``events`` to each router; that nobody takes one, or has no room, is no error."""
    for router in routers:
        for event in events:
            try:
                router.emit_nowait(event)
            except LifecycleError as error:
                _log.debug("%r was not taken by %r: %s", event, router, error)

"""Signals as events, such as ``signal/terminate`` and ``signal/user1``."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from lifecycle.events import SignalEvent
from lifecycle.events.sources import Source
from lifecycle.runtime.signals import signal_registry

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from lifecycle.control import Emit

__all__ = ["SignalSource"]

_log = logging.getLogger("lifecycle.sources")

#: The maximum number of waiting events per signal. More events would add no information.
_BURST = 100


class SignalSource(Source):
    """Sends a `SignalEvent` for each signal that the process receives.

    It shares the signals with `run` and with other sources: all of them receive every signal. If no lifetime is
    running, the source handles the signals itself, so they do not end the process while the source is running. A burst
    of the same signal causes at least one event, and at most 100 of its events wait at a time. Python can set signal
    handlers only in the main thread. In any other thread, the source sends events for the signals that the main thread
    handles, and logs which signals it cannot receive.

    Args:
        signals: The signals to receive. By default, SIGINT, SIGTERM and, if the system has it, SIGHUP.

    Raises:
        ValueError: if a number is not a signal, or a signal cannot be caught.
    """

    name: str = "signals"

    def __init__(self, *signals: int) -> None:
        names = ("SIGINT", "SIGTERM", "SIGHUP")
        default = [getattr(signal, name) for name in names if hasattr(signal, name)]
        self._signums = tuple(dict.fromkeys(_checked(signum) for signum in signals or default))
        self._waiting: deque[int] = deque()
        # We replace these for each run, because a source may run again in another loop.
        self._loop: asyncio.AbstractEventLoop
        self._wake = asyncio.Event()
        self._closing = False
        self._release: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"SignalSource({', '.join(_name(signum) for signum in self._signums)})"

    async def __aenter__(self) -> Self:
        registry, self._loop = signal_registry(), asyncio.get_running_loop()
        self._wake, self._closing = asyncio.Event(), False
        missing = [_name(signum) for signum in self._signums if not registry.can_take(signum)]
        if missing:
            _log.warning(
                "%s cannot be handled outside the main thread, so no events are sent for them", ", ".join(missing)
            )
        self._release = registry.take(self._signums, self._receive, source=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave()
        self._waiting.clear()

    async def run(self, emit: Emit) -> None:
        """Send events until `close` is called or the task is cancelled."""
        if self._release is None:
            async with self:
                await self.run(emit)
            return
        while not self._closing or self._waiting:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await emit(SignalEvent(self._waiting.popleft()))
        # The next signal ends the process, even if handlers are still running.
        self._leave()

    def close(self) -> None:
        """Make `run` return after it has sent the signals received so far.

        This includes the SIGTERM that stops the program.
        """
        self._closing = True
        self._wake.set()

    def _leave(self) -> None:
        if self._release is not None:
            self._release()
        self._release = None

    def _receive(self, signum: int) -> None:
        # This runs in a signal handler, so we leave the work to the loop, which may already be closed.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._note, signum)

    def _note(self, signum: int) -> None:
        if self._waiting.count(signum) < _BURST:
            self._waiting.append(signum)
            self._wake.set()


def _checked(signum: int) -> int:
    if signum not in signal.valid_signals():
        raise ValueError(f"{signum!r} is not a signal; use one such as signal.SIGUSR1")
    if signum in {getattr(signal, "SIGKILL", None), getattr(signal, "SIGSTOP", None)}:
        raise ValueError(f"{_name(signum)} cannot be caught; use a different signal")
    return int(signum)


def _name(signum: int) -> str:
    return SignalEvent(signum).name

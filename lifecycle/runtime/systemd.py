"""Notifications to systemd that the program is ready, reloading, alive or stopping.

If a service manager has set NOTIFY_SOCKET, `run` sends notifications in the format of sd_notify(3). Sending never waits
and never raises an error. While the program is running, the service manager's variables are removed from the
environment, because a child process could use them to send notifications in the program's name.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import deque
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from lifecycle.runtime.lifetimes import current_lifetime

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Generator
    from contextlib import AbstractContextManager

    from lifecycle.runtime.lifetimes import Lifetime
    from lifecycle.runtime.settings import Reason

__all__ = ["Notifier", "notifying", "reloading"]

_log = logging.getLogger("lifecycle.runtime")

_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")

#: Each request extends systemd's shutdown timeout by this many seconds. Two requests are sent within that time.
_EXTENSION: Final = 10.0

#: The maximum number of notifications waiting for the manager to read them. If there are more, the oldest are dropped.
_MOST_WAITING: Final = 32

#: The maximum number of characters of an error message to include in a status.
_TOLD: Final = 200


@contextmanager
def notifying(life: Lifetime) -> Generator[None]:
    """During the block, notify the service manager about ``life``, if it has requested notifications."""
    taken = {name: os.environ.pop(name) for name in _VARIABLES if name in os.environ}
    channel = _connect(taken.get("NOTIFY_SOCKET", ""))
    notifier = None
    if channel is not None:
        life.notifier = notifier = Notifier(life.loop, channel, _watchdog(taken))
    try:
        yield
    finally:
        if notifier is not None:
            notifier.close()
        os.environ.update(taken)


def reloading() -> AbstractContextManager[object]:
    """Return a context manager that reports a reload for the duration of its block."""
    life = current_lifetime()
    while life is not None:
        if life.notifier is not None:
            return life.notifier.reloading()
        life = life.outer
    return nullcontext()


class Notifier:
    """Notifies the service manager. Call its methods from the event loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, channel: socket.socket, watchdog: float | None) -> None:
        self._loop = loop
        self._outbox = _Outbox(loop, channel)
        # True once READY has been sent, until STOPPING is sent.
        self._is_up = False
        self._reloads = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        if watchdog is not None:
            self._every(watchdog / 2, "WATCHDOG=1")

    def ready(self) -> None:
        """Report that everything has started."""
        self._is_up = True
        self._outbox.post("READY=1", "STATUS=running")

    @contextmanager
    def reloading(self) -> Generator[None]:
        """Report a reload during the block. If reloads overlap, report when the first begins and when the last ends."""
        status = "STATUS=running"
        self._reloads += 1
        if self._is_up and self._reloads == 1:
            # We cannot use the loop's clock, because systemd compares the time with its own clock.
            now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            self._outbox.post("RELOADING=1", f"MONOTONIC_USEC={now}", "STATUS=reloading")
        try:
            yield
        except BaseException as error:
            from lifecycle._masking import error_masked  # not imported earlier, because reloads rarely fail

            # Put the error on one line, because a second line would be read as another field.
            told = " ".join(error_masked(error).split())[:_TOLD]
            status = f"STATUS=running; the last reload failed: {told}"
            raise
        finally:
            self._reloads -= 1
            if self._is_up and self._reloads == 0:
                self._outbox.post("READY=1", status)

    def stopping(self, reason: Reason) -> None:
        """Report that the shutdown has begun.

        From then on, while the loop is running, keep requesting more time from systemd.
        """
        self._is_up = False
        extension = f"EXTEND_TIMEOUT_USEC={_EXTENSION * 1e6:.0f}"
        self._outbox.post("STOPPING=1", f"STATUS=stopping: {reason}", extension)
        self._every(_EXTENSION / 2, extension)

    def close(self) -> None:
        """Stop sending."""
        for timer in self._timers.values():
            timer.cancel()
        self._outbox.close()

    def _every(self, seconds: float, notice: str) -> None:
        """Send ``notice`` every ``seconds``."""

        def beat() -> None:
            self._outbox.repeat(notice)
            self._every(seconds, notice)

        self._timers[notice] = self._loop.call_later(seconds, beat)


class _Outbox:
    """A queue of notifications, which are sent in order, as fast as the manager reads them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, channel: socket.socket) -> None:
        self._loop = loop
        self._channel = channel
        self._waiting: deque[bytes] = deque(maxlen=_MOST_WAITING)

    def post(self, *lines: str) -> None:
        self._waiting.append("\n".join(lines).encode(errors="replace"))
        if len(self._waiting) == 1:
            self._flush()

    def repeat(self, notice: str) -> None:
        """Post a notification that is useful only if it is sent now. If others are already waiting, drop it."""
        if not self._waiting:
            self.post(notice)

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_writer(self._channel)
        self._send()
        self._channel.close()

    def _flush(self) -> None:
        self._send()
        if self._waiting:
            self._loop.add_writer(self._channel, self._flush)
        else:
            self._loop.remove_writer(self._channel)

    def _send(self) -> None:
        """Send as much as the socket accepts."""
        while self._waiting:
            try:
                self._channel.send(self._waiting[0])
            except BlockingIOError:
                return
            except OSError as error:
                _log.debug("a notification to the service manager was not sent: %s", error)
            self._waiting.popleft()


def _connect(address: str) -> socket.socket | None:
    """Return a socket that is connected to the service manager, or None if that fails."""
    if not address:
        return None
    if not address.startswith(("/", "@")) or not hasattr(socket, "AF_UNIX"):
        _log.warning("NOTIFY_SOCKET=%r is not the address of a Unix socket; systemd is not notified", address)
        return None
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    channel.setblocking(False)
    try:
        channel.connect("\0" + address[1:] if address.startswith("@") else address)
    except OSError as error:
        _log.warning("NOTIFY_SOCKET=%r cannot be reached (%s); systemd is not notified", address, error)
        channel.close()
        return None
    return channel


def _watchdog(given: dict[str, str]) -> float | None:
    """Return the number of seconds within which the manager expects a keep-alive from this process, or None."""
    if given.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    text = given.get("WATCHDOG_USEC", "0")
    if not (text.isascii() and text.isdecimal()):
        _log.warning("WATCHDOG_USEC must be a number of microseconds, got %r; no keep-alives are sent to systemd", text)
        return None
    return int(text) / 1e6 or None

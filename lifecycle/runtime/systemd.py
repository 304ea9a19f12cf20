"""What systemd is told of a program: that it is ready, that it reloads, that its loop turns, and that it stops.

`run` does this by itself where a service manager asks for it with NOTIFY_SOCKET, in the words of sd_notify(3). What
is sent never waits and never raises. The variables are taken out of the environment meanwhile: they are meant for
this process, and a child that found them would speak in its name.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import deque
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from lifecycle.runtime.lifetimes import current_life

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Generator
    from contextlib import AbstractContextManager

    from lifecycle.runtime.lifetimes import Life, Reason

__all__ = ["Notifier", "notifying", "reloading"]

_log = logging.getLogger("lifecycle.runtime")

_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")

#: Seconds that systemd is asked to wait on for a shutdown, each time; it is asked twice in that time.
_EXTENSION: Final = 10.0

#: Notices that wait for the manager to read; the oldest go first.
_MOST_WAITING: Final = 32

#: Characters of an error in a status.
_TOLD: Final = 200


@contextmanager
def notifying(life: Life) -> Generator[None]:
    """Tell the service manager of ``life`` for a block, if there is one and it wants to know."""
    taken = {name: os.environ.pop(name) for name in _VARIABLES if name in os.environ}
    channel = _connect(taken.get("NOTIFY_SOCKET", ""))
    if channel is not None:
        life.notifier = Notifier(life.loop, channel, _watchdog(taken))
    try:
        yield
    finally:
        if life.notifier is not None:
            life.notifier.close()
        os.environ.update(taken)


def reloading() -> AbstractContextManager[object]:
    """A block in which the current program reloads."""
    life = current_life.get(None)
    while life is not None:
        if life.notifier is not None:
            return life.notifier.reloading()
        life = life.outer
    return nullcontext()


class Notifier:
    """Speaks to the service manager; all methods belong to the thread of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, channel: socket.socket, watchdog: float | None) -> None:
        self._loop = loop
        self._outbox = _Outbox(loop, channel)
        # Ready was told, and no stop.
        self._is_up = False
        self._reloads = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        if watchdog is not None:
            self._every(watchdog / 2, "WATCHDOG=1")

    def ready(self) -> None:
        """Everything has started."""
        self._is_up = True
        self._outbox.post("READY=1", "STATUS=running")

    @contextmanager
    def reloading(self) -> Generator[None]:
        """A reload runs for a block; of several at once, the first begins and the last ends what systemd is told."""
        status = "STATUS=running"
        self._reloads += 1
        if self._is_up and self._reloads == 1:
            # Not the loop's clock: systemd compares it with its own.
            now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            self._outbox.post("RELOADING=1", f"MONOTONIC_USEC={now}", "STATUS=reloading")
        try:
            yield
        except BaseException as error:
            from lifecycle._masking import error_masked  # reloads rarely fail

            # In one line: the next would be a field of its own.
            told = " ".join(error_masked(error).split())[:_TOLD]
            status = f"STATUS=running; the last reload failed: {told}"
            raise
        finally:
            self._reloads -= 1
            if self._is_up and self._reloads == 0:
                self._outbox.post("READY=1", status)

    def stopping(self, reason: Reason) -> None:
        """The shutdown has begun; for as long as the loop turns, systemd is asked to wait for its end."""
        self._is_up = False
        extension = f"EXTEND_TIMEOUT_USEC={_EXTENSION * 1e6:.0f}"
        self._outbox.post("STOPPING=1", f"STATUS=stopping: {reason}", extension)
        self._every(_EXTENSION / 2, extension)

    def close(self) -> None:
        """Say no more."""
        for timer in self._timers.values():
            timer.cancel()
        self._outbox.close()

    def _every(self, seconds: float, notice: str) -> None:
        """Send ``notice`` after ``seconds``, and again and again."""

        def beat() -> None:
            self._outbox.repeat(notice)
            self._every(seconds, notice)

        self._timers[notice] = self._loop.call_later(seconds, beat)


class _Outbox:
    """Notices on their way, in order, at the pace at which they are read."""

    def __init__(self, loop: asyncio.AbstractEventLoop, channel: socket.socket) -> None:
        self._loop = loop
        self._channel = channel
        self._waiting: deque[bytes] = deque(maxlen=_MOST_WAITING)

    def post(self, *lines: str) -> None:
        self._waiting.append("\n".join(lines).encode(errors="replace"))
        if len(self._waiting) == 1:
            self._flush()

    def repeat(self, notice: str) -> None:
        """`post` what is of no use later: not at all while others wait."""
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
        """Send what there is room for."""
        while self._waiting:
            try:
                self._channel.send(self._waiting[0])
            except BlockingIOError:
                return
            except OSError as error:
                _log.debug("the service manager does not hear: %s", error)
            self._waiting.popleft()


def _connect(address: str) -> socket.socket | None:
    """The way to the service manager, if there is one."""
    if not address:
        return None
    if not address.startswith(("/", "@")) or not hasattr(socket, "AF_UNIX"):
        _log.warning("NOTIFY_SOCKET=%r is no Unix socket of this machine; nothing is told to it", address)
        return None
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    channel.setblocking(False)
    try:
        channel.connect("\0" + address[1:] if address.startswith("@") else address)
    except OSError as error:
        _log.warning("NOTIFY_SOCKET=%r cannot be reached (%s); nothing is told to it", address, error)
        channel.close()
        return None
    return channel


def _watchdog(given: dict[str, str]) -> float | None:
    """Seconds within which the manager wants a sign of life; None where it does not, or not from this process."""
    if given.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    text = given.get("WATCHDOG_USEC", "0")
    if not (text.isascii() and text.isdecimal()):
        _log.warning("WATCHDOG_USEC=%r is no number of microseconds; there is no watchdog", text)
        return None
    return int(text) / 1e6 or None

"""Forced exits, the deadline that causes one, and their tools: alarms, stack dumps, messages, and terminal modes.

Everything here works while the event loop is blocked. An alarm may be set inside a signal handler, where taking a
`threading` lock could deadlock with the interrupted code. Alarms therefore use only functions from `_thread`.
"""

from __future__ import annotations

import _thread
import asyncio
import itertools
import math
import os
import sys
import traceback
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from lifecycle import hooks

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from types import FrameType
    from typing import Protocol

    class _Process(Protocol):
        """The part of `SignalRegistry` that a forced exit uses."""

        @property
        def terminal(self) -> Terminal: ...

        def end_process(self, status: int) -> None: ...


__all__ = [
    "Alarm",
    "Deadline",
    "Terminal",
    "dump_stacks",
    "force_exit",
    "frames_of",
    "stacks",
    "task_stack",
    "tell_terminal",
]

#: How long, in seconds, the receivers of `hooks.forced_exit` may take. They may be waiting for a lock that is never
#: released.
_GRACE = 0.25

_STATUS = 1


def force_exit(process: _Process, sender: object, reason: str) -> None:
    """Print the reason, announce it, restore the terminal, and end the process with status 1.

    You can call this from any thread and inside signal handlers.
    """
    backstop = Alarm(_GRACE, lambda: process.end_process(_STATUS))
    process.terminal.restore()
    _write_to_descriptor(f"forced to exit: {reason}\n")
    hooks.forced_exit.announce(sender, status=_STATUS, reason=reason)
    # Restore the terminal again, because a receiver may have changed its modes.
    process.terminal.restore()
    process.end_process(_STATUS)
    # `end_process` returns only in tests.
    backstop.cancel()


class Alarm:
    """Calls ``action`` after ``seconds`` unless cancelled. Its thread does not keep the process alive.

    If no thread can be started, the alarm does nothing.
    """

    def __init__(self, seconds: float, action: Callable[[], None]) -> None:
        # The first lock is held until the alarm is cancelled, and the second until the alarm's thread has finished.
        self._cancelled = _thread.allocate_lock()
        self._over = _thread.allocate_lock()
        self._cancelled.acquire()
        self._over.acquire()
        try:
            _thread.start_new_thread(self._wait, (min(seconds, _thread.TIMEOUT_MAX), action))
        except RuntimeError:
            # The system cannot start another thread. As a result, the shutdown has no deadline, or the forced exit has
            # no backstop, but both still work.
            self._over.release()

    def cancel(self) -> None:
        """Prevent the call, and wait until the thread has finished. Call this only once."""
        self._cancelled.release()
        self._over.acquire()

    def _wait(self, seconds: float, action: Callable[[], None]) -> None:
        try:
            if not self._cancelled.acquire(timeout=seconds):
                action()
        finally:
            self._over.release()


class Deadline:
    """The deadline for the whole shutdown. It works even if the loop is blocked, and limits every other timeout."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        exit_timeout: float,
        shutdown_timeout: float,
        force: Callable[[str], None],
    ) -> None:
        self._loop = loop
        #: The time limit of the whole shutdown.
        self.exit_timeout = exit_timeout
        #: The time limit of its last steps.
        self.shutdown_timeout = shutdown_timeout
        # Ends the process for the given reason.
        self._force = force
        # When to force an exit, in loop time.
        self._at = math.inf
        self._alarms: list[Alarm] = []
        # Ensures that the stacks are dumped only once, either by the loop or, if the loop is blocked, by the alarm.
        self._dumps = itertools.count()

    def set(self) -> None:
        """Start the clock. It is safe to call this from any thread and in signal handlers."""
        self._at = self._loop.time() + self.exit_timeout
        self._alarms.append(
            Alarm(self.exit_timeout, lambda: self._force(f"not stopped within {self.exit_timeout:g} s"))
        )

    def left(self) -> float:
        """Return the number of seconds until the process is forced to exit."""
        return max(0.0, self._at - self._loop.time())

    def left_for_work(self) -> float:
        """Return the number of seconds left for routers, mains, workers and tasks.

        A fifth of the total is reserved for hooks.
        """
        return math.inf if math.isinf(self.exit_timeout) else max(0.0, self.left() - self.exit_timeout / 5)

    def expect_end(self) -> Callable[[], None]:
        """Dump stacks if the rest of the shutdown exceeds ``shutdown_timeout``.

        The returned function cancels the timer in the loop. The alarm stays set until `close` is called.
        """
        timer = self._loop.call_later(self.shutdown_timeout, self._dump)
        # An alarm works even while the loop is blocked, and after the loop has ended while its threads are still
        # running.
        self._alarms.append(Alarm(self.shutdown_timeout, self._dump))
        return timer.cancel

    def close(self) -> None:
        """Cancel all alarms. Called when the lifetime has ended."""
        while self._alarms:
            self._alarms.pop().cancel()

    def _dump(self) -> None:
        if next(self._dumps) == 0:
            dump_stacks(self._loop, f"not stopped after {self.shutdown_timeout:g} s; still running:")


# -- messages and stacks ----------------------------------------------------------------------------------------------


def tell_terminal(line: str) -> None:
    """Write ``line`` to stderr if stderr is a terminal from which this process receives input."""
    try:
        is_terminal = sys.stderr.isatty()
    except (AttributeError, OSError, ValueError):  # stderr is None or closed
        return
    if is_terminal and not _in_background():
        _write_stderr(f"{line}\n")


def _in_background() -> bool:
    """Return whether this process is a background job, or the terminal on stderr belongs to another session."""
    if sys.platform == "win32":
        return False
    try:
        fd = sys.stderr.fileno()
    except (OSError, ValueError):  # stderr is an object in memory
        return False
    try:
        return os.tcgetpgrp(fd) != os.getpgrp()
    except OSError:
        return True


def dump_stacks(loop: asyncio.AbstractEventLoop, headline: str) -> None:
    """Write the stacks of all threads and of the tasks of ``loop`` to stderr. You can call this from any thread."""
    _write_stderr(f"{headline}\n\n{stacks(loop)}")


def stacks(loop: asyncio.AbstractEventLoop) -> str:
    """Return the stacks of all threads and of the tasks of ``loop``. You can call this from any thread."""
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    return "\n".join([_threads(), *map(task_stack, tasks)])


def task_stack(task: asyncio.Task[Any]) -> str:
    """Return the name of ``task`` and its stack down to the innermost await. asyncio shows only the outermost await."""
    lines = [line for frame in frames_of(task) for line in traceback.format_stack(frame, limit=1)]
    return f"Task {task.get_name()}:\n{''.join(lines)}"


def frames_of(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    """Yield the frames of ``task``, from the outermost await to the innermost."""
    waiting: Any = task.get_coro()
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is None:
            break
        yield frame
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)


def _write_stderr(text: str) -> None:
    # The text is lost if stderr is None or closed, or if we have interrupted a write to it.
    with suppress(AttributeError, OSError, RuntimeError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _write_to_descriptor(text: str) -> None:
    """Write to descriptor 2, because a prompt's `sys.stderr` delays text until the loop prints it above the prompt."""
    if sys.__stderr__ is None:
        return  # the process was started without stderr, so descriptor 2 could be any file, such as a database
    with suppress(OSError):
        # A terminal may be showing a prompt or an echoed ^C, so start the message on a new line.
        os.write(2, (f"\n{text}" if os.isatty(2) else text).encode())


def _threads() -> str:
    # From Python 3.14, a dump by faulthandler ends at the first thread that is still starting.
    current = _thread.get_ident()
    return "\n".join(
        f"{'Current thread' if ident == current else 'Thread'} {ident:#x}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # documented
    )


# -- the terminal -----------------------------------------------------------------------------------------------------


class Terminal:
    """The terminal modes of stdin, if stdin is a terminal."""

    def __init__(self) -> None:
        self._fd = -1
        self._modes: list[Any] | None = None

    @contextmanager
    def kept(self) -> Generator[None]:
        """Restore the current modes at the end of the block."""
        self._remember()
        try:
            yield
        finally:
            self.restore()
            self._modes = None

    def restore(self) -> None:
        """Restore the saved modes if the current modes differ and this process is in the foreground."""
        if self._modes is None:
            return
        import termios  # not on Windows, where there are no saved modes

        # termios.error is not an OSError
        with suppress(Exception):
            # If the process is in the background, setting modes would stop it.
            if termios.tcgetattr(self._fd) != self._modes and os.tcgetpgrp(self._fd) == os.getpgrp():
                termios.tcsetattr(self._fd, termios.TCSANOW, self._modes)

    def _remember(self) -> None:
        # stdin may be None or closed, or an object without a descriptor.
        with suppress(AttributeError, OSError, ValueError):
            self._fd = sys.stdin.fileno()
            if sys.platform != "win32" and os.isatty(self._fd):
                import termios

                self._modes = termios.tcgetattr(self._fd)

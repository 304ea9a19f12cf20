"""Lending our own terminal to the command, as a shell does with a job in the foreground."""

from __future__ import annotations

import os
import signal
import termios
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["Foreground", "stopped_by_key"]


class Foreground:
    """The terminal on descriptor ``fd``, which one process group at a time has; now it is ours.

    Raises:
        OSError: where that is no terminal of ours.
    """

    def __init__(self, fd: int = 0) -> None:
        self._fd = fd
        self._ours = os.tcgetpgrp(fd)
        # As the shell left it to us; a program that dies leaves it as it happens to be.
        self._modes = termios.tcgetattr(fd)

    def give(self, group: int) -> None:
        """Put ``group`` in front: Ctrl+C goes to it, and it may read."""
        with suppress(OSError), _untouched():
            os.tcsetpgrp(self._fd, group)
        # It may have read too early, and been stopped for that.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGCONT)

    def take(self) -> None:
        """Have it again, in the modes it had; a terminal that is gone is nobody's mistake."""
        with suppress(OSError, termios.error), _untouched():
            os.tcsetpgrp(self._fd, self._ours)
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._modes)

    def pause(self, group: int) -> None:
        """The user pressed Ctrl+Z in ``group``: stop as well, so that the shell has its terminal; then go on."""
        self.take()
        os.killpg(self._ours, signal.SIGTSTP)
        # Here again after `fg` or `bg`, or at once where no shell is there that could continue us.
        self.go_on(group)

    def go_on(self, group: int) -> None:
        """Somebody continued us: let ``group`` go on too, in front if we are."""
        with suppress(OSError):
            if os.tcgetpgrp(self._fd) == self._ours:
                self.give(group)
            else:
                os.killpg(group, signal.SIGCONT)


def stopped_by_key(pid: int) -> bool:
    """Whether the child ``pid`` was just stopped by Ctrl+Z; told once."""
    try:
        report = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG)
    except ChildProcessError:
        return False
    return report is not None and report.si_status == signal.SIGTSTP


@contextmanager
def _untouched() -> Generator[None]:
    """Without being stopped for touching a terminal from the background."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

"""Lending our own terminal to the command, as a shell does with a job in the foreground."""

from __future__ import annotations

import os
import signal
import termios
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["Foreground", "stopped_by"]

#: Ctrl+Z; reading in the background; writing there, or changing the terminal's modes.
_OF_TERMINALS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


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
        # Whether it was ours to lend, and is lent. In the background it is the shell's, which must not lose it.
        self._lent = False

    def give(self, group: int) -> None:
        """Put ``group`` in front, if that is where we are: Ctrl+C goes to it, and it may read."""
        with suppress(OSError), _untouched():
            if self._lent or self._is_ours():
                os.tcsetpgrp(self._fd, group)
                self._lent = True
        # It may have read too early, and been stopped for that.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGCONT)

    def take(self) -> None:
        """Have it again if it was lent, in the modes it had; a terminal that is gone is nobody's mistake."""
        lent, self._lent = self._lent, False
        if not lent:
            return
        with suppress(OSError, termios.error), _untouched():
            os.tcsetpgrp(self._fd, self._ours)
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._modes)

    def pause(self, group: int, signum: int) -> None:
        """The system stopped ``group`` by ``signum``: stop as well, so that the shell has its terminal; then go on.

        What was stopped because it wanted to read, or write, in the background goes on only in front.
        """
        wanted = signum != signal.SIGTSTP
        if not wanted or not self._is_ours():
            self.take()
            os.killpg(self._ours, signum)
            # Here again after `fg` or `bg`, or at once where no shell is there that could continue us.
        if not wanted or self._is_ours():
            self.go_on(group)

    def go_on(self, group: int) -> None:
        """Somebody continued us: let ``group`` go on too, in front if we are."""
        with suppress(OSError):
            # A shell that stopped us without our knowing has taken it back.
            self._lent = self._lent and os.tcgetpgrp(self._fd) == group
        self.give(group)

    def _is_ours(self) -> bool:
        """Whether we are in front."""
        try:
            return os.tcgetpgrp(self._fd) == self._ours
        except OSError:
            return False


def stopped_by(pid: int) -> int | None:
    """What has just stopped the child ``pid`` for the terminal's sake, such as Ctrl+Z; told once."""
    try:
        report = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG)
    except ChildProcessError:
        return None
    return report.si_status if report is not None and report.si_status in _OF_TERMINALS else None


@contextmanager
def _untouched() -> Generator[None]:
    """Without being stopped for touching a terminal from the background."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

"""How the command has a terminal: ours, lent to it as a shell does with a job in the foreground, or one of its own."""

from __future__ import annotations

import codecs
import os
import shutil
import signal
import sys
import termios
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from lifecycle.cli.output import write
from lifecycle.workers.stdio import Inherited
from lifecycle.workers.terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Generator

    from lifecycle.workers.stdio import Command

__all__ = ["AboveThePrompt", "Foreground", "OwnTerminal"]

#: Ctrl+Z; reading in the background; writing there, or changing the terminal's modes.
_OF_TERMINALS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
#: Characters of a line without an end that are held back.
_LONGEST = 64 * 1024


class Foreground(Inherited):
    """The terminal on descriptor ``fd``, which one process group at a time has: ours, or that of the command.

    It serves one process after the other: each has the terminal from its start to its end, if it is ours to lend.

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
        # The group that is to have it, while there is one.
        self._group: int | None = None

    def spawn(self, command: Command) -> int:
        """Start it in a new group, and put that in front."""
        self._group = super().spawn(command)
        self._give(self._group)
        return self._group

    def close(self) -> None:
        """Have the terminal again."""
        self._group = None
        self._take()

    def child_changed(self) -> None:
        """One of our children changed its state: if the terminal stopped the command (Ctrl+Z), stop with it."""
        if self._group is not None and (signum := _stopped_by(self._group)) is not None:
            self._pause(signum)

    def go_on(self) -> None:
        """Somebody continued us: let the command go on too, in front if we are."""
        if self._group is None:
            return
        with suppress(OSError):
            # A shell that stopped us without our knowing has taken it back.
            self._lent = self._lent and os.tcgetpgrp(self._fd) == self._group
        self._give(self._group)

    def _give(self, group: int) -> None:
        """Put ``group`` in front, if that is where we are: Ctrl+C goes to it, and it may read."""
        with suppress(OSError), _untouched():
            if self._lent or self._is_ours():
                os.tcsetpgrp(self._fd, group)
                self._lent = True
        # It may have read too early, and been stopped for that.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGCONT)

    def _take(self) -> None:
        """Have it again if it was lent, in the modes it had; a terminal that is gone is nobody's mistake."""
        lent, self._lent = self._lent, False
        if not lent:
            return
        with suppress(OSError, termios.error), _untouched():
            os.tcsetpgrp(self._fd, self._ours)
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._modes)

    def _pause(self, signum: int) -> None:
        """The system stopped the command by ``signum``: stop as well, so that the shell has its terminal; then go on.

        What was stopped because it wanted to read, or write, in the background goes on only in front.
        """
        wanted = signum != signal.SIGTSTP
        if not wanted or not self._is_ours():
            self._take()
            os.killpg(self._ours, signum)
            # Here again after `fg` or `bg`, or at once where no shell is there that could continue us.
        if not wanted or self._is_ours():
            self.go_on()

    def _is_ours(self) -> bool:
        """Whether we are in front."""
        try:
            return os.tcgetpgrp(self._fd) == self._ours
        except OSError:
            return False


class OwnTerminal(Terminal):
    """A terminal of the command's own, of the size of ours; what it shows comes above the prompt."""

    def __init__(self) -> None:
        self._screen = AboveThePrompt()
        columns, rows = shutil.get_terminal_size()
        super().__init__(self._screen.write, rows=rows, columns=columns)

    def fit(self) -> None:
        """Take on the size that our terminal has now."""
        columns, rows = shutil.get_terminal_size()
        self.resize(rows, columns)

    def close(self) -> None:
        """Stop reading; what has no end yet is shown without it."""
        super().close()
        self._screen.write(b"")

    def tail(self) -> str:
        """Nothing that has to be told: it was shown."""
        return ""


class AboveThePrompt:
    """Writes what the command's terminal shows to our standard output, whole lines at a time.

    A prompt is drawn anew below each write, so that half a line would be cut in two. What is longer than a screen
    ever is, or comes last, is written without its end.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""

    def write(self, data: bytes) -> None:
        """Take bytes as they come, and none at the end."""
        text = self._begun + self._decoder.decode(data, final=not data)
        whole, newline, self._begun = text.rpartition("\n")
        if self._begun and (not data or len(self._begun) > _LONGEST):
            whole, newline, self._begun = text, "\n", ""
        if newline:
            write(sys.stdout, whole + newline)


def _stopped_by(pid: int) -> int | None:
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

"""The terminal of the command: ours, passed to it as a shell does with a foreground job, or one of its own."""

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

#: Ctrl+Z; reading in the background; writing there, or changing the modes of the terminal.
_STOP_SIGNALS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
#: Characters of an incomplete line that are held back.
_MAX_LINE = 64 * 1024


class Foreground(Inherited):
    """The terminal on descriptor ``fd``, which either our process group or the one of the command has.

    Each process of the command has it from its start to its end, if we have it.

    Raises:
        OSError: if it is not our terminal.
    """

    def __init__(self, fd: int = 0) -> None:
        self._fd = fd
        self._ours = os.tcgetpgrp(fd)
        # Restored after each run: a program that dies may leave other modes.
        self._modes = termios.tcgetattr(fd)
        # In the background the terminal belongs to the shell, and is not passed on.
        self._passed = False
        # The process group of the running command.
        self._group: int | None = None

    def spawn(self, command: Command) -> int:
        """Start the command in a new group, and put that in the foreground."""
        self._group = super().spawn(command)
        self._give(self._group)
        return self._group

    def close(self) -> None:
        """Take the terminal back."""
        self._group = None
        self._take()

    def child_changed(self) -> None:
        """Handle SIGCHLD: if the terminal stopped the command (Ctrl+Z), stop with it."""
        if self._group is not None and (signum := _stopped_by(self._group)) is not None:
            self._stop_with_command(signum)

    def resume(self) -> None:
        """Handle SIGCONT: continue the command, in the foreground if we are."""
        if self._group is None:
            return
        with suppress(OSError):
            # A shell that stopped us has taken the terminal back.
            self._passed = self._passed and os.tcgetpgrp(self._fd) == self._group
        self._give(self._group)

    def _give(self, group: int) -> None:
        """Put ``group`` in the foreground, if we are there: Ctrl+C goes to it, and it may read."""
        with suppress(OSError), _sigttou_blocked():
            if self._passed or self._is_ours():
                os.tcsetpgrp(self._fd, group)
                self._passed = True
        # It may have been stopped because it read too early.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGCONT)

    def _take(self) -> None:
        """Take the terminal back if it was passed, and restore its modes; it may be gone."""
        passed, self._passed = self._passed, False
        if not passed:
            return
        with suppress(OSError, termios.error), _sigttou_blocked():
            os.tcsetpgrp(self._fd, self._ours)
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._modes)

    def _stop_with_command(self, signum: int) -> None:
        """Stop like the command, so that the shell gets its terminal back; continue afterwards.

        A command that was stopped because it wanted to read or write in the background continues in the foreground.
        """
        wanted_terminal = signum != signal.SIGTSTP
        if not wanted_terminal or not self._is_ours():
            self._take()
            os.killpg(self._ours, signum)
            # Returns after `fg` or `bg`, or at once without a shell that could continue us.
        if not wanted_terminal or self._is_ours():
            self.resume()

    def _is_ours(self) -> bool:
        """Whether we are in the foreground."""
        try:
            return os.tcgetpgrp(self._fd) == self._ours
        except OSError:
            return False


class OwnTerminal(Terminal):
    """A terminal of the command's own, of the size of ours, whose output is shown above the prompt."""

    def __init__(self) -> None:
        self._screen = AboveThePrompt()
        columns, rows = shutil.get_terminal_size()
        super().__init__(self._screen.write, rows=rows, columns=columns)

    def fit(self) -> None:
        """Take the size of our terminal."""
        columns, rows = shutil.get_terminal_size()
        self.resize(rows, columns)

    def close(self) -> None:
        """Stop reading, and show an incomplete line."""
        super().close()
        self._screen.write(b"")

    def tail(self) -> str:
        """Return nothing: the output has been shown."""
        return ""


class AboveThePrompt:
    """Writes the output of the command's terminal to our standard output, in whole lines.

    The prompt is drawn again below each write, which would split an incomplete line. Very long lines, and the last one,
    are written as they are.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""

    def write(self, data: bytes) -> None:
        """Write bytes as they come; none at the end."""
        text = self._begun + self._decoder.decode(data, final=not data)
        whole, newline, self._begun = text.rpartition("\n")
        if self._begun and (not data or len(self._begun) > _MAX_LINE):
            whole, newline, self._begun = text, "\n", ""
        if newline:
            write(sys.stdout, whole + newline)


def _stopped_by(pid: int) -> int | None:
    """Return the signal by which the terminal has just stopped the child ``pid``, such as Ctrl+Z; only once."""
    try:
        report = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG)
    except ChildProcessError:
        return None
    return report.si_status if report is not None and report.si_status in _STOP_SIGNALS else None


@contextmanager
def _sigttou_blocked() -> Generator[None]:
    """Keep the system from stopping us for changing a terminal from the background."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

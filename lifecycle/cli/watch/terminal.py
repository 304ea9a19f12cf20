"""The command's terminal: either its own, or ours, which we hand over as a shell does for a foreground job."""

from __future__ import annotations

import asyncio
import codecs
import os
import shutil
import signal
import sys
import termios
import time
import tty
from contextlib import contextmanager, nullcontext, suppress
from math import inf
from typing import TYPE_CHECKING, Final

from lifecycle._async import start_task
from lifecycle.cli.output import write
from lifecycle.runtime import current
from lifecycle.workers._posix import exit_code
from lifecycle.workers.stdio import Inherited
from lifecycle.workers.terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import AbstractContextManager
    from typing import TextIO

    from lifecycle.workers.stdio import Command

__all__ = ["AboveThePrompt", "Foreground", "OwnTerminal", "connect"]

#: The signals for Ctrl+Z, and for a background process that reads from, writes to or changes the terminal.
_STOP_SIGNALS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_INTERRUPTED = (-signal.SIGINT, 128 + signal.SIGINT)
#: If a command exits within this many seconds after Ctrl+C, its exit is attributed to Ctrl+C.
_REACTION = 10.0
#: The argument for a `sleep` that effectively never returns: about 68 years.
_FOREVER = str(2**31 - 1)
#: The number of seconds after which an incomplete line is shown.
_PARTIAL = 0.1
#: The maximum number of characters to buffer for an incomplete line.
_MAX_LINE = 64 * 1024
_CTRL_Z: Final = b"\x1a"
#: The maximum number of bytes per read from the keyboard, and of reads that the command has not received yet.
_KEYS: Final = 1024


class Foreground(Inherited):
    """The terminal on descriptor ``fd``, owned by either our process group or the command's.

    If we are in the foreground, each run of the command owns the terminal until it exits.

    Raises:
        OSError: if ``fd`` is not our terminal.
    """

    def __init__(self, fd: int = 0) -> None:
        self._fd = fd
        self._ours = os.tcgetpgrp(fd)
        # The terminal modes are restored after each run, because a program that crashes may leave them changed.
        self._modes = termios.tcgetattr(fd)
        # True if the command owns the terminal. In the background, the shell owns it, so it is not handed over.
        self._passed = False
        # The running command's process group.
        self._group: int | None = None
        # A process in the command's group that exits on Ctrl+C. We do not receive the signal, and the command may
        # handle it.
        self._sentinel: int | None = None
        # The time of the last Ctrl+C.
        self._interrupted = -inf

    def spawn(self, command: Command) -> int:
        """Start the command in a new process group, and put the group in the foreground."""
        self._group = super().spawn(command)
        self._sentinel, self._interrupted = _spawn_sentinel(self._group), -inf
        self._give(self._group)
        return self._group

    def close(self) -> None:
        """Take the terminal back."""
        self._check_sentinel()
        self._kill_sentinel()
        self._group = None
        self._take()

    def ended_by_user(self, exit_code: int | None) -> bool:
        """Return whether the command, which exited with ``exit_code``, was stopped by Ctrl+C."""
        self._check_sentinel()
        return exit_code in _INTERRUPTED or (exit_code == 0 and time.monotonic() - self._interrupted < _REACTION)

    def child_changed(self) -> None:
        """Handle SIGCHLD: if the terminal stopped the command (Ctrl+Z), stop our process too."""
        self._check_sentinel()
        if self._group is None:
            return
        if exit_code(self._group) is not None:
            # The worker waits for the rest of the group, so the sentinel must not be left. It ignores some signals.
            self._kill_sentinel()
        elif (signum := _stopped_by(self._group)) is not None:
            self._stop_with_command(signum)

    def resume(self) -> None:
        """Handle SIGCONT by continuing the command, in the foreground if we are in the foreground."""
        if self._group is None:
            return
        with suppress(OSError):
            # A shell that stopped our process has taken the terminal back.
            self._passed = self._passed and os.tcgetpgrp(self._fd) == self._group
        self._give(self._group)

    def _check_sentinel(self) -> None:
        """Record a Ctrl+C, and replace the sentinel that it killed."""
        if self._sentinel is None or (status := _reap(self._sentinel)) is None:
            return
        self._sentinel = None
        if status == -signal.SIGINT and self._group is not None:
            self._interrupted = time.monotonic()
            self._sentinel = _spawn_sentinel(self._group)

    def _kill_sentinel(self) -> None:
        if self._sentinel is not None:
            os.kill(self._sentinel, signal.SIGKILL)
            _, status = os.waitpid(self._sentinel, 0)
            self._sentinel = None
            if os.waitstatus_to_exitcode(status) == -signal.SIGINT:
                self._interrupted = time.monotonic()

    def _give(self, group: int) -> None:
        """If we are in the foreground, put ``group`` there instead. It then receives Ctrl+C and can read input."""
        with suppress(OSError), _sigttou_blocked():
            if self._passed or self._is_ours():
                os.tcsetpgrp(self._fd, group)
                self._passed = True
        # The system may have stopped the command because it tried to read before it was in the foreground.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGCONT)

    def _take(self) -> None:
        """If the terminal was handed over, take it back and restore its modes. The terminal may no longer exist."""
        passed, self._passed = self._passed, False
        if not passed:
            return
        with suppress(OSError, termios.error), _sigttou_blocked():
            os.tcsetpgrp(self._fd, self._ours)
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._modes)

    def _stop_with_command(self, signum: int) -> None:
        """Stop our process too, so that the shell regains its terminal. Return when our process is continued.

        If the command was stopped because it read or wrote in the background, it continues in the foreground.
        """
        wanted_terminal = signum != signal.SIGTSTP
        if not wanted_terminal or not self._is_ours():
            self._take()
            os.killpg(self._ours, signum)
            # `killpg` returns after `fg` or `bg`, or immediately if there is no shell to continue us.
        if not wanted_terminal or self._is_ours():
            self.resume()

    def _is_ours(self) -> bool:
        """Return whether our process group is in the foreground."""
        try:
            return os.tcgetpgrp(self._fd) == self._ours
        except OSError:
            return False


class OwnTerminal(Terminal):
    """A separate terminal for the command. It has the same size as ours, and its output is copied to ours.

    If ``prompt`` is true, our terminal shows a prompt, and the output appears above it.
    """

    def __init__(self, *, prompt: bool) -> None:
        self._screen = AboveThePrompt() if prompt else _Copy()
        #: Set when the command has exited.
        self.closed: asyncio.Event = asyncio.Event()
        columns, rows = shutil.get_terminal_size()
        super().__init__(self._screen.write, rows=rows, columns=columns)

    def fit(self) -> None:
        """Resize it to match our terminal."""
        columns, rows = shutil.get_terminal_size()
        self.resize(rows, columns)

    def close(self) -> None:
        """Stop reading, and show any incomplete line."""
        super().close()
        self._screen.write(b"")
        self.closed.set()

    @property
    def is_open(self) -> bool:
        """True if a command uses the terminal."""
        return self._ours is not None

    def shown_on(self, file: TextIO, greeting: str) -> AbstractContextManager[None]:
        """Return a context manager that writes ``greeting``, and then the output as it arrives, to ``file``."""
        return self._screen.shown_on(file, greeting)

    def tail(self) -> str:
        """Return an empty string, because the output has already been shown."""
        return ""


class _Copy:
    """Copies output from the command's terminal to our standard output."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: bytes) -> None:
        """Write a chunk of output. Empty bytes mark the end."""
        write(sys.stdout, self._decoder.decode(data, final=not data))

    def shown_on(self, _file: TextIO, _greeting: str) -> AbstractContextManager[None]:
        """Change nothing, because there is no prompt."""
        return nullcontext()


class AboveThePrompt:
    """Copies output from the command's terminal to our standard output, in whole lines.

    The prompt is redrawn below each write, which would split an incomplete line. A newline is added to very long lines,
    and to incomplete lines that are not continued within 0.1 seconds, such as a question.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""
        # The last line if it has no newline, such as a question, even if it has been shown.
        self._unfinished = ""
        self._timer: asyncio.TimerHandle | None = None
        # The file to which output is written directly, instead of above the prompt.
        self._direct: TextIO | None = None

    def write(self, data: bytes) -> None:
        """Write a chunk of output. Empty bytes mark the end."""
        if self._timer is not None:
            self._timer.cancel()
        text = self._decoder.decode(data, final=not data)
        self._unfinished = (self._unfinished + text).rpartition("\n")[2][-_MAX_LINE:]
        if self._direct is not None:
            write(self._direct, text)
            return
        whole, newline, self._begun = (self._begun + text).rpartition("\n")
        if newline:
            write(sys.stdout, whole + newline)
        if not data or len(self._begun) > _MAX_LINE:
            self._end_line()
        elif self._begun:
            self._timer = asyncio.get_running_loop().call_later(_PARTIAL, self._end_line)

    @contextmanager
    def shown_on(self, file: TextIO, greeting: str) -> Generator[None]:
        """Write ``greeting``, the last line if it is unfinished, and then the output as it arrives, to ``file``."""
        if self._timer is not None:
            self._timer.cancel()
        self._begun, self._direct = "", file
        write(file, greeting + self._unfinished)
        try:
            yield
        finally:
            self._direct = None

    def _end_line(self) -> None:
        """Write any incomplete line, followed by a newline."""
        begun, self._begun = self._begun, ""
        if begun:
            write(sys.stdout, begun + "\n")


async def connect(terminal: OwnTerminal, greeting: str, screen: TextIO) -> None:
    """Connect our keyboard and ``screen`` to the command's terminal until it exits or the user presses Ctrl+Z.

    Once the command receives the keys, ``greeting`` is shown.
    """
    typed, back = asyncio.Queue[bytes](_KEYS), asyncio.Event()
    fd, loop = sys.stdin.fileno(), asyncio.get_running_loop()

    def read() -> None:
        keys, key, _ = _read_keys(fd).partition(_CTRL_Z)
        with suppress(asyncio.QueueFull):
            typed.put_nowait(keys)
        if key:
            back.set()

    with _raw_mode(fd), terminal.shown_on(screen, greeting.replace("\n", "\r\n")):
        waits = (back.wait(), terminal.closed.wait(), current().wait_stopping())
        ends = [asyncio.ensure_future(each) for each in waits]
        passing = start_task(_pass_keys(typed, terminal), name="keys of fg")
        loop.add_reader(fd, read)
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(fd)
            for each in (*ends, passing):
                each.cancel()
            await asyncio.wait([*ends, passing])
            write(screen, "\r\n")


def _read_keys(fd: int) -> bytes:
    """Return the keys that were typed. A terminal that no longer exists ends the connection as Ctrl+Z does."""
    try:
        return os.read(fd, _KEYS) or _CTRL_Z
    except OSError:
        return _CTRL_Z


async def _pass_keys(typed: asyncio.Queue[bytes], terminal: OwnTerminal) -> None:
    while True:
        await terminal.write(await typed.get())


@contextmanager
def _raw_mode(fd: int) -> Generator[None]:
    """Read every key as it is typed. The command's own terminal turns Ctrl+C into a signal, and echoes."""
    before = termios.tcgetattr(fd)
    tty.setraw(fd, termios.TCSADRAIN)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal no longer exists
            termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _spawn_sentinel(group: int) -> int | None:
    """Start a process in ``group`` that exits on SIGINT, and return its PID, or None if it cannot be started."""
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    with suppress(OSError):  # the command has exited, or `sleep` does not exist
        return os.posix_spawnp(
            "sleep", ["sleep", _FOREVER], os.environ, file_actions=null, setpgroup=group, setsigdef=[signal.SIGINT]
        )
    return None


def _reap(pid: int) -> int | None:
    """Reap the child ``pid`` and return its exit code, or None if it is still running."""
    reaped, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if reaped else None


def _stopped_by(pid: int) -> int | None:
    """Return the signal that has stopped the child ``pid``, such as the one for Ctrl+Z. Each stop is reported once."""
    try:
        report = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG)
    except ChildProcessError:
        return None
    return report.si_status if report is not None and report.si_status in _STOP_SIGNALS else None


@contextmanager
def _sigttou_blocked() -> Generator[None]:
    """Block SIGTTOU, which would stop us when we change a terminal from the background."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

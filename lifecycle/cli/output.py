"""Exit statuses, errors, and functions that print human-readable text."""

from __future__ import annotations

import errno
import os
import sys
import time
from dataclasses import dataclass
from signal import Signals
from typing import TYPE_CHECKING, TextIO

from lifecycle._text import plain_line, plural
from lifecycle.errors import LifecycleError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "DIM",
    "DONE",
    "FAILED",
    "GREEN",
    "PREFIX",
    "RED",
    "USAGE",
    "YELLOW",
    "CliError",
    "ConfigError",
    "Console",
    "UsageError",
    "ago",
    "alert",
    "columns",
    "has_colour",
    "is_terminal",
    "local_time",
    "paint",
    "print_result",
    "shell_status",
    "signal_name",
    "stderr_console",
    "time_of_day",
    "without_output",
    "write",
]

#: The command succeeded, or was stopped on request.
DONE = 0
#: The command failed, or its exit was forced.
FAILED = 1
#: The command line is invalid.
USAGE = 2
#: The configuration is invalid.
CONFIGURATION = 3

#: Every line of a message starts with this prefix.
PREFIX = "[lifecycle]"
#: The error codes for a full disk, an exhausted quota, and a file that is too large.
_FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))
#: Colours, as parameters for the terminal's control sequence.
DIM, RED, GREEN, YELLOW = "2", "31", "32", "33"


class CliError(LifecycleError):
    """An error that makes a command exit with a message instead of a traceback."""

    status = FAILED


class UsageError(CliError):
    """Raised if the command line is invalid. The message suggests a correction."""

    status = USAGE


class ConfigError(CliError):
    """Raised if a file, a key or an environment variable is invalid. The message names it."""

    status = CONFIGURATION


def write(stream: TextIO | None, text: str) -> bool:
    """Write and flush ``text``. Return False if the write fails because the reader has closed the stream.

    Later calls discard the text and return True. The same applies if ``stream`` is None, because it was closed before
    the program started.
    """
    try:
        return _write(stream, text)
    except OSError:
        # A full disk must not stop the command that is running.
        return True


def print_result(stream: TextIO | None, text: str) -> bool:
    """Write a command's result as `write` does, but report a full disk.

    Raises:
        CliError: if the disk is full.
    """
    try:
        return _write(stream, text)
    except OSError as error:
        if stream is not None:
            _redirect_to_null(stream)
        raise CliError(f"cannot write the output: {error.strerror}") from None


def _write(stream: TextIO | None, text: str) -> bool:
    if stream is None:
        return True
    try:
        stream.write(text)
        stream.flush()
    except BlockingIOError:
        # Another program has set the terminal that we share to non-blocking mode. The rest of the text stays in the
        # buffer.
        return True
    except UnicodeEncodeError:
        return _write(stream, text.encode(stream.encoding, "replace").decode(stream.encoding))
    except OSError as error:
        if error.errno in _FULL:
            raise
        _redirect_to_null(stream)
        return False
    return True


def without_output(text: str) -> str:
    """Return a process's error message without the last lines of its output, which have already been shown.

    Settings have the names of our keys and options.
    """
    return text.partition("; the end of its stderr:\n")[0].replace("start_timeout", "start-timeout")


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def shell_status(exit_code: int) -> int:
    """Return the exit status that a shell reports. ``exit_code`` is negative if a signal killed the process."""
    return exit_code if exit_code >= 0 else 128 - exit_code


def paint(text: str, colour: str) -> str:
    """Return ``text`` in a colour, specified by the parameters of the control sequence."""
    return f"\x1b[{colour}m{text}\x1b[0m"


def _redirect_to_null(stream: TextIO) -> None:
    """Redirect ``stream`` to the null device. Otherwise, Python would fail when it flushes unwritten text at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def alert(text: str, *, bell: bool, notify: bool) -> None:
    """On a terminal, ring the bell or show ``text`` as a desktop notification (OSC 9)."""
    if is_terminal(sys.stderr):
        shown = "".join(char for char in text if char.isprintable())
        write(sys.stderr, ("\a" if bell else "") + (f"\x1b]9;{shown}\a" if notify else ""))


def has_colour(stream: TextIO | None, env: Mapping[str, str] = os.environ) -> bool:
    """Return whether to use colours. They are used on a terminal unless NO_COLOR is set (https://no-color.org)."""
    if env.get("NO_COLOR") or env.get("TERM") == "dumb":
        return False
    return is_terminal(stream)


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether ``stream`` is a terminal. It is None if it was closed before the program started."""
    return stream is not None and stream.isatty()


def time_of_day() -> str:
    """Return the local time, such as ``09:30:00``."""
    return time.strftime("%H:%M:%S")


@dataclass(frozen=True, slots=True)
class Console:
    """Prints messages with a prefix on each line. If ``stream`` is None, it uses the current value of `sys.stderr`."""

    colour: bool = False
    stream: TextIO | None = None
    prefix: str = PREFIX
    #: Whether to print only warnings and errors.
    quiet: bool = False
    #: Whether to print the time before the prefix.
    timestamps: bool = False

    def info(self, text: str) -> None:
        """Print a status message."""
        if not self.quiet:
            self._print(text, DIM)

    def success(self, text: str) -> None:
        """Print a message that reports success."""
        if not self.quiet:
            self._print(text, GREEN)

    def warning(self, text: str) -> None:
        """Print a warning."""
        self._print(text, YELLOW)

    def error(self, text: str) -> None:
        """Print an error."""
        self._print(text, RED)

    def not_shown(self, lines: int) -> str:
        """Return the message for output lines that were dropped."""
        verb = "was" if lines == 1 else "were"
        return self._format(f"{plural(lines, 'line')} {verb} not shown, because nothing read the output", YELLOW)

    def _print(self, text: str, colour: str) -> None:
        # We write each message with a single call, so that the lines of two writers are not mixed.
        write(self.stream or sys.stderr, self._format(text, colour))

    def _format(self, text: str, colour: str) -> str:
        prefix = f"{time_of_day()} {self.prefix}" if self.timestamps else self.prefix
        given = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
        lines = [f"{prefix} {plain_line(line)}".rstrip() for line in given]
        if self.colour:
            lines = [paint(line, colour) for line in lines]
        return "".join(line + "\n" for line in lines)


def stderr_console(prefix: str = PREFIX) -> Console:
    """Return a console that prints to standard error."""
    return Console(has_colour(sys.stderr), prefix=prefix)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Format ``rows`` as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "".join(f"{line}\n" for line in lines)


def ago(since: float) -> str:
    """Format a timestamp's age, such as ``3 min``."""
    seconds = max(0, int(time.time() - since))
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def local_time(at: float) -> str:
    """Format a timestamp as a local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))

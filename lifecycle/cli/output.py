"""Exit statuses, errors, and what the commands print."""

from __future__ import annotations

import errno
import os
import sys
import time
from dataclasses import dataclass
from signal import Signals
from typing import TYPE_CHECKING, TextIO

from lifecycle.errors import LifecycleError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "DONE",
    "FAILED",
    "PREFIX",
    "USAGE",
    "CliError",
    "ConfigError",
    "Console",
    "UsageError",
    "ago",
    "columns",
    "has_colour",
    "is_terminal",
    "local_time",
    "paint",
    "print_result",
    "signal_name",
    "stderr_console",
    "without_output",
    "write",
]

#: Done, or stopped on request.
DONE = 0
#: A failure, or ended by force.
FAILED = 1
#: The command line asks for something that cannot be.
USAGE = 2
#: A configuration file, or what it leads to, is wrong.
CONFIGURATION = 3

#: Before each line, where nobody speaks for us by another name.
PREFIX = "[lifecycle]"
#: What keeps a file from growing.
_FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))
_DIM, _RED, _GREEN, _YELLOW = "2", "31", "32", "33"

#: Characters of an error or a value in a list.
_SHORT = 80


class CliError(LifecycleError):
    """Something that ends a command with a message and no traceback."""

    status = FAILED


class UsageError(CliError):
    """The command line is wrong; the message says what to give instead."""

    status = USAGE


class ConfigError(CliError):
    """A file, a key of it, or a variable of the environment is wrong; the message names it."""

    status = CONFIGURATION


def write(stream: TextIO | None, text: str) -> bool:
    """Write ``text`` now; False if its reader has just gone.

    Where ``stream`` was closed when we were started (None), or its reader has gone, there is nobody to tell; later
    calls succeed.
    """
    try:
        return _put(stream, text)
    except OSError:
        # There may be room again later; a full disk is no reason to end what runs.
        return True


def print_result(stream: TextIO | None, text: str) -> bool:
    """Write ``text``, which is what a command was asked for, as `put` does.

    Raises:
        CliError: when the disk is full.
    """
    try:
        return _put(stream, text)
    except OSError as error:
        if stream is not None:
            # As in `_put`.
            _to_nowhere(stream)
        raise CliError(f"the output cannot be written: {error.strerror}") from None


def _put(stream: TextIO | None, text: str) -> bool:
    """As `put`, but for a full disk.

    Raises:
        OSError: when the disk is full.
    """
    if stream is None:
        return True
    try:
        stream.write(text)
        stream.flush()
    except BlockingIOError:
        # A program that shares our terminal left it so; what was not taken stays in the buffer.
        return True
    except UnicodeEncodeError:
        return _put(stream, text.encode(stream.encoding, "replace").decode(stream.encoding))
    except OSError as error:
        if error.errno in _FULL:
            raise
        # Python keeps what it could not write, and would fail with it at exit.
        _to_nowhere(stream)
        return False
    return True


def without_output(text: str) -> str:
    """What the library says of an end, without the last lines of a process, which have been shown already."""
    return text.partition("; its last words:\n")[0]


def signal_name(number: int) -> str:
    """What a signal is called."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def paint(text: str, colour: str) -> str:
    """``text`` in a colour, given as the parameters of the control sequence."""
    return f"\x1b[{colour}m{text}\x1b[0m"


def _to_nowhere(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def has_colour(stream: TextIO | None, env: Mapping[str, str] = os.environ) -> bool:
    """Whether colour is wanted there: a terminal, and nobody said no (https://no-color.org)."""
    if env.get("NO_COLOR") or env.get("TERM") == "dumb":
        return False
    return is_terminal(stream)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody sits there; None is a stream that was closed when we were started."""
    return stream is not None and stream.isatty()


@dataclass(frozen=True, slots=True)
class Console:
    """Prints messages, each line with the prefix; ``stream`` None is whatever standard error is at the time."""

    colour: bool = False
    stream: TextIO | None = None
    prefix: str = PREFIX

    def info(self, text: str) -> None:
        """What happens."""
        self._print(text, _DIM)

    def success(self, text: str) -> None:
        """What was wished for happened."""
        self._print(text, _GREEN)

    def warning(self, text: str) -> None:
        """What the reader may want to change."""
        self._print(text, _YELLOW)

    def error(self, text: str) -> None:
        """What went wrong."""
        self._print(text, _RED)

    def _print(self, text: str, colour: str) -> None:
        lines = [f"{self.prefix} {line}".rstrip() for line in text.splitlines() or [""]]
        if self.colour:
            lines = [paint(line, colour) for line in lines]
        # One write a message: two writers must not interleave within it.
        write(self.stream or sys.stderr, "".join(line + "\n" for line in lines))


def stderr_console(prefix: str = PREFIX) -> Console:
    """Who speaks to a person on standard error."""
    return Console(has_colour(sys.stderr), prefix=prefix)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """``rows``, one below the other, each cell as wide as the widest of its column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "".join(f"{line}\n" for line in lines)


def ago(since: float) -> str:
    """How long ago that was."""
    seconds = max(0, int(time.time() - since))
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def local_time(at: float) -> str:
    """When that was, as the clock on the wall has it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))

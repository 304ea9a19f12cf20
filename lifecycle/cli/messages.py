"""What the commands say to a person: one prefix, colour only where it is wanted.

Messages go to standard error, so that the output of the command that is run stays as it is.
"""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import dataclass
from signal import Signals
from typing import TYPE_CHECKING, TextIO

from lifecycle.cli.failures import CliError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PREFIX", "Voice", "at_terminal", "brief", "colourful", "give", "painted", "put", "signal_name", "voice"]

#: Before each line, where nobody speaks for us by another name.
PREFIX = "[lifecycle]"
#: What keeps a file from growing.
_FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))
_DIM, _RED, _GREEN, _YELLOW = "2", "31", "32", "33"


def put(stream: TextIO | None, text: str) -> bool:
    """Write ``text`` now; False if its reader has just gone.

    Where ``stream`` was closed when we were started (None), or its reader has gone, there is nobody to tell; later
    calls succeed.
    """
    try:
        return _put(stream, text)
    except OSError:
        # There may be room again later; a full disk is no reason to end what runs.
        return True


def give(stream: TextIO | None, text: str) -> bool:
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


def brief(text: str) -> str:
    """What the library says of an end, without the last lines of a process, which have been shown already."""
    return text.partition("; its last words:\n")[0]


def signal_name(number: int) -> str:
    """What a signal is called."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def painted(text: str, colour: str) -> str:
    """``text`` in a colour, given as the parameters of the control sequence."""
    return f"\x1b[{colour}m{text}\x1b[0m"


def _to_nowhere(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def colourful(stream: TextIO | None, env: Mapping[str, str] = os.environ) -> bool:
    """Whether colour is wanted there: a terminal, and nobody said no (https://no-color.org)."""
    if env.get("NO_COLOR") or env.get("TERM") == "dumb":
        return False
    return at_terminal(stream)


def at_terminal(stream: TextIO | None) -> bool:
    """Whether somebody sits there; None is a stream that was closed when we were started."""
    return stream is not None and stream.isatty()


@dataclass(frozen=True, slots=True)
class Voice:
    """Prints messages, each line with the prefix; ``stream`` None is whatever standard error is at the time."""

    colour: bool = False
    stream: TextIO | None = None
    prefix: str = PREFIX

    def say(self, text: str) -> None:
        """What happens."""
        self._print(text, _DIM)

    def good(self, text: str) -> None:
        """What was wished for happened."""
        self._print(text, _GREEN)

    def warn(self, text: str) -> None:
        """What the reader may want to change."""
        self._print(text, _YELLOW)

    def bad(self, text: str) -> None:
        """What went wrong."""
        self._print(text, _RED)

    def _print(self, text: str, colour: str) -> None:
        lines = [f"{self.prefix} {line}".rstrip() for line in text.splitlines() or [""]]
        if self.colour:
            lines = [painted(line, colour) for line in lines]
        # One write a message: two writers must not interleave within it.
        put(self.stream or sys.stderr, "".join(line + "\n" for line in lines))


def voice(prefix: str = PREFIX) -> Voice:
    """Who speaks to a person on standard error."""
    return Voice(colourful(sys.stderr), prefix=prefix)

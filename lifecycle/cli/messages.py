"""What the commands say to a person: one prefix, colour only where it is wanted.

Messages go to standard error, so that the output of the command that is run stays as it is.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Voice", "colourful"]

_PREFIX = "[lifecycle]"
_DIM, _RED, _GREEN, _YELLOW = "2", "31", "32", "33"


def colourful(stream: TextIO, env: Mapping[str, str] = os.environ) -> bool:
    """Whether colour is wanted there: a terminal, and nobody said no (https://no-color.org)."""
    if env.get("NO_COLOR") or env.get("TERM") == "dumb":
        return False
    return stream.isatty()


@dataclass(frozen=True, slots=True)
class Voice:
    """Prints messages, each line with the prefix; ``stream`` None is whatever standard error is at the time."""

    colour: bool = False
    stream: TextIO | None = None

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
        lines = [f"{_PREFIX} {line}".rstrip() for line in text.splitlines() or [""]]
        if self.colour:
            lines = [f"\x1b[{colour}m{line}\x1b[0m" for line in lines]
        # One write a message: two writers must not interleave within it.
        stream = self.stream or sys.stderr
        stream.write("".join(line + "\n" for line in lines))
        stream.flush()

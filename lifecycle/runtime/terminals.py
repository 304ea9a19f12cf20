"""The terminal: its modes are given back as they were found, also when the process is ended by force."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

if sys.platform != "win32":
    import termios

__all__ = ["Terminal"]


class Terminal:
    """The terminal at stdin, if there is one."""

    def __init__(self) -> None:
        self._fd = -1
        self._modes: list[Any] | None = None

    @contextmanager
    def kept(self) -> Generator[None]:
        """Restore at the end of the block what was at its beginning."""
        self._remember()
        try:
            yield
        finally:
            self.restore()
            self._modes = None

    def restore(self) -> None:
        """Set the modes as they were, if they differ and the terminal is ours to set."""
        if self._modes is None:
            return
        # termios.error is no OSError
        with suppress(Exception):
            # In the background, setting modes would stop the process.
            if termios.tcgetattr(self._fd) != self._modes and os.tcgetpgrp(self._fd) == os.getpgrp():
                termios.tcsetattr(self._fd, termios.TCSANOW, self._modes)

    def _remember(self) -> None:
        # stdin may be None, closed, or something without a descriptor.
        with suppress(AttributeError, OSError, ValueError):
            self._fd = sys.stdin.fileno()
            if sys.platform != "win32" and os.isatty(self._fd):
                self._modes = termios.tcgetattr(self._fd)

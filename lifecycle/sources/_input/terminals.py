"""The terminal as prompt_toolkit gets it from us.

Ctrl+C stays what it is elsewhere: the terminal sends SIGINT. prompt_toolkit would read it as a key, and then nothing
could end a program whose loop is blocked.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

if sys.platform != "win32":
    import termios

    from prompt_toolkit.input.vt100 import Vt100Input, raw_mode
    from prompt_toolkit.output.vt100 import Vt100_Output

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import TextIO

__all__ = ["terminal"]

_log = logging.getLogger("lifecycle.sources")


def terminal() -> dict[str, Any]:
    """Our own input and output, where prompt_toolkit lets us have them."""
    if sys.platform == "win32":
        return {}
    output = _Screen.from_pty(sys.stdout, term=os.environ.get("TERM"))
    output.enable_cpr = False
    return {"input": _Keyboard(sys.stdin), "output": output}


if sys.platform != "win32":

    class _Screen(Vt100_Output):
        """Does not ask the terminal where the cursor is, which takes up to a second to answer, also when leaving."""

        def get_rows_below_cursor_position(self) -> int:
            return 1  # more are made by scrolling

    class _Keyboard(Vt100Input):
        def __init__(self, stdin: TextIO) -> None:
            super().__init__(stdin)
            self._modes = _modes(self.fileno())

        def raw_mode(self) -> AbstractContextManager[None]:
            return _Raw(self.fileno())

        def cooked_mode(self) -> AbstractContextManager[None]:
            return _AsBefore(self.fileno(), self._modes)

    class _AsBefore(raw_mode):
        """The terminal as it was before the prompt, for output above it and while the process is stopped."""

        def __init__(self, fd: int, modes: list[Any]) -> None:
            super().__init__(fd)
            self._modes = modes

        def __enter__(self) -> None:
            if self._modes:
                termios.tcsetattr(self.fileno, termios.TCSANOW, self._modes)

    class _Raw(raw_mode):
        """Keys come as they are pressed, but Ctrl+C is SIGINT."""

        def __enter__(self) -> None:
            super().__enter__()
            try:
                attributes = termios.tcgetattr(self.fileno)
                # Without NOFLSH, Ctrl+C would throw away output that is on its way.
                attributes[3] |= termios.ISIG | termios.NOFLSH
                # Ctrl+Z stays a key: prompt_toolkit restores the terminal before it stops the process.
                off = os.fpathconf(self.fileno, "PC_VDISABLE").to_bytes(1, sys.byteorder)
                attributes[6][termios.VSUSP] = attributes[6][termios.VQUIT] = off
                termios.tcsetattr(self.fileno, termios.TCSANOW, attributes)
            except (OSError, termios.error) as error:
                _log.debug("the terminal cannot be set: %s", error)


def _modes(fd: int) -> list[Any]:
    try:
        return termios.tcgetattr(fd)
    except termios.error:  # it has just gone away
        return []

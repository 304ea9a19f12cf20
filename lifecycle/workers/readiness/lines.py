"""Ready by a line of output."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lifecycle.workers.stdio import Command

__all__ = ["Line"]

#: Characters of a line that are looked at: an expression may take a time that grows with the square of it.
_LOOKED_AT: Final = 4096


class Line:
    """Ready when a line that it writes, to either stream, has a match of the regular expression ``pattern``.

    Raises:
        ValueError: for what is no regular expression.
    """

    news = ""

    def __init__(self, pattern: str) -> None:
        if not pattern:
            raise ValueError("there is no expression to look for")
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from None
        self._found: asyncio.Future[None] | None = None

    def __str__(self) -> str:
        return f"write a line that matches {self._pattern.pattern!r}"

    def hear(self, line: str) -> None:
        """Look at one line of output; later ones cost nothing."""
        if self._found is None or self._found.done():
            return
        if self._pattern.search(line, 0, _LOOKED_AT):
            self._found.set_result(None)

    def prepare(self, command: Command) -> Command:
        """Listen from the first line on."""
        self._found = asyncio.get_running_loop().create_future()
        return command

    def reached(self, ours: Any) -> asyncio.Future[None]:  # noqa: ARG002  # a line has come through its own pipe
        """Done when one has come."""
        assert self._found is not None, "it was prepared"
        return self._found

    def close(self) -> None:
        """Nothing is held."""

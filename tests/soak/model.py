"""The target of each pool worker. Workers import it by name, so it imports nothing heavy."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.soak.notes import Notes

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Model"]


class Model:
    """Records the calls that it has executed, each of which may run only once."""

    def __init__(self, directory: str, life: int) -> None:
        self._notes = Notes(Path(directory), life)
        self._said: dict[str, int] = {}

    def do(self, number: int, seconds: float) -> int:
        """Execute an ordinary call."""
        self._notes.note("call", number)
        time.sleep(seconds)
        return number

    def say(self, number: int, session: str) -> int:
        """Execute a call that depends on earlier calls in its session."""
        self._notes.note("call", number)
        self._said[session] = self._said.get(session, 0) + 1
        return self._said[session]

    def items(self, number: int, count: int) -> Iterator[int]:
        """Stream the result in pieces."""
        self._notes.note("call", number)
        yield from range(count)

    def fail(self, number: int) -> None:
        """Raise an error."""
        self._notes.note("call", number)
        raise ValueError(f"{number} is none")

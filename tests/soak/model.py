"""The target of each pool worker. It is imported there by name, so it imports nothing heavy."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.soak.notes import Notes

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Model"]


class Model:
    """Records the calls it has carried out, each at most once."""

    def __init__(self, directory: str, life: int) -> None:
        self._notes = Notes(Path(directory), life)
        self._said: dict[str, int] = {}

    def do(self, number: int, seconds: float) -> int:
        """A call like any other."""
        self._notes.note("call", number)
        time.sleep(seconds)
        return number

    def say(self, number: int, session: str) -> int:
        """A call that depends on those before it."""
        self._notes.note("call", number)
        self._said[session] = self._said.get(session, 0) + 1
        return self._said[session]

    def items(self, number: int, count: int) -> Iterator[int]:
        """An answer in pieces."""
        self._notes.note("call", number)
        yield from range(count)

    def fail(self, number: int) -> None:
        """A call that raises."""
        self._notes.note("call", number)
        raise ValueError(f"{number} is none")

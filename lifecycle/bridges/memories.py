"""What became of events here, while the process lives: a server that is killed forgets the last of it."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

__all__ = ["Key", "Memory"]

_Value = TypeVar("_Value")

#: A message: its number in the stream, and when it was stored, since a stream that was made anew counts anew.
Key: TypeAlias = tuple[int, str]

#: Events that are remembered, of each kind.
_MOST = 10_000


class Memory:
    """Which of the last events were handled, and how often the others have failed."""

    def __init__(self) -> None:
        # Both in the order in which they were noted; the oldest is forgotten first.
        self._handled: dict[Key, None] = {}
        self._failures: dict[Key, int] = {}

    def attempt(self, key: Key, delivered: int) -> int:
        """Which attempt this is, where the server says that it was ``delivered`` so often."""
        return max(delivered, self._failures.get(key, 0) + 1)

    def failed(self, key: Key, attempt: int) -> None:
        """Its ``attempt`` has failed."""
        _note(self._failures, key, attempt)

    def handled(self, key: Key) -> None:
        """It has come to its end."""
        self._failures.pop(key, None)
        _note(self._handled, key, None)

    def was_handled(self, key: Key) -> bool:
        """Whether it comes again though it has come to its end: what was said of that got lost."""
        return key in self._handled


def _note(notes: dict[Key, _Value], key: Key, value: _Value) -> None:
    if len(notes) >= _MOST:
        del notes[next(iter(notes))]
    notes[key] = value

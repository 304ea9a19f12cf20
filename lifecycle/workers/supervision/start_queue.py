"""The children that are to be started in order: the start of each ends before that of the next begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from lifecycle.workers.supervision.mailbox import Mailbox
    from lifecycle.workers.supervision.slots import Slot

__all__ = ["StartQueue"]


class StartQueue:
    """One at a time; a supervisor has one queue, at its own start and for the restart of a group."""

    def __init__(self, mailbox: Mailbox, begin: Callable[[Slot], None]) -> None:
        self._mailbox = mailbox
        self._begin = begin
        # Only the first is being started. A later queue replaces an earlier one: the number tells their timers apart.
        self._slots: list[Slot] = []
        self._number = 0
        self._waiting = False
        self._timer: asyncio.TimerHandle | None = None

    def __contains__(self, slot: Slot) -> bool:
        return slot in self._slots

    @property
    def empty(self) -> bool:
        """Whether nobody is left in it."""
        return not self._slots

    def fill(self, slots: Sequence[Slot], delay: float = 0.0) -> None:
        """Start ``slots``, which are empty, after ``delay`` seconds; a queue before this is forgotten."""
        self.clear()
        self._slots = list(slots)
        number, self._waiting = self._number, True

        async def due() -> None:
            if number == self._number:
                self._waiting = False
                self.advance()

        self._timer = self._mailbox.after(delay, due)

    def add(self, slot: Slot) -> None:
        """Go to its end."""
        self._slots.append(slot)

    def discard(self, slot: Slot) -> None:
        """Step out, wherever it stands."""
        if slot in self._slots:
            self._slots.remove(slot)

    def advance(self) -> None:
        """Start the first if its time has come."""
        if self._slots and not self._waiting and self._slots[0].opening is None:
            self._begin(self._slots[0])

    def clear(self) -> None:
        """Start nobody."""
        if self._timer is not None:
            self._timer.cancel()
        self._slots, self._timer = [], None
        self._number += 1

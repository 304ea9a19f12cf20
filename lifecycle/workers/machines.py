"""The machine of a worker's states, for those who have to know at once that it moved: its supervisor."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from lifecycle.errors import InvalidTransition
from lifecycle.states import Machine
from lifecycle.workers.status import TABLE, Status

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Listener", "StatusMachine"]

#: Called with the old and the new status, in the turn of the loop in which it moved; it MUST NOT raise.
Listener: TypeAlias = "Callable[[Status, Status], None]"


class StatusMachine(Machine[Status]):
    """The ten states of one worker, and those who listen to its moves."""

    def __init__(self, name: str) -> None:
        super().__init__(name, TABLE, Status.CREATED)
        self._listeners: tuple[Listener, ...] = ()

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` at every move from now on."""
        self._listeners = (*self._listeners, listener)

    @property
    def moved_at(self) -> float | None:
        """When it changed last, in seconds since the epoch; None before the first change."""
        return self._history[-1][3] if self._history else None

    def require_suspended(self) -> None:
        """Raise `InvalidTransition` unless it is suspended: a start, too, may go to RUNNING, but by itself alone."""
        if self._state is not Status.SUSPENDED:
            raise InvalidTransition(f"{self.name!r} is {self._state}; only what is suspended can be resumed")

    def to(self, target: Status, reason: str = "") -> bool:
        """Move as `Machine.to`, and tell who listens."""
        old = self._state
        moved = super().to(target, reason)
        if moved:
            for listener in self._listeners:
                listener(old, target)
        return moved

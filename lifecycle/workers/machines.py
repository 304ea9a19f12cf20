"""The machine of a worker's states, for those who have to know at once that it moved: its supervisor."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from lifecycle.states import Machine
from lifecycle.workers.status import TABLE, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.states import Transition

__all__ = ["Listener", "StatusMachine"]

#: Called with the old and the new status, in the turn of the loop in which it moved; it MUST NOT raise.
Listener: TypeAlias = "Callable[[Status, Status], None]"


class StatusMachine(Machine[Status]):
    """The ten states of one worker, and at most one listener."""

    def __init__(self, name: str) -> None:
        super().__init__(name, TABLE, Status.CREATED)
        self.listener: Listener | None = None

    @property
    def last(self) -> Transition[Status] | None:
        """The last change; None before the first."""
        return self._history[-1] if self._history else None

    def to(self, target: Status, reason: str = "") -> bool:
        """Move as `Machine.to`, and tell the listener."""
        old = self.state
        moved = super().to(target, reason)
        if moved and self.listener is not None:
            self.listener(old, target)
        return moved

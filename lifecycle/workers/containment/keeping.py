"""Keeping the guard from one worker to the next: to start another takes ten times as long as to start a command."""

from __future__ import annotations

from lifecycle.workers.containment.guards import guards

__all__ = ["Keep"]


class Keep:
    """One who keeps the guard, once there is one."""

    __slots__ = ("_holds",)

    def __init__(self) -> None:
        self._holds = False

    def hold(self) -> None:
        """Have the guard that there is stay until the release; any number of times."""
        if not self._holds and guards.pid is not None:
            guards.hold()
            self._holds = True

    async def release(self) -> None:
        """Keep it no more."""
        if self._holds:
            self._holds = False
            await guards.release()

"""Who has the guard besides the `Bond` of a process: a supervisor between two workers, and a container."""

from __future__ import annotations

from contextlib import suppress

from lifecycle.workers.containment.guards import guards, why_no_guard
from lifecycle.workers.containment.levels import Level

__all__ = ["Keep", "Ward"]


class Keep:
    """One who keeps the guard from one worker to the next: to start another takes far longer than a command."""

    __slots__ = ("_holds",)

    def __init__(self) -> None:
        self._holds = False

    def hold(self) -> None:
        """Have the guard that there is stay until the release; any number of times."""
        if not self._holds and guards.pid is not None:
            guards.keep()
            self._holds = True

    async def release(self) -> None:
        """Keep it no more."""
        if self._holds:
            self._holds = False
            await guards.release()


class Ward:
    """One container, from before its creation to after its removal: the guard has its engine remove what we leave."""

    def __init__(self) -> None:
        #: How it is held; None before it is.
        self.level: Level | None = None
        self._container: str | None = None

    def take(self, container: str, socket: str | None) -> None:
        """Have the guard see to ``container``, if there can be one, and the engine has a ``socket`` on this machine."""
        self.level = Level.DETACHED
        if socket is None or why_no_guard() is not None:
            return
        with suppress(OSError):
            guards.hold()
            self._container = container
            guards.add_container(container, socket)
            self.level = Level.GUARD

    async def release(self) -> None:
        """It is removed; any number of times."""
        if self._container is not None:
            guards.remove_container(self._container)
            self._container = None
            await guards.release()

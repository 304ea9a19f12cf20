"""A container that is not left alone when this program is gone: the guard has its engine remove it."""

from __future__ import annotations

from contextlib import suppress

from lifecycle.workers.containment.guards import guards, why_not
from lifecycle.workers.containment.levels import Level

__all__ = ["Ward"]


class Ward:
    """One container, from before its creation to after its removal."""

    def __init__(self) -> None:
        #: How it is held; None before it is.
        self.level: Level | None = None
        self._container: str | None = None

    def take(self, container: str, socket: str | None) -> None:
        """Have the guard see to ``container``, if there can be one, and the engine has a ``socket`` on this machine."""
        self.level = Level.DETACHED
        if socket is None or why_not() is not None:
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

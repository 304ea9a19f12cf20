"""`Escalator`: one handler as long as it will do, then another."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from lifecycle._util import name_of
from lifecycle.control.routing import as_async
from lifecycle.errors import Dropped, NotHandled

if TYPE_CHECKING:
    from lifecycle.control.types import Handler
    from lifecycle.events import Topical

__all__ = ["Escalator"]


class Escalator:
    """Gives events to ``primary``, and for good to ``fallback`` once that is not enough.

    That is so when ``primary`` raises `NotHandled` (the same event then goes to ``fallback``; `Dropped` is given up on
    purpose and changes nothing), or, with ``window``, on a second event within ``window`` seconds of the one before
    it, also while ``primary`` is still busy with that one. Any other error of ``primary`` comes out and changes
    nothing.

    `reset` begins anew. A `SuspendHandler` as ``primary`` does so itself after each resume that succeeded; for any
    other, pass ``escalator.reset`` to its ``when_resumed``.

    Raises:
        TypeError: for handlers that are no callables of one argument.
        ValueError: unless ``window`` is None or above 0.
    """

    def __init__(self, primary: Handler, fallback: Handler, *, window: float | None = None) -> None:
        if window is not None and window <= 0:
            raise ValueError(f"Escalator(window={window!r}) is no span of time; give seconds above 0, or None")
        self._primary, self._fallback = as_async(primary), as_async(fallback)
        self._names = f"{name_of(primary)} to {name_of(fallback)}"
        self._window = window
        self._last = -math.inf
        #: Whether ``fallback`` gets the events now.
        self.escalated: bool = False
        when_resumed = getattr(primary, "when_resumed", None)
        if when_resumed is not None:
            when_resumed(self.reset)

    def __repr__(self) -> str:
        return f"<Escalator from {self._names}{', escalated' if self.escalated else ''}>"

    def reset(self) -> None:
        """Give the next event to ``primary`` again."""
        self.escalated = False
        self._last = -math.inf

    async def __call__(self, event: Topical) -> None:
        """Handle ``event``; errors of whichever handler got it come out."""
        if self._is_second():
            self.escalated = True
        if not self.escalated:
            try:
                await self._primary(event)
            except Dropped:
                raise
            except NotHandled:
                self.escalated = True
            else:
                return
        await self._fallback(event)

    def _is_second(self) -> bool:
        if self._window is None:
            return False
        now = asyncio.get_running_loop().time()
        before, self._last = self._last, now
        return now - before <= self._window

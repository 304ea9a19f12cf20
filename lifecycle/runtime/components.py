"""What lives under a lifetime and can be asked for its ``state()``: routers, workers, and what says that it opens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifecycle import hooks

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.runtime.lives import Life

__all__ = ["Components"]


class Components:
    """Remembers them in the order in which they came, as hooks tell of them."""

    def __init__(self, life: Life) -> None:
        self._life = life
        # By identity, each with how often it was opened: one board may do several kinds of work at once.
        self._open: dict[int, tuple[object, int]] = {}

    def connect(self) -> Callable[[], None]:
        """Begin to remember; returns what ends it."""
        opening, closing = (
            (hooks.component_opened, hooks.router_started),
            (hooks.component_closed, hooks.router_stopped),
        )
        for hook in opening:
            hook.connect(self._opened)
        for hook in closing:
            hook.connect(self._closed)

        def disconnect() -> None:
            for hook in opening:
                hook.disconnect(self._opened)
            for hook in closing:
                hook.disconnect(self._closed)

        return disconnect

    def __call__(self) -> tuple[object, ...]:
        """Those that are there."""
        return tuple(component for component, _ in self._open.values())

    def _opened(self, sender: object, **_: object) -> None:
        """The sender, of a router's hook too, is what opens."""
        if self._life.is_here():
            times = self._open[id(sender)][1] if id(sender) in self._open else 0
            self._open[id(sender)] = sender, times + 1

    def _closed(self, sender: object, **_: object) -> None:
        """It may be closed anywhere, it was opened here."""
        times = self._open.pop(id(sender))[1] if id(sender) in self._open else 1
        if times > 1:
            self._open[id(sender)] = sender, times - 1

"""`Onlooker`: something that looks on as long as it is entered, or as long as a program lives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from lifecycle.runtime.lifetimes import current_life
from lifecycle.runtime.mains import Auxiliary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AsyncExitStack

    from lifecycle.hooks import Hook
    from lifecycle.runtime.lifetimes import Lifetime

__all__ = ["Onlooker"]


class Onlooker(Auxiliary):
    """Listens to hooks from when it is entered until it is left; an auxiliary main of `run`, best the first.

    When it is left because the program ends, it goes on until the shutdown hooks have run, so that it sees those, too.
    """

    _taken: ClassVar[str] = "looks on already; make another"

    def __init__(self) -> None:
        super().__init__()
        self._lifetime: Lifetime | None = None

    async def close(self) -> None:
        """Look away now; any number of times."""
        await self._held.aclose()

    async def _open(self, held: AsyncExitStack) -> None:
        # One that was left while the program ended still looks on.
        await self.close()
        life = current_life.get(None)
        self._lifetime = None if life is None else life.lifetime
        self._begin(held, self._lifetime)
        if life is not None:
            life.flush_hooks.add(self.close)
            held.callback(life.flush_hooks.discard, self.close)

    async def _leave(self) -> None:
        """Where the program ends, not before its shutdown hooks have run."""
        if self._lifetime is None or not self._lifetime.stopping:
            await self.close()

    def _begin(self, held: AsyncExitStack, lifetime: Lifetime | None) -> None:
        """Begin to look on; ``held`` has what undoes it."""
        raise NotImplementedError

    @staticmethod
    def _connect(held: AsyncExitStack, receivers: Iterable[tuple[Hook, Callable[..., Any]]]) -> None:
        for hook, receiver in receivers:
            hook.connect(receiver)
            held.callback(hook.disconnect, receiver)

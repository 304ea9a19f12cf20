"""`HookObserver`: the base class of what listens to hooks while it is entered, or for the life of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from lifecycle.runtime.lifetimes import current_life
from lifecycle.runtime.mains import Auxiliary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AsyncExitStack

    from lifecycle.hooks import Hook
    from lifecycle.runtime.lifetimes import Lifetime

__all__ = ["HookObserver"]


class HookObserver(Auxiliary):
    """Listens to hooks from entering it until leaving it; an auxiliary main of `run`, best the first.

    If it is left because the program ends, it listens until the shutdown hooks have run, so that it sees those too.
    """

    _taken: ClassVar[str] = "is open already; make another"

    def __init__(self) -> None:
        super().__init__()
        self._lifetime: Lifetime | None = None

    async def _open(self, held: AsyncExitStack) -> None:
        # If it was left while the program ended, it still listens.
        await self._stop()
        life = current_life.get(None)
        self._lifetime = None if life is None else life.lifetime
        self._begin(held, self._lifetime)
        if life is not None:
            life.flush_hooks.add(self._stop)
            held.callback(life.flush_hooks.discard, self._stop)

    async def _leave(self) -> None:
        if self._lifetime is None or not self._lifetime.stopping:
            await self._stop()

    async def _stop(self) -> None:
        await self._held.aclose()

    def _begin(self, held: AsyncExitStack, lifetime: Lifetime | None) -> None:
        """Begin to listen; ``held`` gets what ends it."""
        raise NotImplementedError

    @staticmethod
    def _connect(held: AsyncExitStack, receivers: Iterable[tuple[Hook, Callable[..., Any]]]) -> None:
        for hook, receiver in receivers:
            hook.connect(receiver)
            held.callback(hook.disconnect, receiver)

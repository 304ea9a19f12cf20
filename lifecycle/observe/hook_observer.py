"""`HookObserver`: a base class for components that listen to hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from lifecycle.observe.auxiliary import Auxiliary
from lifecycle.runtime.lifetimes import current_lifetime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AsyncExitStack

    from lifecycle.hooks import Hook
    from lifecycle.runtime.lifetimes import Lifetime

__all__ = ["HookObserver"]


class HookObserver(Auxiliary):
    """A base class for components that listen to hooks. Pass them to `run`, preferably first, or use ``async with``.

    During a shutdown, an observer keeps listening until the shutdown hooks have run, so that it also records their
    effects.
    """

    _taken: ClassVar[str] = "is already open; create another"

    def __init__(self) -> None:
        super().__init__()
        self._lifetime: Lifetime | None = None

    async def _open(self, held: AsyncExitStack) -> None:
        # If the context was exited during a shutdown, the observer is still listening.
        await self._stop()
        self._lifetime = life = current_lifetime()
        self._begin(held, self._lifetime)
        if life is not None:
            held.callback(life.own_flush(self._stop).end)

    async def _leave(self) -> None:
        if self._lifetime is None or not self._lifetime.stopping:
            await self._stop()

    async def _stop(self) -> None:
        await self._held.aclose()

    def _begin(self, held: AsyncExitStack, lifetime: Lifetime | None) -> None:
        """Start listening, and add the cleanup to ``held``."""
        raise NotImplementedError

    @staticmethod
    def _connect(held: AsyncExitStack, receivers: Iterable[tuple[Hook, Callable[..., Any]]]) -> None:
        for hook, receiver in receivers:
            hook.connect(receiver)
            held.callback(hook.disconnect, receiver)

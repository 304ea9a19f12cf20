"""`Onlooker`: something that looks on as long as it is entered, or as long as a program lives."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, ClassVar

from lifecycle.runtime.lifetimes import current_life

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from lifecycle.hooks import Hook
    from lifecycle.runtime.lifetimes import Lifetime

__all__ = ["Onlooker"]


class Onlooker:
    """Listens to hooks from when it is entered until it is left; an auxiliary main of `run`, best the first.

    When it is left because the program ends, it goes on until the shutdown hooks have run, so that it sees those, too.
    """

    #: For `run`: a program whose other mains have ended does not go on for its sake.
    auxiliary: ClassVar[bool] = True

    def __init__(self) -> None:
        self._looking = asyncio.Event()
        self._held = AsyncExitStack()
        self._lifetime: Lifetime | None = None

    async def __aenter__(self) -> Self:
        """Begin to look on.

        Raises:
            RuntimeError: where it does already.
        """
        if self._looking.is_set():
            raise RuntimeError(f"{self!r} looks on already; make another")
        # One that was left while the program ended still does.
        await self.close()
        life = current_life.get(None)
        lifetime = self._lifetime = None if life is None else life.lifetime
        self._held = AsyncExitStack()
        try:
            self._open(self._held, lifetime)
            if life is not None:
                life.add_flush(self.close)
                self._held.callback(life.flushes.discard, self.close)
        except BaseException:
            await self.close()
            raise
        self._looking.set()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Look away; where the program ends, when its shutdown hooks have run."""
        self._looking.clear()
        if self._lifetime is None or not self._lifetime.stopping:
            await self.close()

    async def close(self) -> None:
        """Look away now; any number of times."""
        await self._held.aclose()

    async def run(self) -> None:
        """Look on until cancelled; `run` calls this."""
        async with self:
            await asyncio.Event().wait()

    async def wait_running(self) -> None:
        """Wait until it looks on."""
        await self._looking.wait()

    def _open(self, held: AsyncExitStack, lifetime: Lifetime | None) -> None:
        """Connect what is to be connected; ``held`` has what undoes it."""
        raise NotImplementedError

    @staticmethod
    def _connect(held: AsyncExitStack, hook: Hook, receiver: Callable[..., Any]) -> None:
        hook.connect(receiver)
        held.callback(hook.disconnect, receiver)

"""`Auxiliary`: the base of what is up beside a program's work, such as a probe server, a control socket, an event log.

It saves them the same few lines, and nobody has to have it: `run` takes any object with ``run()``, waits for its
``wait_running()`` where there is one, and does not go on for the sake of what is ``auxiliary``.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["Auxiliary"]


class Auxiliary:
    """Up inside ``async with``, or as a main of `run`; a class of this kind says in `_open` what that means."""

    #: For `run`: a program whose other mains have ended does not go on for its sake.
    auxiliary: ClassVar[bool] = True

    #: What somebody is told who enters it twice.
    _taken: ClassVar[str] = "is up already; make another"

    def __init__(self) -> None:
        self._up = asyncio.Event()
        # What is given back when it is left.
        self._held = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open it.

        Raises:
            RuntimeError: when it is open already.
        """
        if self._up.is_set():
            raise RuntimeError(f"{self!r} {self._taken}")
        async with AsyncExitStack() as held:
            await self._open(held)
            self._held = held.pop_all()
        self._up.set()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        self._up.clear()
        await self._leave()

    async def run(self) -> None:
        """Be open until cancelled; `run` calls this."""
        async with self:
            await asyncio.Event().wait()

    async def wait_running(self) -> None:
        """Wait until it is open."""
        await self._up.wait()

    async def _open(self, held: AsyncExitStack) -> None:
        """Take what it needs; ``held`` has what undoes it, also where this fails half-way."""
        raise NotImplementedError

    async def _leave(self) -> None:
        await self._held.aclose()

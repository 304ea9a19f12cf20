"""`Auxiliary`: a base class for servers and observers that accompany a program."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["Auxiliary"]


class Auxiliary:
    """Base class for servers and observers that are open during ``async with`` or while they are a main of `run`.

    You do not have to use it: `run` accepts any object with a ``run()`` method, and waits for its ``wait_running()`` if
    it has one. The program ends when the only mains left are those whose ``auxiliary`` is true.
    """

    #: A program ends when only auxiliary mains are left.
    auxiliary: ClassVar[bool] = True

    #: The message of the error that is raised if the object is entered twice. The object's ``repr`` precedes it.
    _taken: ClassVar[str] = "is already open; create another"

    def __init__(self) -> None:
        self._up = asyncio.Event()
        # Closed when the block is exited.
        self._held = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open the object.

        Raises:
            RuntimeError: if the object is already open.
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
        """Close the object."""
        self._up.clear()
        await self._leave()

    async def run(self) -> None:
        """Stay open until cancelled. `run` calls this."""
        async with self:
            await asyncio.Event().wait()

    async def wait_running(self) -> None:
        """Wait until the object is open."""
        await self._up.wait()

    async def _open(self, held: AsyncExitStack) -> None:
        """Acquire the resources. Register each release in ``held``, in case acquiring a later resource fails."""
        raise NotImplementedError

    async def _leave(self) -> None:
        await self._held.aclose()

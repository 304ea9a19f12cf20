"""`Gate`: the place in a loop where it may be held."""

from __future__ import annotations

import asyncio
from typing import Any

from lifecycle.errors import InvalidTransition

__all__ = ["Gate"]


class Gate:
    """Holds loops where they are fit to be held; what they hold in memory stays.

    A loop belongs to the gate from its first `checkpoint` until its task ends. Any number of loops may share one::

        async def count(gate: Gate) -> None:
            while True:
                await gate.checkpoint()
                await do_one_step()
    """

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        # The tasks that came by and have not ended, and those of them that are held now.
        self._loops: set[asyncio.Task[Any]] = set()
        self._held: set[asyncio.Task[Any]] = set()
        # Whether a loop ever came: before that nobody can say that all are held.
        self._known = False
        # Set whenever who waits for all loops has to look again.
        self._moved = asyncio.Event()
        self._waiting = 0

    def __repr__(self) -> str:
        return f"<Gate: {'suspended' if self.suspended else 'open' if self._open.is_set() else 'closing'}>"

    @property
    def suspended(self) -> bool:
        """Whether every loop is held."""
        return not self._open.is_set() and self._known and self._loops <= self._held

    async def checkpoint(self) -> None:
        """Go on at once, or wait here while the gate is closed; a stop (a cancellation) ends the wait."""
        task = asyncio.current_task()
        assert task is not None, "a coroutine that awaits runs in a task"
        if task not in self._loops:
            self._enrol(task)
        if self._open.is_set():
            # Or a loop that has nothing else to wait for would let nobody close the gate.
            await asyncio.sleep(0)
        while not self._open.is_set():
            await self._stay(task)

    async def suspend(self, timeout: float | None = None) -> None:
        """Close the gate and return when every loop is held at it; one that has ended is not waited for.

        Who gives up waiting, also by cancellation, opens it again, unless somebody else suspended it too.

        Raises:
            TimeoutError: if a loop has not come by within ``timeout`` seconds.
            InvalidTransition: if the gate was resumed meanwhile.
        """
        self._open.clear()
        self._waiting += 1
        try:
            async with asyncio.timeout(timeout):
                await self._all_held()
        except BaseException:
            if self._waiting == 1 and not self.suspended:
                self.resume()
            raise
        finally:
            self._waiting -= 1

    def resume(self) -> None:
        """Open the gate; every loop goes on. Nothing happens if it is open."""
        # Those that were held are on their way: a suspension that follows waits until they come by again.
        self._held.clear()
        self._open.set()
        self._moved.set()

    async def _all_held(self) -> None:
        while not self.suspended:
            self._moved.clear()
            await self._moved.wait()
            if self._open.is_set():
                raise InvalidTransition("the gate was resumed before every loop had reached it; suspend it again")

    async def _stay(self, task: asyncio.Task[Any]) -> None:
        self._held.add(task)
        self._moved.set()
        try:
            await self._open.wait()
        finally:
            self._held.discard(task)

    def _enrol(self, task: asyncio.Task[Any]) -> None:
        self._known = True
        self._loops.add(task)
        task.add_done_callback(self._leave)

    def _leave(self, task: asyncio.Task[Any]) -> None:
        self._loops.discard(task)
        self._moved.set()

"""Commands that run where Ctrl+C can reach them."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

from lifecycle._steering.answers import say
from lifecycle.errors import Dropped

if TYPE_CHECKING:
    from lifecycle.control import AsyncHandler
    from lifecycle.events import Topical

__all__ = ["RunningCommands"]


class RunningCommands:
    """Those that are being carried out, each in a task of its own that can be cancelled."""

    def __init__(self) -> None:
        # In the order in which they began.
        self._running: list[asyncio.Task[Any]] = []
        # Those of them that Ctrl+C has cancelled.
        self._cancelled: set[asyncio.Task[Any]] = set()

    def track(self, handler: AsyncHandler) -> AsyncHandler:
        """A middleware: commands run where Ctrl+C can reach them."""

        @functools.wraps(handler, updated=())
        async def tracked(event: Topical) -> None:
            if not event.topic.startswith("command/"):
                await handler(event)
                return
            await self._run(event.topic.removeprefix("command/"), handler, event)

        return tracked

    async def _run(self, name: str, handler: AsyncHandler, event: Topical) -> None:
        task = asyncio.ensure_future(_awaited(handler, event))
        self._running.append(task)
        try:
            await asyncio.wait({task})
            if task in self._cancelled and task.cancelled():
                say(f"{name} was cancelled")
                raise Dropped(f"the command {name!r} was cancelled by Ctrl+C")
            task.result()
        finally:
            self._running.remove(task)
            self._cancelled.discard(task)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    def cancel(self) -> bool:
        """Cancel all that run, the oldest first; whether there were any."""
        running = [task for task in self._running if task not in self._cancelled]
        self._cancelled.update(running)
        for task in running:
            task.cancel("Ctrl+C")
        return bool(running)


async def _awaited(handler: AsyncHandler, event: Topical) -> Any:
    return await handler(event)

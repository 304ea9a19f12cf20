"""Tools for testing programs: virtual time, a router that runs during a block, and a handler that records events.

To run a pytest test in virtual time, load the plugin ``lifecycle.testing.plugin`` and request the fixture ``clock``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from lifecycle._async import start_task
from lifecycle.events.sources import Source
from lifecycle.testing.signals import FakeSignals
from lifecycle.testing.virtual import Clock, VirtualLoop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from lifecycle.control import Delivery, Emit, Router
    from lifecycle.events import Topical

__all__ = ["Clock", "FakeSignals", "ManualSource", "Recorder", "VirtualLoop", "running"]


def __dir__() -> list[str]:
    return __all__


class Recorder:
    """A handler that stores every event in ``events``."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def __call__(self, event: Any) -> None:
        """Store ``event``."""
        self.events.append(event)

    @property
    def topics(self) -> list[str]:
        """The topics of the events, in order."""
        return [event.topic for event in self.events]


class ManualSource(Source):
    """A source that the test controls: ``await source.send(event)`` returns the `Delivery`."""

    def __init__(self, name: str = "manual") -> None:
        self.name: str = name
        self._emit: Emit | None = None
        self._failure: asyncio.Future[None] | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def run(self, emit: Emit) -> None:
        """Send events until the task is cancelled or `fail` is called."""
        self._emit, self._failure = emit, asyncio.get_running_loop().create_future()
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
        try:
            await self._failure
        finally:
            self._emit = self._failure = None

    async def send(self, event: Topical) -> Delivery:
        """Emit ``event`` once the router is running this source."""
        while self._emit is None:
            started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(started)
            await started
        return await self._emit(event)

    def fail(self, error: BaseException) -> None:
        """Make the source raise ``error``."""
        assert self._failure is not None, "the source is not running"
        self._failure.set_exception(error)


@asynccontextmanager
async def running(router: Router) -> AsyncGenerator[Router]:
    """Run ``router`` during a block. The block begins once the router has started, and ends once it has drained.

    If `Router.run` raises an error, the block raises it.
    """
    task = start_task(router.run(), name=f"running {router.name}")
    started = start_task(router.wait_running(), name=f"start of {router.name}")
    try:
        await asyncio.wait([started, task], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        yield router
        router.stop()
    except BaseException:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # the block's own error is raised instead
        raise
    finally:
        started.cancel()
    await task

"""`Lifespan`: the sources of a router start, its lanes work, and in the end both stop, in that order."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from lifecycle import hooks
from lifecycle._async import Condition
from lifecycle.errors import RouteNotFound, RouterRunning

if TYPE_CHECKING:
    from collections.abc import Collection

    from lifecycle.control.deliveries import Delivery
    from lifecycle.control.dispatcher import Dispatcher
    from lifecycle.control.source_runner import SourceRunner
    from lifecycle.errors import SourceFailed

__all__ = ["Lifespan"]

_log = logging.getLogger("lifecycle.control")

#: Seconds until a cancelled task that has not ended is abandoned and named.
_GRACE = 1.0

#: Seconds that sources have to settle: to store the results of their events.
_SETTLING = 5.0


class Lifespan:
    """Starts and stops the sources and lanes of one router."""

    def __init__(self, name: str, dispatcher: Dispatcher, drain_timeout: float) -> None:
        self._name = name
        self._dispatcher = dispatcher
        self._drain_timeout = drain_timeout
        self.sources: list[SourceRunner] = []
        # Set while `run` runs; done once it is to end, with an error if a source could not start.
        self._ending: asyncio.Future[None] | None = None
        # The context of `run`.
        self._context = contextvars.copy_context()
        self._source_tasks: set[asyncio.Task[None]] = set()
        # The sources to settle, removed ones too: their events may still be under way.
        self._settling: set[SourceRunner] = set()
        #: Whether all sources have started and the end has not begun.
        self.is_up: bool = False
        self._changed = Condition()

    async def run(self) -> None:
        """Run until `stop`, cancelled, or a source that cannot start."""
        if self._ending is not None:
            raise RouterRunning(f"router {self._name!r} is running already; stop() it first, or make a second router")
        self._ending = ending = asyncio.get_running_loop().create_future()
        self._context = contextvars.copy_context()
        # Handlers run from now on, also for earlier events.
        self._dispatcher.working = True
        for lane in list(self._dispatcher.lanes.values()):
            lane.start()
        # The way back, last first: if one step fails, the others are still taken.
        async with AsyncExitStack() as end:
            end.callback(self._reset)
            end.push_async_callback(self._settle)
            end.push_async_callback(self._end, ending)
            hooks.router_started.announce(self._dispatcher.router, router=self._dispatcher.router)
            await self._start()
            await ending

    async def _end(self, ending: asyncio.Future[None]) -> None:
        """Drain unless cancelled, also when a source could not start; then close."""
        self._set_up(is_up=False)
        try:
            # Cancelling it does nothing if it is done, and otherwise keeps it from being set twice.
            if not ending.cancel() and not ending.cancelled():
                await self._drain()
        finally:
            await self._close()

    def _set_up(self, *, is_up: bool) -> None:
        self.is_up = is_up
        self._changed.notify_all()

    async def wait_up(self) -> None:
        """Wait until all sources have started."""
        while not self.is_up:
            await self._changed.wait()

    def stop(self) -> None:
        """Begin the end; nothing happens if it does not run."""
        if self._ending is not None and not self._ending.done():
            self._ending.set_result(None)

    def add(self, source: SourceRunner) -> None:
        """Run a source with the router; at once, if that is running."""
        self.sources.append(source)
        if self._ending is not None and not self._ending.done():
            self._launch(source)

    def remove(self, source: object) -> None:
        """Cancel a source; it is awaited with the others when the router closes, at the latest."""
        for runner in self.sources:
            if runner.source is source:
                self.sources.remove(runner)
                runner.cancel()
                return
        raise RouteNotFound(f"{source!r} is not a source of router {self._name!r}")

    async def _start(self) -> None:
        """Start the sources in the order of registration, each when the one before it has started."""
        assert self._ending is not None
        for source in list(self.sources):
            if not self._ending.done() and not source.running:
                started = self._launch(source)
                await asyncio.wait([started, self._ending], return_when=asyncio.FIRST_COMPLETED)
        self._set_up(is_up=not self._ending.done())

    def _launch(self, source: SourceRunner) -> asyncio.Future[None]:
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ready(failure: SourceFailed | None) -> None:
            if failure is None:
                if not started.done():
                    started.set_result(None)
            elif self._ending is not None and not self._ending.done():
                self._ending.set_exception(failure)

        if source.settles:
            self._settling.add(source)
        # Not in the context in which it was added, which may be a handler's: it works for the router.
        task = source.start(ready, self._context.copy())
        self._source_tasks.add(task)
        task.add_done_callback(self._source_tasks.discard)
        task.add_done_callback(lambda _: ready(None))
        return started

    async def _drain(self) -> None:
        """Stop sources, flush debouncers and let lanes run empty, within ``drain_timeout`` seconds in total."""
        dispatcher, loop = self._dispatcher, asyncio.get_running_loop()
        deadline = loop.time() + self._drain_timeout
        dispatcher.draining = True
        for source in self.sources:
            source.stop()
        await _until(deadline, self._source_tasks)
        await _cancel(self._source_tasks)
        for route in list(dispatcher.routes()):
            if route.debouncer is not None:
                route.debouncer.closed = True
                route.debouncer.flush()
        await self._run_empty(deadline)
        await self._flush_handlers(deadline)
        await self._run_empty(deadline)

    async def _run_empty(self, deadline: float) -> None:
        while self._dispatcher.tasks and asyncio.get_running_loop().time() < deadline:
            await _until(deadline, self._dispatcher.tasks)

    async def _flush_handlers(self, deadline: float) -> None:
        """Let handlers that hold events themselves, such as those of `debounce`, deliver them."""
        flushes: list[asyncio.Future[Any]] = []
        for route in list(self._dispatcher.routes()):
            flush = getattr(route.handler, "flush", None)
            if inspect.iscoroutinefunction(flush):
                flushes.append(asyncio.ensure_future(flush()))
        await _until(deadline, flushes)
        await _cancel(flushes)

    async def _close(self) -> None:
        """Cancel the tasks that are left, and drop the events that wait."""
        dispatcher = self._dispatcher
        dispatcher.working = False
        for source in self.sources:
            source.cancel()
        for lane in list(dispatcher.lanes.values()):
            lane.cancel()
        try:
            await _cancel([*self._source_tasks, *dispatcher.tasks])
        finally:
            dispatcher.draining = False
            self._drop_waiting("the router was stopped")

    def _drop_waiting(self, reason: str) -> None:
        """Drop the events in lanes and debouncers."""
        # Debouncers first: a burst that waits for capacity would enter the lane that is cleared.
        calls: list[Delivery] = []
        for route in list(self._dispatcher.routes()):
            if route.debouncer is not None:
                route.debouncer.closed = True
                calls += route.debouncer.discard()
        dropped = len(calls)
        for lane in list(self._dispatcher.lanes.values()):
            dropped += len(lane.queue)
            lane.clear(reason)
        for call in calls:
            self._dispatcher.report.drop(call, reason)
        if dropped:
            _log.warning("the router stopped with %d events undelivered; they are counted as dropped", dropped)

    async def _settle(self) -> None:
        """Let the sources that keep account of their events settle: every event has ended."""
        settling, self._settling = self._settling, set()
        tasks = [asyncio.ensure_future(source.settle()) for source in settling]
        try:
            await _until(asyncio.get_running_loop().time() + _SETTLING, tasks)
        finally:
            await _cancel(tasks)

    def _reset(self) -> None:
        """Make ready for the next run."""
        for source in self.sources:
            source.reset()
        # Events before the next run are debounced, as they are before the first.
        for route in self._dispatcher.table.routes.values():
            if route.debouncer is not None:
                route.debouncer.closed = False
        self._ending = None
        hooks.router_stopped.announce(self._dispatcher.router, router=self._dispatcher.router)


async def _until(deadline: float, tasks: Collection[asyncio.Future[Any]]) -> None:
    """Wait for ``tasks``, but not past ``deadline``."""
    left = deadline - asyncio.get_running_loop().time()
    if tasks and left > 0:
        await asyncio.wait(list(tasks), timeout=left)


async def _cancel(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel ``tasks`` and wait for them; one that ignores its cancellation is named and abandoned."""
    pending = {task for task in tasks if not task.done()}
    for task in pending:
        task.cancel()
    if pending:
        _, stubborn = await asyncio.wait(pending, timeout=_GRACE)
        for task in stubborn:
            _log.error("%r ignores its cancellation and is abandoned", task)

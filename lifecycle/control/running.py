"""`Lifespan`: starts the sources and lanes of a router, and stops the sources before the lanes."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from contextlib import AsyncExitStack
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from lifecycle import hooks
from lifecycle._async import Condition, start_task
from lifecycle._owners import own_router
from lifecycle.control.debouncing import Debounced
from lifecycle.errors import RouteNotFound, RouterRunning

if TYPE_CHECKING:
    from collections.abc import Collection

    from lifecycle.control.deliveries import Delivery
    from lifecycle.control.lanes import Lanes
    from lifecycle.control.routes import Routes
    from lifecycle.control.source_runner import SourceRunner
    from lifecycle.errors import SourceFailed

__all__ = ["Lifespan"]

_log = logging.getLogger("lifecycle.control")

#: Seconds after which a task that ignores its cancellation is logged and abandoned.
_GRACE = 1.0

#: The time limit, in seconds, for sources to settle, which means storing the results of their events.
_SETTLING = 5.0

#: The maximum number of topics in the log message about unfinished events.
_NAMED = 5


class _Named(Protocol):
    name: str


class Lifespan:
    """Starts and stops the sources and lanes of one router."""

    def __init__(self, router: _Named, routes: Routes, lanes: Lanes, drain_timeout: float) -> None:
        self._router = router
        self._routes = routes
        self._lanes = lanes
        self._drain_timeout = drain_timeout
        self.sources: list[SourceRunner] = []
        # A future that is done when `run` should return, or None if `run` is not running. It has an error if a source
        # failed to start.
        self._ending: asyncio.Future[None] | None = None
        self._source_tasks: set[asyncio.Task[None]] = set()
        # The sources that were removed during this run. Their events may still be in progress.
        self._removed: set[SourceRunner] = set()
        #: True once all sources have started, until the router begins to stop.
        self.is_up: bool = False
        self._changed = Condition()

    async def run(self) -> None:
        """Run until `stop` is called, the task is cancelled, or a source fails to start."""
        if self._ending is not None:
            raise RouterRunning(
                f"router {self._router.name!r} is already running; stop() it first, or create a second router"
            )
        self._ending = ending = asyncio.get_running_loop().create_future()
        self._lanes.context = contextvars.copy_context()
        self._lanes.loop, self._lanes.thread = ending.get_loop(), get_ident()
        self._lanes.start()
        # The shutdown steps, in reverse order. If one fails, the others still run.
        async with AsyncExitStack() as end:
            owned = own_router(self._router)
            end.callback(owned.end)
            self._routes.changed = owned.changed
            end.callback(self._reset)
            end.push_async_callback(self._settle)
            end.push_async_callback(self._end, ending)
            hooks.router_started.announce(self._router, router=self._router)
            await self._start()
            await ending

    async def _end(self, ending: asyncio.Future[None]) -> None:
        """Close the router. Unless `run` was cancelled, drain it first, even if a source failed to start."""
        self._set_up(is_up=False)
        how = "was cancelled"
        try:
            # Cancelling the future does nothing if it is done. Otherwise, it prevents `stop` from setting a result.
            if not ending.cancel() and not ending.cancelled():
                await self._drain()
                how = f"did not finish its events within Router(drain_timeout={self._drain_timeout:g}) seconds"
        finally:
            await self._close(how)

    def _set_up(self, *, is_up: bool) -> None:
        self.is_up = is_up
        self._changed.notify_all()

    async def wait_up(self) -> None:
        """Wait until all sources have started."""
        while not self.is_up:
            await self._changed.wait()

    def stop(self) -> None:
        """Make `run` return. This does nothing if the router is not running."""
        if self._ending is not None and not self._ending.done():
            self._ending.set_result(None)

    def add(self, source: SourceRunner) -> None:
        """Add a source. If the router is running, start the source immediately."""
        self.sources.append(source)
        if self._ending is not None and not self._ending.done():
            self._launch(source)

    def remove(self, source: object) -> None:
        """Remove and cancel a source. The router awaits the source's task when it closes."""
        for runner in self.sources:
            if runner.given is source:
                self.sources.remove(runner)
                if self._ending is not None:
                    self._removed.add(runner)
                runner.cancel()
                return
        raise RouteNotFound(f"{source!r} is not a source of router {self._router.name!r}")

    async def _start(self) -> None:
        """Start the sources one after another, in the order of registration."""
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

        # Run in the context of the router, because the source may have been added by a handler in another context.
        task = source.start(ready, self._lanes.context.copy())
        self._source_tasks.add(task)
        task.add_done_callback(self._source_tasks.discard)
        task.add_done_callback(lambda _: ready(None))
        return started

    async def _drain(self) -> None:
        """Stop sources, flush debouncers and wait until lanes are empty, within ``drain_timeout`` seconds in total."""
        deadline = asyncio.get_running_loop().time() + self._drain_timeout
        self._lanes.draining = True
        for source in self.sources:
            source.stop()
        await _until(deadline, self._source_tasks)
        await _cancel(self._source_tasks)
        for route in list(self._routes.all()):
            if route.debouncer is not None:
                route.debouncer.closed = True
                route.debouncer.flush()
        await self._run_empty(deadline)
        await self._flush_handlers(deadline)
        await self._run_empty(deadline)

    async def _run_empty(self, deadline: float) -> None:
        while self._lanes.tasks and asyncio.get_running_loop().time() < deadline:
            await _until(deadline, self._lanes.tasks)

    async def _flush_handlers(self, deadline: float) -> None:
        """Flush the handlers returned by `debounce`, which hold back events."""
        handlers = [route.handler for route in self._routes.all()]
        flushes = [start_task(each.flush()) for each in handlers if isinstance(each, Debounced)]
        await _until(deadline, flushes)
        await _cancel(flushes)

    async def _close(self, how: str) -> None:
        """Cancel the remaining tasks, and drop the waiting events.

        ``how`` describes how the router ended, and is logged.
        """
        running = self._lanes.handling()
        for source in self.sources:
            source.cancel()
        self._lanes.stop()
        try:
            await _cancel([*self._source_tasks, *self._lanes.tasks])
        finally:
            self._lanes.draining = False
            self._log_unfinished(how, running, self._drop_waiting("the router was stopped"))

    def _drop_waiting(self, reason: str) -> list[Delivery]:
        """Drop the events in lanes and debouncers, and return them."""
        # Clear debouncers first. Otherwise, a burst that is waiting for capacity would enter a lane that has just been
        # cleared.
        calls: list[Delivery] = []
        for route in list(self._routes.all()):
            if route.debouncer is not None:
                route.debouncer.closed = True
                calls += route.debouncer.discard()
        calls[:0] = self._lanes.clear()
        for call in calls:
            call.drop(reason, queued=True)
        return calls

    def _log_unfinished(self, how: str, running: list[Delivery], queued: list[Delivery]) -> None:
        """Log the cancelled handlers, the lost events, and the events kept by sources that store them."""
        dropped = [each for each in queued if not each.is_stored]
        stored = [each for each in (*running, *queued) if each.is_stored]
        what = [
            text.format(n=len(each), s="s" * (len(each) != 1), topics=_topics(each))
            for each, text in (
                (running, "cancelled {n} running handler{s} ({topics})"),
                (dropped, "dropped {n} queued event{s} ({topics})"),
                (stored, "kept {n} event{s} ({topics}) in the inbox or stream for the next start"),
            )
            if each
        ]
        if what:
            level = logging.WARNING if running or dropped else logging.INFO
            _log.log(level, "router %r %s: %s", self._router.name, how, "; ".join(what))

    async def _settle(self) -> None:
        """Let the sources store the results of their events. By now, every delivery has ended."""
        removed, self._removed = self._removed, set()
        tasks = [start_task(source.settle()) for source in (*self.sources, *removed)]
        try:
            await _until(asyncio.get_running_loop().time() + _SETTLING, tasks)
        finally:
            await _cancel(tasks)

    def _reset(self) -> None:
        """Prepare for the next run."""
        for source in self.sources:
            source.reset()
        # Events emitted before the next run are debounced, as they are before the first run.
        for route in self._routes.all():
            if route.debouncer is not None and not route.removed:
                route.debouncer.closed = False
        self._lanes.loop = self._lanes.thread = self._ending = None
        hooks.router_stopped.announce(self._router, router=self._router)


def _topics(deliveries: list[Delivery]) -> str:
    """Return the first few topics of ``deliveries``."""
    topics = list(dict.fromkeys(each.event.topic for each in deliveries))
    return ", ".join([*topics[:_NAMED], *["…"] * (len(topics) > _NAMED)])


async def _until(deadline: float, tasks: Collection[asyncio.Future[Any]]) -> None:
    """Wait for ``tasks`` to finish, at most until ``deadline``."""
    left = deadline - asyncio.get_running_loop().time()
    if tasks and left > 0:
        await asyncio.wait(list(tasks), timeout=left)


async def _cancel(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel ``tasks`` and wait for them. A task that ignores its cancellation is logged and abandoned."""
    pending = {task for task in tasks if not task.done()}
    for task in pending:
        task.cancel()
    if pending:
        _, stubborn = await asyncio.wait(pending, timeout=_GRACE)
        for task in stubborn:
            _log.error("%r ignored its cancellation and has been abandoned", task)

"""The life of a router: its sources start, its lanes work, and in the end both come to rest in that order."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from lifecycle import hooks
from lifecycle.control.source_runner import introduce
from lifecycle.errors import RouteNotFound, RouterRunning

if TYPE_CHECKING:
    from collections.abc import Collection

    from lifecycle.control.dispatcher import Traffic
    from lifecycle.control.router import Router
    from lifecycle.control.source_runner import Pump
    from lifecycle.errors import SourceFailed

__all__ = ["Running"]

_log = logging.getLogger("lifecycle.control")

#: Seconds that something cancelled has to end before it is abandoned and named.
_GRACE = 1.0

#: Seconds that sources have to settle: to put down what became of their events.
_SETTLING = 5.0


class Running:
    """Starts and stops the sources and lanes of one router."""

    def __init__(self, traffic: Traffic, drain_timeout: float) -> None:
        self._traffic = traffic
        self._drain_timeout = drain_timeout
        self.pumps: list[Pump] = []
        # Set while `run` runs; done once it is to end, with an error where a source could not start.
        self._ending: asyncio.Future[None] | None = None
        # That of `run`.
        self._context = contextvars.copy_context()
        self._pump_tasks: set[asyncio.Task[None]] = set()
        # Those whose sources are to settle, removed ones too: their events may still be on their way.
        self._settling: set[Pump] = set()
        #: Whether all sources have started and the end has not begun.
        self.is_up: bool = False
        # Those who wait to be told.
        self._waiting: list[asyncio.Future[None]] = []

    async def run(self, name: str) -> None:
        """Run until `stop`, cancelled, or a source that cannot start."""
        if self._ending is not None:
            raise RouterRunning(f"router {name!r} is running already; stop() it first, or make a second router")
        self._ending = ending = asyncio.get_running_loop().create_future()
        self._context = contextvars.copy_context()
        self._open()
        # The way back, last first: whatever fails on it, the other steps are taken all the same.
        async with AsyncExitStack() as end:
            end.callback(self._rest)
            end.push_async_callback(self._settle)
            end.push_async_callback(self._come_to_rest, ending)
            hooks.router_started.announce(self._traffic.router, router=self._traffic.router)
            await self._start()
            await ending

    def _open(self) -> None:
        """Let handlers run, on what was emitted before too."""
        self._traffic.working = True
        for lane in self._traffic.roster.lanes():
            lane.go_on()

    async def _come_to_rest(self, ending: asyncio.Future[None]) -> None:
        """Cancelled: nothing is drained. Otherwise everything is, also when a source could not start."""
        self._up(now=False)
        try:
            # Cancelling it does nothing where it is done, and else lets nobody end what has ended.
            if not ending.cancel() and not ending.cancelled():
                await self._drain()
        finally:
            await self._close()

    def _up(self, *, now: bool) -> None:
        self.is_up = now
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def changed(self) -> asyncio.Future[None]:
        """Done when `is_up` is told anew."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        return waiter

    def stop(self) -> None:
        """Begin the end; nothing happens if it does not run."""
        if self._ending is not None and not self._ending.done():
            self._ending.set_result(None)

    def add(self, pump: Pump, router: Router) -> None:
        """Run a source with the router; at once, if that is running."""
        if any(each.source is pump.source for each in self.pumps):
            raise ValueError(f"{pump.source!r} is a source of router {router.name!r} already; add it once")
        introduce(router, pump.source)
        self.pumps.append(pump)
        if self._ending is not None and not self._ending.done():
            self._launch(pump)

    def remove(self, source: object, name: str) -> None:
        """End a source; it is awaited with the others when the router closes, at the latest."""
        for pump in self.pumps:
            if pump.source is source:
                self.pumps.remove(pump)
                pump.cancel()
                return
        raise RouteNotFound(f"{source!r} is no source of router {name!r}")

    async def _start(self) -> None:
        """Start the sources in the order of registration, each when the one before it has started."""
        assert self._ending is not None
        for pump in list(self.pumps):
            if not self._ending.done() and not pump.running:
                started = self._launch(pump)
                await asyncio.wait([started, self._ending], return_when=asyncio.FIRST_COMPLETED)
        self._up(now=not self._ending.done())

    def _launch(self, pump: Pump) -> asyncio.Future[None]:
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ready(failure: SourceFailed | None) -> None:
            if failure is None:
                if not started.done():
                    started.set_result(None)
            elif self._ending is not None and not self._ending.done():
                self._ending.set_exception(failure)

        if pump.settles:
            self._settling.add(pump)
        # Not where it was added, which may be a handler: it works for the router.
        task = pump.start(ready, self._context.copy())
        self._pump_tasks.add(task)
        task.add_done_callback(self._pump_tasks.discard)
        task.add_done_callback(lambda _: ready(None))
        return started

    async def _drain(self) -> None:
        """Sources stop, windows flush, lanes run empty: within ``drain_timeout`` seconds in all."""
        traffic, loop = self._traffic, asyncio.get_running_loop()
        deadline = loop.time() + self._drain_timeout
        traffic.draining = True
        for pump in self.pumps:
            pump.stop()
        await _until(deadline, self._pump_tasks)
        await _end(self._pump_tasks)
        for route in list(traffic.roster.routes()):
            if route.window is not None:
                route.window.closed = True
                route.window.flush()
        await self._run_empty(deadline)
        await self._flush_handlers(deadline)
        await self._run_empty(deadline)

    async def _run_empty(self, deadline: float) -> None:
        """Let the lanes work off what waits."""
        while self._traffic.tasks and asyncio.get_running_loop().time() < deadline:
            await _until(deadline, self._traffic.tasks)

    async def _flush_handlers(self, deadline: float) -> None:
        """Handlers that hold events themselves (`debounce` makes such) deliver them too."""
        flushes: list[asyncio.Future[Any]] = []
        for route in list(self._traffic.roster.routes()):
            flush = getattr(route.handler, "flush", None)
            if inspect.iscoroutinefunction(flush):
                flushes.append(asyncio.ensure_future(flush()))
        await _until(deadline, flushes)
        await _end(flushes)

    async def _close(self) -> None:
        """Cancel what is left, and give up what waits."""
        traffic = self._traffic
        traffic.working = False
        for pump in self.pumps:
            pump.cancel()
        for lane in list(traffic.roster.lanes()):
            lane.cancel()
        try:
            await _end([*self._pump_tasks, *traffic.tasks])
        finally:
            traffic.draining = False
            self._give_up("the router was stopped")

    def _give_up(self, reason: str) -> None:
        """Drop what waits in lanes and windows."""
        given_up = 0
        for lane in list(self._traffic.roster.lanes()):
            given_up += len(lane.queue)
            lane.clear(reason)
        for route in list(self._traffic.roster.routes()):
            if route.window is not None:
                route.window.closed = True
                for call in route.window.discard():
                    given_up += 1
                    self._traffic.outcomes.drop(call, reason)
        if given_up:
            _log.warning("the router stopped with %d events undelivered; they are counted as dropped", given_up)

    async def _settle(self) -> None:
        """Every event has come to its end, and the sources that keep account of theirs are told."""
        settling, self._settling = self._settling, set()
        tasks = [asyncio.ensure_future(pump.settle()) for pump in settling]
        try:
            await _until(asyncio.get_running_loop().time() + _SETTLING, tasks)
        finally:
            await _end(tasks)

    def _rest(self) -> None:
        """All is over; it may run again."""
        for pump in self.pumps:
            pump.rest()
        # Events that come before the next run are debounced, as they are before the first.
        for route in self._traffic.table.routes.values():
            if route.window is not None:
                route.window.closed = False
        self._ending = None
        hooks.router_stopped.announce(self._traffic.router, router=self._traffic.router)


async def _until(deadline: float, tasks: Collection[asyncio.Future[Any]]) -> None:
    """Wait for ``tasks``, but not past ``deadline``."""
    left = deadline - asyncio.get_running_loop().time()
    if tasks and left > 0:
        await asyncio.wait(list(tasks), timeout=left)


async def _end(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel ``tasks`` and wait for them; one that ignores it is named and abandoned."""
    pending = {task for task in tasks if not task.done()}
    for task in pending:
        task.cancel()
    if pending:
        _, stubborn = await asyncio.wait(pending, timeout=_GRACE)
        for task in stubborn:
            _log.error("%r ignores its cancellation and is abandoned", task)

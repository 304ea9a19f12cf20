"""`Pool`, the public interface of a pool.

The `calls` module runs calls, `scheduler` assigns them to workers, and `manager` starts and stops the workers. The code
that runs inside worker processes is in `child`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from lifecycle._durations import in_seconds, in_seconds_or_none
from lifecycle.backoff import Intensity
from lifecycle.errors import PoolClosed
from lifecycle.workers.base import BaseWorker
from lifecycle.workers.model import AT_WORK, FINAL, ProbeResult, Status
from lifecycle.workers.pool.calls import CallDispatcher
from lifecycle.workers.pool.manager import warn_unstopped
from lifecycle.workers.pool.records import CallSpec
from lifecycle.workers.pool.settings import (
    Heartbeat,
    PoolSettings,
    Process,
    Recycle,
    Sessions,
    check_size,
    function_name,
)
from lifecycle.workers.pool.streams import Lease, Stream, map_calls

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence

    from lifecycle._durations import Duration
    from lifecycle.workers.model import End, WorkerState
    from lifecycle.workers.pool.records import PoolStats
    from lifecycle.workers.pool.worker import PoolWorker

__all__ = ["Pool"]

_RECYCLE, _SESSIONS, _HEARTBEAT, _PROCESS = Recycle(), Sessions(), Heartbeat(), Process()
_INTENSITY = Intensity(5, 30.0)


class Pool(BaseWorker):
    """A pool of worker processes that serve calls and keep data in memory between calls.

    Each worker imports ``target`` once. If the target is a class, the worker also creates an instance of it, with
    ``init`` as the arguments. Each call is sent to a free worker, or waits until one is available. While calls are
    waiting, the pool starts more workers, up to its maximum size. A running call can be cancelled. If the call does not
    stop in time, its worker is killed and replaced. If a worker dies, only the calls running in it fail.

    The pool itself is a worker: ``async with pool`` starts the minimum number of workers, and stops all workers on
    exit. A pool can also be a child of a `Supervisor`. While it is being stopped, a pool rejects new calls, and
    running calls have ``process.stop_timeout`` seconds to finish. While it is suspended, running calls finish and new
    calls wait.

    Args:
        name: The pool's name, used in messages and states. Workers are named after the pool.
        target: ``"module:function"``, ``"module:Class"``, or the command of a program that speaks the protocol, as a
            list.
        size: The minimum and maximum number of workers.
        init: The arguments for the class, or the first message to send to the program.
        queue: The maximum number of calls that can wait for a worker. Further calls raise `PoolBusy`.
        deadline: The default deadline for calls, in seconds. The deadline is measured from when a call is awaited.
        concurrency: The maximum number of simultaneous calls per worker. If this is more than 1, plain functions run in
            threads, and async functions share one event loop.
        codec: The serialization format. ``"pickle"`` (default for a module) supports every value that Python can
            pickle, and trusts the workers, which run your code. ``"msgpack"`` (default for a command) and ``"json"``
            support numbers, text, lists and dicts (msgpack also bytes). They reject values that they would alter, such
            as tuples.
        recycle: When to replace workers because of their age, number of calls or memory use.
        sessions: How the calls in a session find the worker that holds the session's state.
        heartbeat: How to detect unhealthy workers.
        process: How to start and stop worker processes.
        intensity: The maximum number of workers that may be lost within a period. If more are lost, the pool ends as
            FAILED.

    Raises:
        ValueError, TypeError: if a setting is invalid.
        ModuleNotFoundError: if the codec is not installed.
    """

    kind: ClassVar[str] = "pool"
    # All killed workers together have one second to exit, rather than one second each.
    _last_wait: ClassVar[float] = 5.0

    def __init__(  # noqa: PLR0913  # public API; each option has a default
        self,
        name: str,
        target: str | Sequence[str | os.PathLike[str]],
        *,
        size: tuple[int, int] = (1, 4),
        init: Sequence[Any] = (),
        queue: int = 100,
        deadline: Duration = 60.0,
        concurrency: int = 1,
        codec: str | None = None,
        recycle: Recycle = _RECYCLE,
        sessions: Sessions = _SESSIONS,
        heartbeat: Heartbeat = _HEARTBEAT,
        process: Process = _PROCESS,
        intensity: Intensity = _INTENSITY,
    ) -> None:
        super().__init__(name)
        self._settings = PoolSettings.read(
            name,
            target,
            size=size,
            init=init,
            queue=queue,
            deadline=in_seconds("deadline", deadline),
            concurrency=concurrency,
            codec_name=codec,
            recycle=recycle,
            sessions=sessions,
            heartbeat=heartbeat,
            process=process,
            intensity=intensity,
        )
        self.stop_timeout: float = process.stop_timeout
        # None until the pool has been started.
        self._dispatcher: CallDispatcher | None = None

    def __del__(self) -> None:
        if getattr(self, "_dispatcher", None) is not None and self.status not in FINAL:
            warn_unstopped(self)
            for worker in self._running().manager.workers:
                worker.kill_orphaned()

    # -- calls --------------------------------------------------------------------------------------------------------

    async def call(
        self,
        function: str | Callable[..., Any],
        /,
        *args: Any,
        session: str | None = None,
        deadline: Duration | None = None,
        idempotent: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Call ``function`` in a worker and return its result.

        If the caller is cancelled, the call in the worker is also cancelled. If it does not stop within
        ``process.grace`` seconds, the worker is killed. The caller waits until the call has stopped or the worker has
        been killed.

        Args:
            function: The name of the target function or of a method of the target class. To call any other function,
                pass ``"module:function"`` or the function itself.
            args: The positional arguments.
            session: The name of a session. The call is sent to the worker that holds the session; see `Sessions`.
            deadline: Seconds to wait for the result. With `math.inf`, the only way to end a call that hangs is to
                cancel it.
            idempotent: Whether it is safe to run the call twice. If True, the call is repeated once if its worker is
                lost.
            kwargs: The keyword arguments.

        Raises:
            RemoteError: if the function raised an exception.
            WorkerLost: if the worker died during the call.
            TimeoutError: if the deadline passed. The message states how far the call had got.
            PoolBusy: if too many calls are waiting.
            SessionLost: if the session's worker has exited or, with ``Sessions(mode="fail")``, is busy.
            PoolClosed: if the pool is not running.
            PoolFailed: if the pool has failed. ``__cause__`` contains the reason.
            TypeError, ValueError: if the arguments cannot be encoded or are too large. In that case, nothing has been
                sent.
        """
        spec = CallSpec(self._settings, function, args, kwargs, session=session, deadline=deadline)
        return await self._running().call(spec, idempotent=idempotent)

    def stream(
        self,
        function: str | Callable[..., Any],
        /,
        *args: Any,
        session: str | None = None,
        deadline: Duration | None = None,
        **kwargs: Any,
    ) -> Stream:
        """Call the generator ``function`` in a worker, and return an async iterator over its values.

        The arguments are the same as for `call`, and the iterator raises the same errors.
        """
        spec = CallSpec(self._settings, function, args, kwargs, session=session, deadline=deadline)
        return Stream(self._running(), spec)

    def lease(self, session: str | None = None, *, deadline: Duration | None = None) -> Lease:
        """Reserve a worker for several calls.

        Enter the lease with ``async with pool.lease() as worker``, and make each call with ``await worker.call(…)``.

        Args:
            session: The name of a session. The worker that holds the session is leased.
            deadline: How long to wait for the worker, in seconds. Each call has its own deadline.
        """
        spec = CallSpec(self._settings, "lease", session=session, deadline=deadline)
        return Lease(self._running(), spec)

    def map(
        self,
        function: str | Callable[..., Any],
        rows: Iterable[Any],
        *,
        ordered: bool = True,
        deadline: Duration | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Call ``function`` with each of ``rows``, and return an async iterator over the results.

        Rows are read as workers become free. The calls can wait even if the queue is full. When a call fails, the
        iterator raises the error and stops. If you might stop iterating early, use `contextlib.aclosing`.

        Args:
            function: The function to call, as for `call`.
            rows: The arguments, with one row per call.
            ordered: Whether to yield results in the order of the rows. If False, they are yielded as they arrive.
            deadline: Seconds per call.
        """
        limit = in_seconds_or_none("deadline", deadline)
        return map_calls(self._running(), function_name(function), rows, ordered=ordered, deadline=limit)

    # -- the pool -----------------------------------------------------------------------------------------------------

    def members(self) -> tuple[PoolWorker, ...]:
        """Return the workers that are running or starting, oldest first."""
        workers = () if self._dispatcher is None else self._dispatcher.manager.workers
        return tuple(worker for worker in workers if worker.phase.alive)

    def stats(self) -> PoolStats:
        """Return statistics about the pool's current size, load and latency."""
        return self._running().stats()

    async def refresh(self) -> None:
        """Replace each worker once its successor is ready. Return once all replaced workers have exited.

        No calls fail because of this.

        Raises:
            PoolClosed, PoolFailed: if the pool ends in the meantime.
        """
        await self._running().manager.refresh()

    async def resize(self, low: int, high: int) -> None:
        """Change the number of workers, and return once the minimum number is ready.

        Surplus workers finish their calls before they are stopped.

        Args:
            low: The minimum number of workers.
            high: The maximum number of workers.

        Raises:
            TypeError, ValueError: if a number is invalid.
            PoolClosed, PoolFailed: if the pool ends in the meantime.
        """
        await self._running().manager.resize(*check_size(self.name, low, high))

    async def suspend(self) -> None:
        """Suspend the pool: running calls finish, and new calls wait until `resume` is called. Idempotent.

        Raises:
            InvalidTransition: if the pool is not running.
        """
        if self.status is not Status.SUSPENDED:
            self._machine.to(Status.SUSPENDED)
            self._running().scheduler.queue.pause()

    async def resume(self) -> None:
        """Resume the pool. Waiting calls are served first. Idempotent.

        Raises:
            InvalidTransition: if the pool is neither suspended nor running.
        """
        if self._machine.resume():
            self._running().scheduler.resume()

    async def probe(self) -> ProbeResult:
        """Return the pool's health. A running pool is healthy unless all of its workers are unhealthy."""
        if self.status not in AT_WORK:
            return ProbeResult(healthy=False, message=f"is {self.status}")
        now = self.stats()
        return ProbeResult(
            healthy=now.degraded < max(1, now.size),
            message=f"{now.idle} idle, {now.busy} busy, {now.starting} starting, {now.degraded} degraded",
        )

    # -- start and end ------------------------------------------------------------------------------------------------

    async def _launch(self) -> Awaitable[End | None]:
        self._dispatcher = CallDispatcher(self, self._settings.with_env(self._env))
        return self._dispatcher.manager.run()

    async def _until_ready(self) -> None:
        await self._running().manager.wait_filled()

    def _terminate(self, *, force: bool) -> None:
        manager = self._running().manager
        manager.close(partial(_closed, self.name))
        if force:
            manager.kill_all()

    def _children(self) -> tuple[WorkerState, ...]:
        return () if self._dispatcher is None else tuple(each.state() for each in self._dispatcher.manager.workers)

    def _state_as(self, name: str, **known: Any) -> WorkerState:
        """Return the pool's state. It is unhealthy while no process can take calls, unless this is planned."""
        state = super()._state_as(name, **known)
        healthy = state.health is None or state.health.healthy
        if healthy and self.status is Status.RUNNING and not self._running().manager.workers.available:
            return replace(state, health=ProbeResult(healthy=False, message="no process is ready"))
        return state

    def _running(self) -> CallDispatcher:
        if self._dispatcher is not None:
            return self._dispatcher
        if self.status in FINAL:
            raise _closed(self.name)
        raise PoolClosed(f"the pool {self.name!r} is {self.status}; start it first, with 'async with pool'")


def _closed(name: str) -> PoolClosed:
    return PoolClosed(f"the pool {name!r} is closed or closing; calls need a running pool")

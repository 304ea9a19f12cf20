"""`Pool`, the public interface of a pool.

`calls` makes its calls, `scheduler` assigns them to workers, `manager` starts and stops the workers. The code that runs
in a worker process is in `child`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

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

    from lifecycle.workers.model import End, WorkerState
    from lifecycle.workers.pool.records import PoolStats
    from lifecycle.workers.pool.worker import PoolWorker

__all__ = ["Pool"]

_RECYCLE, _SESSIONS, _HEARTBEAT, _PROCESS = Recycle(), Sessions(), Heartbeat(), Process()
_INTENSITY = Intensity(5, 30.0)


class Pool(BaseWorker):
    """Worker processes that answer calls and keep what they have loaded between them.

    Each worker imports ``target`` once; if that is a class, it also creates one instance, with ``init``. A call goes to
    a free worker or waits for one; more workers are started while calls wait. A running call can be cancelled. A worker
    that does not stop it in time is killed and replaced, and a worker that dies fails only its own call. Pools, and
    pools in other loops, are independent of each other.

    A pool is a worker: ``async with pool`` starts the least number of workers and stops all of them, and a `Supervisor`
    may own it. Stopping it refuses new calls and gives running calls ``process.stop_timeout`` seconds to finish. While
    it is suspended, running calls finish and new ones wait, in every mode of `Sessions`.

    Args:
        name: its name in messages and states; workers are called by it and a number.
        target: ``"module:function"``, ``"module:Class"``, or the command of a program that speaks the protocol, as a
            list of words.
        size: the least and the most workers.
        init: the arguments of the class, or the first message to the program.
        queue: the most calls that wait for a busy worker; one more raises `PoolBusy`.
        deadline: the default seconds of a call, from the moment it is awaited to its result.
        concurrency: the calls per worker at a time. More than one runs plain functions in threads, and async functions
            in one loop.
        codec: the serialization of values. ``"pickle"``, the default for a module, carries what Python can pickle, and
            trusts the workers, which run your code. ``"msgpack"``, the default for a command, and ``"json"`` carry
            numbers, text, lists and dicts (msgpack: bytes too), and refuse values that they would alter, such as a
            tuple.
        recycle: when workers are replaced because of their age or use.
        sessions: how calls of one session find the worker that has its state.
        heartbeat: how unhealthy workers are detected.
        process: how workers are started and ended.
        intensity: how many workers may be lost in which time before the pool gives up and is FAILED.

    Raises:
        ValueError, TypeError: for settings that cannot work, before anything is started.
        ModuleNotFoundError: if the codec is not installed.
    """

    kind: ClassVar[str] = "pool"
    # Workers that are killed have a second each, all at once.
    _last_wait: ClassVar[float] = 5.0

    def __init__(  # noqa: PLR0913  # the names are promised; each has a default
        self,
        name: str,
        target: str | Sequence[str | os.PathLike[str]],
        *,
        size: tuple[int, int] = (1, 4),
        init: Sequence[Any] = (),
        queue: int = 100,
        deadline: float = 60.0,
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
            deadline=deadline,
            concurrency=concurrency,
            codec_name=codec,
            recycle=recycle,
            sessions=sessions,
            heartbeat=heartbeat,
            process=process,
            intensity=intensity,
        )
        self.stop_timeout: float = process.stop_timeout
        # From the start on.
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
        deadline: float | None = None,
        idempotent: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Call ``function`` in a worker, and return its result.

        If the caller is cancelled, the call is cancelled and awaited first: for up to ``process.grace`` seconds, after
        which the worker is killed.

        Args:
            function: the name of a method of the target, or of the target itself; ``"module:function"`` or a function
                of a module, for any other.
            args: its arguments.
            session: the session; the call goes to its worker, see `Sessions`.
            deadline: seconds for everything; `math.inf` for no limit: only a cancellation ends a call that hangs.
            idempotent: whether it may run twice: it is tried once more if its worker is lost.
            kwargs: its keyword arguments.

        Raises:
            RemoteError: if it raised.
            WorkerLost: if its worker ended meanwhile.
            TimeoutError: if the deadline passed; the message contains where the call was.
            PoolBusy: if too many calls wait.
            SessionLost: if the session's worker is gone, or, with ``Sessions(mode="fail")``, busy.
            PoolClosed: if the pool does not run.
            PoolFailed: if it has given up; see the cause.
            TypeError, ValueError: for arguments that cannot be sent; nothing was sent then.
        """
        spec = CallSpec(self._settings, function, args, kwargs, session=session, deadline=deadline)
        return await self._running().call(spec, idempotent=idempotent)

    def stream(
        self,
        function: str | Callable[..., Any],
        /,
        *args: Any,
        session: str | None = None,
        deadline: float | None = None,
        **kwargs: Any,
    ) -> Stream:
        """Call the generator ``function`` in a worker; return an async iterator of its values.

        Arguments and errors are those of `call`; the iterator raises the errors.
        """
        spec = CallSpec(self._settings, function, args, kwargs, session=session, deadline=deadline)
        return Stream(self._running(), spec)

    def lease(self, session: str | None = None, *, deadline: float | None = None) -> Lease:
        """Return a worker for several calls: ``async with pool.lease() as worker``, then ``await worker.call(…)``.

        Args:
            session: the session; its worker is leased.
            deadline: seconds to wait for the worker. Calls have their own deadline.
        """
        return Lease(self._running(), CallSpec(self._settings, "lease", session=session, deadline=deadline))

    def map(
        self,
        function: str | Callable[..., Any],
        rows: Iterable[Any],
        *,
        ordered: bool = True,
        deadline: float | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Call ``function`` with each of ``rows``; return an async iterator of the results.

        Rows are read as workers become free, and calls of a map wait for them even if the queue is full. The first
        error is raised and ends the iterator; use `contextlib.aclosing` to end it early.

        Args:
            function: as for `call`.
            rows: one argument each.
            ordered: whether results come in the order of the rows, or as they are ready.
            deadline: seconds for each call.
        """
        return map_calls(self._running(), function_name(function), rows, ordered=ordered, deadline=deadline)

    # -- the pool -----------------------------------------------------------------------------------------------------

    def members(self) -> tuple[PoolWorker, ...]:
        """Return the workers, the oldest first, including those that start, without those that end."""
        workers = () if self._dispatcher is None else self._dispatcher.manager.workers
        return tuple(worker for worker in workers if worker.phase.alive)

    def stats(self) -> PoolStats:
        """Return the present figures: size, load and times."""
        return self._running().stats()

    async def refresh(self) -> None:
        """Replace all workers as their successors become ready; return when the last of them has ended.

        No call fails because of it.

        Raises:
            PoolClosed, PoolFailed: if the pool ends before that.
        """
        await self._running().manager.refresh()

    async def resize(self, low: int, high: int) -> None:
        """Have at least ``low`` and at most ``high`` workers; return when the least number is ready.

        Workers above ``high`` finish their calls first.

        Raises:
            TypeError, ValueError: for numbers that cannot work.
            PoolClosed, PoolFailed: if the pool ends before that.
        """
        await self._running().manager.resize(*check_size(self.name, low, high))

    async def suspend(self) -> None:
        """Give workers no calls until `resume`; running calls finish. Idempotent.

        Raises:
            InvalidTransition: if it does not run.
        """
        if self.status is not Status.SUSPENDED:
            self._machine.to(Status.SUSPENDED)
            self._running().scheduler.queue.pause()

    async def resume(self) -> None:
        """Give workers calls again, first those that have waited. Idempotent.

        Raises:
            InvalidTransition: if it is neither suspended nor running.
        """
        if self._machine.resume():
            self._running().scheduler.resume()

    async def probe(self) -> ProbeResult:
        """Return its health: it is healthy if it runs and not all of its workers are unhealthy."""
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

    def _running(self) -> CallDispatcher:
        if self._dispatcher is not None:
            return self._dispatcher
        if self.status in FINAL:
            raise _closed(self.name)
        raise PoolClosed(f"the pool {self.name!r} is {self.status}; start it first, with 'async with pool'")


def _closed(name: str) -> PoolClosed:
    return PoolClosed(f"the pool {name!r} is closed, or about to be; calls go to one that runs")

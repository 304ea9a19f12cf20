"""Streams, leases and maps, which are operations that involve more than one value or call."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from lifecycle._async import start_task
from lifecycle.errors import PoolClosed
from lifecycle.workers.pool.calls import PendingCall
from lifecycle.workers.pool.records import CallSpec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable
    from typing import Self

    from lifecycle._durations import Duration
    from lifecycle.workers.pool.calls import CallDispatcher, Permit
    from lifecycle.workers.pool.worker import PoolWorker

__all__ = ["Lease", "Stream", "map_calls"]

#: The maximum number of unacknowledged values in a stream.
_WINDOW: Final = 32


class Stream:
    """An async iterator over the values of a generator that runs in a worker.

    The call begins when the first value is requested, and the generator pauses while its values are not consumed. To
    close the generator, call `aclose` or leave an ``async with stream`` block. It is also closed when an unfinished
    stream is garbage-collected. Closing the generator runs its ``finally`` blocks. The deadline covers the entire
    stream, starting from the request for the first value.
    """

    def __init__(self, dispatcher: CallDispatcher, spec: CallSpec, permit: Permit | None = None) -> None:
        self._dispatcher = dispatcher
        self._spec = spec
        # The permit of the stream's lease. Without a lease, the stream acquires its own permit.
        self._permit = permit
        self._call: PendingCall | None = None
        self._waiting = False
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """Return the next value.

        Raises:
            RemoteError, WorkerLost, TimeoutError, PoolBusy, PoolClosed, PoolFailed, SessionLost: as for a call. Unless
                the deadline has passed, all values that have arrived are returned first.
            RuntimeError: if another caller is already waiting for the next value.
        """
        if self._over:
            raise StopAsyncIteration
        if self._waiting:
            raise RuntimeError(f"another caller is already waiting for the next value of {self._spec.function!r}")
        self._waiting = True
        try:
            return await self._next()
        finally:
            self._waiting = False

    async def _next(self) -> Any:
        call = self._call or await self._begin()
        assert call.wire is not None, "the call has a slot"
        try:
            return await call.translate(call.wire.next_chunk())
        except StopAsyncIteration:
            self._finish(call, None)
            raise
        except BaseException as error:
            await self._cancel(call, error)
            raise

    async def aclose(self) -> None:
        """Close the generator, and return once it has finished. Idempotent."""
        if not self._over and self._call is not None:
            await self._cancel(self._call, None)
        self._over = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # Use call_soon_threadsafe because this method may run in a different thread.
        if self._call is not None and not self._over and not self._dispatcher.loop.is_closed():
            self._dispatcher.loop.call_soon_threadsafe(_abandon, self._call)

    async def _begin(self) -> PendingCall:
        spec = self._spec
        spec.start_clock()
        if not self._dispatcher.prepare(spec):
            await self._dispatcher.encode(spec)
        permit = self._permit or await self._dispatcher.acquire(spec)
        try:
            call = PendingCall(self._dispatcher, spec, permit, window=_WINDOW)
            call.begin()
        finally:
            if self._permit is None:
                permit.close()
        self._call = call
        return call

    async def _cancel(self, call: PendingCall, error: BaseException | None) -> None:
        """Cancel the generator unless it has finished, and wait until it is no longer running."""
        stopped = call.cancel("cancelled")
        self._finish(call, error)
        if not stopped.done():
            await asyncio.wait({stopped})

    def _finish(self, call: PendingCall, error: BaseException | None) -> None:
        self._over = True
        call.close(error)


def _abandon(call: PendingCall) -> None:
    call.cancel("cancelled")
    call.close(None)


class Lease:
    """A worker reserved for several calls with ``async with pool.lease() as worker``.

    `call` and `stream` use this worker. On exit, the block waits for the last call to finish, and returns the worker to
    the pool. If the worker is lost, further calls raise `WorkerLost`.
    """

    def __init__(self, dispatcher: CallDispatcher, spec: CallSpec) -> None:
        self._dispatcher = dispatcher
        self._spec = spec
        self._permit: Permit | None = None
        self._over = False

    @property
    def member(self) -> PoolWorker:
        """The leased worker."""
        return self._held().worker

    async def call(
        self, function: str | Callable[..., Any], /, *args: Any, deadline: Duration | None = None, **kwargs: Any
    ) -> Any:
        """Call ``function`` in the leased worker; see `Pool.call`."""
        spec = self._call_spec(function, args, kwargs, deadline)
        if not self._dispatcher.prepare(spec):
            self._held()
            await self._dispatcher.encode(spec)
        # The lease may have ended while the arguments were being encoded.
        return await PendingCall(self._dispatcher, spec, self._held()).outcome()

    def stream(
        self, function: str | Callable[..., Any], /, *args: Any, deadline: Duration | None = None, **kwargs: Any
    ) -> Stream:
        """Call the generator ``function`` in the leased worker; see `Pool.stream`."""
        return Stream(self._dispatcher, self._call_spec(function, args, kwargs, deadline), self._held())

    def discard(self) -> None:
        """Replace the worker when the lease ends, for example because its state is corrupt."""
        self._dispatcher.manager.drain(self._held().worker, "error")

    async def __aenter__(self) -> Self:
        self._spec.start_clock()
        self._permit = await self._dispatcher.acquire(self._spec)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        if self._permit is not None:
            self._permit.close()

    def _held(self) -> Permit:
        if self._permit is None or self._over:
            raise PoolClosed(
                f"this lease of a worker of {self._dispatcher.pool.name!r} is not active; "
                "use it within 'async with pool.lease()'"
            )
        return self._permit

    def _call_spec(
        self,
        function: str | Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        deadline: Duration | None,
    ) -> CallSpec:
        settings, session = self._dispatcher.settings, self._spec.session
        return CallSpec(settings, function, args, kwargs, session=session, deadline=deadline)


async def map_calls(
    dispatcher: CallDispatcher, function: str, rows: Iterable[Any], *, ordered: bool, deadline: float | None
) -> AsyncGenerator[Any, None]:
    """Call ``function`` with each row in ``rows``, and yield the results. Rows are read on demand.

    The first error is raised. After an error, or when the generator is closed, the remaining calls are cancelled, and
    the generator waits for them to stop.
    """
    workers = dispatcher.manager.workers
    # Twice the number of slots, so that the next call for each slot is always waiting.
    limit = 2 * workers.high * workers.concurrency
    remaining = iter(rows)
    tasks: deque[asyncio.Task[Any]] = deque()
    try:
        while True:
            while len(tasks) < limit:
                try:
                    row = next(remaining)
                except StopIteration:
                    break
                spec = CallSpec(dispatcher.settings, function, (row,), deadline=deadline, patient=True)
                tasks.append(start_task(dispatcher.call(spec)))
            if not tasks:
                return
            yield await _next_result(tasks, ordered=ordered)
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _next_result(tasks: deque[asyncio.Task[Any]], *, ordered: bool) -> Any:
    """Wait for any task or, if ``ordered`` is true, for the first task. Remove that task and return its result."""
    if not ordered:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        task = next(task for task in tasks if task in done)
        tasks.remove(task)
        return task.result()
    await asyncio.wait({tasks[0]})
    return tasks.popleft().result()

"""Threads that make blocking calls for one loop. `LoopThread` runs them in order, `LoopThreads` in parallel."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.journal.database import Outcome

__all__ = ["LoopThread", "LoopThreads", "settle"]

_T = TypeVar("_T")
_P = ParamSpec("_P")

#: The number of threads in addition to those for slow calls.
_SPARE = 2


class LoopThreads:
    """Daemon threads that call synchronous functions for one loop.

    Threads are started when they are needed, and stopped by `close`. Up to ``limit`` slow calls can run at the same
    time, and callers must acquire `slots` before making one. A few additional threads run fast calls.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name, self._slots, self._limit = name, limit, limit + _SPARE
        #: A semaphore to acquire before a slow call.
        self.slots: asyncio.Semaphore = asyncio.Semaphore(limit)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        # The number of threads waiting for a job, minus the number of jobs waiting for a thread.
        self._free = 0
        # The threads that are calling a function.
        self._busy: set[threading.Thread] = set()

    async def call(self, fn: Callable[[], _T]) -> _T:
        """Call ``fn`` in a thread with a copy of the current context, and return the result.

        If this call is cancelled before ``fn`` has started, ``fn`` is not called. Once ``fn`` has started, it cannot be
        stopped, so the cancelled call returns without waiting for it.
        """
        job, future = self._begin(fn)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._withdraw(job)
            future.cancel()
            raise

    async def finish(self, fn: Callable[[], _T]) -> _T:
        """Call ``fn`` as `call` does. If this is cancelled after ``fn`` has started, still wait for its result.

        A second cancellation ends the wait.
        """
        job, future = self._begin(fn)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if self._withdraw(job):
                future.cancel()
                raise
        return await asyncio.shield(future)

    def _begin(self, fn: Callable[[], _T]) -> tuple[_Job, asyncio.Future[_T]]:
        loop = asyncio.get_running_loop()
        job = _Job(partial(contextvars.copy_context().run, fn), loop)
        # Submit the job with `run_in_executor`, so that a loop in virtual time waits for it.
        return job, loop.run_in_executor(_Submitter(self._submit), job)

    def _submit(self, job: _Job) -> asyncio.Future[Any]:
        with self._lock:
            self._free -= 1
            if self._free < 0 and len(self._threads) < self._limit:
                self._free += 1
                thread = threading.Thread(target=self._run, args=[self._jobs], name=self._name, daemon=True)
                self._threads.add(thread)
                thread.start()
        self._jobs.put(job)
        return job.future

    def _withdraw(self, job: _Job) -> bool:
        """Prevent ``job`` from running. Return False if the job has already started."""
        with self._lock:
            job.withdrawn = not job.begun
            return job.withdrawn

    def _run(self, jobs: SimpleQueue[_Job | None]) -> None:
        thread = threading.current_thread()
        while (job := jobs.get()) is not None:
            with self._lock:
                job.begun = not job.withdrawn
                if job.begun:
                    self._busy.add(thread)
            if job.begun:
                job.do()
            with self._lock:
                self._busy.discard(thread)
                self._free += thread in self._threads
            if job.begun:
                job.tell()
            del job

    def close(self) -> None:
        """Stop the threads, without waiting for functions that are still running."""
        with self._lock:
            threads, self._threads, self._free = self._threads, set(), 0
            jobs, self._jobs = self._jobs, SimpleQueue()
            # A different loop may use this object next.
            self.slots = asyncio.Semaphore(self._slots)
            idle = threads - self._busy
        for _ in threads:
            jobs.put(None)
        for thread in idle:
            thread.join()


class _Job:
    """A function for a thread to call, and its result."""

    __slots__ = ("_call", "_loop", "_outcome", "begun", "future", "withdrawn")

    def __init__(self, call: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self._call, self._loop = call, loop
        self._outcome: Outcome = None, None
        self.future: asyncio.Future[Any] = loop.create_future()
        self.begun = self.withdrawn = False

    def __call__(self) -> Any:
        """Do nothing. `run_in_executor` requires a callable, but threads call `do`."""

    def do(self) -> None:
        """Call the function."""
        try:
            self._outcome = self._call(), None
        except StopIteration as error:
            # A future cannot hold a StopIteration.
            self._outcome = None, RuntimeError(f"it raised {error!r}")
        except BaseException as error:  # noqa: BLE001  # the caller gets it
            self._outcome = None, error

    def tell(self) -> None:
        """Pass the function's result to the loop."""
        # The loop may be closed.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(settle, self.future, self._outcome)


class _Submitter(Executor):
    """The part of an executor that `run_in_executor` needs."""

    def __init__(self, submit: Callable[[_Job], asyncio.Future[Any]]) -> None:
        self._submit = submit

    def submit(self, fn: Any, /, *_: Any, **__: Any) -> Any:
        """Run the job."""
        return self._submit(fn)


class LoopThread(Executor):
    """A daemon thread that runs its jobs in order. Daemon threads do not keep the process from exiting.

    It is an executor because loops can wait for executors in both real and virtual time. An instance belongs to one
    loop, and the futures that it returns belong to the same loop. Thread-safe futures would double the cost of each
    call.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(  # type: ignore[override]  # `run_in_executor` returns a loop's future as it is
        self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> asyncio.Future[_T]:
        """Run ``fn`` after all jobs that were submitted earlier."""
        future: asyncio.Future[_T] = self._loop.create_future()
        self._jobs.put((future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002  # Executor's signature
        """Stop the thread after it has run all submitted jobs."""
        self._jobs.put(None)
        if wait:
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(*job)
            # Drop the reference to the job before waiting for the next one.
            del job

    def _do(self, future: asyncio.Future[Any], call: Callable[[], Any]) -> None:
        outcome: Outcome
        try:
            outcome = call(), None
        except BaseException as error:  # noqa: BLE001  # raised to the caller
            outcome = None, error
        # The loop may be closed.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(settle, future, outcome)


def settle(future: asyncio.Future[Any], outcome: Outcome) -> None:
    """Set the outcome of ``future``, unless the future was cancelled."""
    if future.cancelled():
        return
    result, error = outcome
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)

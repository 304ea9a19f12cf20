"""Additions to asyncio: a condition without a lock, a wait with a limit, and safe handling of cancellation."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import time
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from lifecycle._util import name_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from contextvars import Context

__all__ = [
    "Condition",
    "call_anywhere",
    "cancel_later",
    "check_callable",
    "is_async",
    "shield",
    "start_task",
    "wait_within",
    "wall_clock",
    "was_cancelled",
]

_T = TypeVar("_T")


class Condition:
    """A condition without a lock, for a single event loop.

    `notify_all` wakes all waiters, and each of them checks again.
    """

    def __init__(self) -> None:
        #: The number of notifications so far. While it is unchanged, a caller has not missed any.
        self.notified: int = 0
        # None until a task waits, because there may be many thousands of conditions.
        self._waiters: list[asyncio.Future[None]] | None = None

    def notify_all(self) -> None:
        """Wake every waiter."""
        self.notified += 1
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, None
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for the next notification."""
        waiter = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            # A waiter that was notified is no longer in the list. With a thousand waiters, searching for it would take
            # each of them a thousand steps.
            if waiter.cancelled() and self._waiters and waiter in self._waiters:
                self._waiters.remove(waiter)


async def wait_within(seconds: float, event: asyncio.Event) -> bool:
    """Wait for ``event`` for at most ``seconds``, and return whether it was set."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def is_async(fn: object) -> TypeGuard[Callable[..., Awaitable[Any]]]:
    """Return whether calling ``fn``, a function or a callable object, returns an awaitable."""
    # For a class, `__call__` would be the method that its instances use.
    call = None if isinstance(fn, type) else getattr(fn, "__call__", None)  # noqa: B004  # its kind is needed
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(call)


def was_cancelled() -> bool:
    """Return whether the running task was cancelled. User code may also raise CancelledError by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def cancel_later(cancelled: asyncio.CancelledError) -> None:
    """Raise a caught cancellation of the running task again at its next await."""
    task = asyncio.current_task()
    assert task is not None, "only a task can be cancelled"
    # If we cancelled the task right away and it returned without awaiting again, its result would be lost.
    asyncio.get_running_loop().call_soon(_cancel_again, task, *cancelled.args)


def _cancel_again(task: asyncio.Task[Any], *message: Any) -> None:
    # The cancellation may have been withdrawn, for example by a timeout when its block ended.
    if not task.done() and task.cancelling():
        # Keep the number of cancellation requests the same, so that timeouts and task groups recognise their own.
        task.uncancel()
        task.cancel(*message)


def start_task(
    work: Coroutine[Any, Any, _T], *, name: str | None = None, context: Context | None = None
) -> asyncio.Task[_T]:
    """Create a task that begins in a later step of the loop, even with `asyncio.eager_task_factory`.

    Otherwise, a handler would run inside ``emit``, and before its owner has stored its task.
    """
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is not None:
        later = _later(work)
        # The program's tasks are shown with the names of their functions.
        for attribute in ("__name__", "__qualname__"):
            setattr(later, attribute, getattr(work, attribute))
        work = later
    return loop.create_task(work, name=name, context=context)


async def _later(work: Coroutine[Any, Any, _T]) -> _T:
    try:
        await asyncio.sleep(0)
    except BaseException:
        work.close()
        raise
    return await work


async def shield(work: asyncio.Future[_T]) -> _T:
    """Wait for ``work`` even if the caller is cancelled. The cancellation is raised once the work has finished."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError as error:
            cancelled = error
    result = work.result()
    if cancelled is not None:
        raise cancelled
    return result


def wall_clock() -> Callable[[], float]:
    """Return the clock for dates, in seconds since the epoch. A loop in virtual time has its own clock."""
    return getattr(asyncio.get_running_loop(), "wall_time", time.time)


async def call_anywhere(fn: Callable[..., Any], *args: Any) -> Any:
    """Call ``fn`` and return its result. A plain function runs in a thread, so that it does not block the loop.

    A thread cannot be cancelled. If the caller is cancelled, this waits until ``fn`` has returned, and then raises
    CancelledError, or the error that ``fn`` raised. If the thread has not started running ``fn`` yet, ``fn`` is not
    called.
    """
    if inspect.iscoroutinefunction(fn):
        return await fn(*args)
    given_up = False

    def call() -> Any:
        try:
            return None if given_up else fn(*args)
        except StopIteration as error:
            # A future does not accept StopIteration, so we would wait forever. Coroutines also convert it to
            # RuntimeError.
            raise RuntimeError(f"{name_of(fn)} raised StopIteration") from error

    context = contextvars.copy_context()
    thread = asyncio.get_running_loop().run_in_executor(None, lambda: context.run(call))
    try:
        await asyncio.wait({thread})
    except asyncio.CancelledError:
        given_up = True
        result = await shield(thread)
        if inspect.iscoroutine(result):
            result.close()
        raise
    result = thread.result()
    return await result if inspect.isawaitable(result) else result


def check_callable(fn: object) -> None:
    """Reject anything that is not a function. The message points out the likely mistake.

    Raises:
        TypeError: if ``fn`` is not a function. The message lists what is accepted.
    """
    if inspect.iscoroutine(fn):
        fn.close()
        raise TypeError(f"{fn!r} is a coroutine; pass the function, followed by its arguments")
    if not callable(fn):
        raise TypeError(f"{fn!r} cannot be called; pass an async or plain function, followed by its arguments")

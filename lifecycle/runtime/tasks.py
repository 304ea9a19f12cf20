"""Run functions: with `go` as background tasks, in a `Group` that ends as a unit, or with `do` for critical work."""

from __future__ import annotations

import asyncio
import inspect
import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, overload

from lifecycle import hooks
from lifecycle._async import call_anywhere, check_callable, shield, start_task
from lifecycle._util import name_of
from lifecycle.runtime.lifetimes import current, current_lifetime

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType
    from typing import Self

__all__ = ["Group", "do", "do_detached", "go"]

_T = TypeVar("_T")

_log = logging.getLogger("lifecycle.runtime")


@overload
def go(
    fn: Callable[..., Awaitable[_T]],
    *args: Any,
    on_error: Callable[[BaseException], object] | None = None,
    name: str | None = None,
) -> asyncio.Task[_T]: ...


@overload
def go(
    fn: Callable[..., _T],
    *args: Any,
    on_error: Callable[[BaseException], object] | None = None,
    name: str | None = None,
) -> asyncio.Task[_T]: ...


def go(
    fn: Callable[..., Any],
    *args: Any,
    on_error: Callable[[BaseException], object] | None = None,
    name: str | None = None,
) -> asyncio.Task[Any]:
    """Run ``fn(*args)`` as a background task of the current lifetime, which cancels and awaits it. See `Lifetime.go`.

    Raises:
        LookupError: if called outside a lifetime.
    """
    return current().go(fn, *args, on_error=on_error, name=name)


class Group:
    """Runs functions concurrently, at most ``limit`` at a time. The block ends once all of them have finished.

    If a function or the block raises an error, the other functions are cancelled, and the error is raised. Later errors
    are logged. A plain function runs in a thread, which cannot be cancelled, so the block waits until it has returned.

    Args:
        limit: The maximum number of functions that run at the same time. By default, there is no limit.

    Raises:
        ValueError: if ``limit`` is less than 1.
    """

    def __init__(self, limit: int | None = None) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"Group(limit={limit!r}) would never run anything; use 1 or more, or None for no limit")
        self._slots = nullcontext() if limit is None else asyncio.Semaphore(limit)
        self._tasks = asyncio.TaskGroup()
        self._first: BaseException | None = None

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, asyncio.CancelledError):
            self._first = self._first or error
        try:
            await self._tasks.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as group:
            assert self._first is not None, "a task group fails where one of its tasks or the block did"
            for other in group.exceptions:
                if other is not self._first:
                    _log.error("a later error in a group: %r", other, exc_info=other)
            # Raise the first error itself rather than an exception group.
            raise self._first from self._first.__cause__

    @overload
    async def go(self, fn: Callable[..., Awaitable[_T]], *args: Any) -> asyncio.Task[_T]: ...

    @overload
    async def go(self, fn: Callable[..., _T], *args: Any) -> asyncio.Task[_T]: ...

    async def go(self, fn: Callable[..., Any], *args: Any) -> asyncio.Task[Any]:
        """Start ``fn(*args)`` once fewer than ``limit`` functions are running. A plain function runs in a thread.

        Raises:
            TypeError: if ``fn`` is not a function.
            RuntimeError: if called outside the block, or if the group is failing.
        """
        check_callable(fn)
        await self._slots.__aenter__()
        work = self._run(fn, args)
        try:
            task = self._tasks.create_task(work, name=name_of(fn))
        except BaseException:
            work.close()
            await self._slots.__aexit__(None, None, None)
            raise
        task.add_done_callback(self._free)
        return task

    async def _run(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        sender, name, now = current_lifetime(), name_of(fn), asyncio.get_running_loop().time
        began = now()
        hooks.task_started.announce(sender, name=name)
        try:
            return await call_anywhere(fn, *args)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._first = self._first or error
            raise
        finally:
            hooks.task_finished.announce(sender, name=name, duration=now() - began)

    def _free(self, _: asyncio.Task[Any]) -> None:
        if isinstance(self._slots, asyncio.Semaphore):
            self._slots.release()


@overload
async def do(fn: Callable[..., Awaitable[_T]], *args: Any) -> _T: ...


@overload
async def do(fn: Callable[..., _T], *args: Any) -> _T: ...


async def do(fn: Callable[..., Any], *args: Any) -> Any:
    """Run ``fn(*args)``, and announce its completion through `hooks.critical_finished`.

    Errors are raised as usual.

    ``fn`` is async or plain. A plain function runs in this thread.

    Raises:
        TypeError: if ``fn`` is not a function.
    """
    check_callable(fn)
    loop = asyncio.get_running_loop()
    began = loop.time()
    failure: BaseException | None = None
    try:
        result = fn(*args)
        return await result if inspect.isawaitable(result) else result
    except BaseException as error:
        failure = error
        raise
    finally:
        duration = loop.time() - began
        hooks.critical_finished.announce(current_lifetime(), name=name_of(fn), duration=duration, error=failure)


@overload
async def do_detached(fn: Callable[..., Awaitable[_T]], *args: Any) -> _T: ...


@overload
async def do_detached(fn: Callable[..., _T], *args: Any) -> _T: ...


async def do_detached(fn: Callable[..., Any], *args: Any) -> Any:
    """Like `do`, but run ``fn(*args)`` to completion even if the caller is cancelled.

    If the caller is cancelled, this waits until ``fn`` has finished, and then raises CancelledError, or the error that
    ``fn`` raised.
    """
    check_callable(fn)
    return await shield(start_task(do(fn, *args), name=name_of(fn)))

"""`Group`: tasks that belong together, at most so many at once, and one error out of it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, overload

from lifecycle import hooks
from lifecycle._naming import name_of
from lifecycle.runtime.background import call_anywhere, check_callable
from lifecycle.runtime.lifetimes import current_life

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType
    from typing import Self

__all__ = ["Group"]

_T = TypeVar("_T")

_log = logging.getLogger("lifecycle.runtime")


class Group:
    """Runs functions at once, at most ``limit`` of them; the block ends when all have ended.

    The first error, of a function or of the block, cancels the rest and comes out as it is; errors that follow
    while the rest ends are logged. A plain function runs in a thread, which cannot be cancelled, so the block waits
    until it has returned.

    Raises:
        ValueError: for a limit below 1.
    """

    def __init__(self, limit: int | None = None) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"Group(limit={limit!r}) would never run anything; give 1 or more, or None for no limit")
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
                    _log.error("an error after the first in a group: %r", other, exc_info=other)
            # The group says no more than its first error does.
            raise self._first from self._first.__cause__

    @overload
    async def go(self, fn: Callable[..., Awaitable[_T]], *args: Any) -> asyncio.Task[_T]: ...

    @overload
    async def go(self, fn: Callable[..., _T], *args: Any) -> asyncio.Task[_T]: ...

    async def go(self, fn: Callable[..., Any], *args: Any) -> asyncio.Task[Any]:
        """Start ``fn(*args)``, async or plain (in a thread), once fewer than ``limit`` run.

        Raises:
            TypeError: for what is no function.
            RuntimeError: outside the block, or once the group is failing.
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
        life, name, now = current_life.get(None), name_of(fn), asyncio.get_running_loop().time
        sender, began = None if life is None else life.lifetime, now()
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

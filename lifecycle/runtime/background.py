"""The background tasks of a lifetime: started by `go`, counted, and awaited before it ends."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from typing import TYPE_CHECKING, Any

from lifecycle import hooks
from lifecycle._cancelling import see_through, was_cancelled
from lifecycle._naming import name_of
from lifecycle.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.runtime.lives import Life

__all__ = ["Background", "call_anywhere", "check_callable"]

_log = logging.getLogger("lifecycle.runtime")


async def call_anywhere(fn: Callable[..., Any], *args: Any) -> Any:
    """Return the result of ``fn``: an async function runs here, a plain one in a thread, so it cannot block the loop.

    A thread cannot be cancelled. When the caller is, this waits until ``fn`` has returned, and lets the cancellation
    through then; if ``fn`` raised, its error comes out instead. If the thread has not begun, ``fn`` is not called.
    """
    if inspect.iscoroutinefunction(fn):
        return await fn(*args)
    given_up = False

    def call() -> Any:
        try:
            return None if given_up else fn(*args)
        except StopIteration as error:
            # No future takes it, so the wait for the thread would never end; a coroutine converts it in the same way.
            raise RuntimeError(f"{name_of(fn)} raised StopIteration") from error

    context = contextvars.copy_context()
    thread = asyncio.get_running_loop().run_in_executor(None, lambda: context.run(call))
    try:
        await asyncio.wait({thread})
    except asyncio.CancelledError:
        given_up = True
        result = await see_through(thread)
        if inspect.iscoroutine(result):
            result.close()
        raise
    result = thread.result()
    return await result if inspect.isawaitable(result) else result


def check_callable(fn: object) -> None:
    """Refuse what is no function, in the words of the mistake that is likely.

    Raises:
        TypeError: saying what to give.
    """
    if inspect.iscoroutine(fn):
        fn.close()
        raise TypeError(f"{fn!r} is a call already made; give the function, and its arguments after it")
    if not callable(fn):
        raise TypeError(f"{fn!r} cannot be called; give a function, async or plain, and its arguments after it")


class Background:
    """The tasks of `go`; a crash of one is told to everybody and kills nothing."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._running: set[asyncio.Task[Any]] = set()
        self.started: int = 0
        self.crashed: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Of those that run."""
        return tuple(sorted(task.get_name() for task in self._running))

    def start(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        on_error: Callable[[BaseException], object] | None,
        name: str | None,
    ) -> asyncio.Task[Any]:
        """`Lifetime.go`: run ``fn(*args)`` in a task of its own."""
        check_callable(fn)
        life, label = self._life, name or name_of(fn)
        if not life.in_loop():
            raise RuntimeError("go() starts a task and must be called in the thread of the lifetime's event loop")
        if life.over:
            raise RuntimeError("the lifetime is over; start background tasks before it ends")
        work = self._watch(label, fn, args, on_error)
        task = life.loop.create_task(work, name=label, context=life.context_below())
        self.started += 1
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(_retrieve)
        return task

    async def cancel(self, timeout: float | None = None) -> None:
        """Cancel all, also those that are started meanwhile, and wait; after ``timeout`` name those that remain."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        asked: set[asyncio.Task[Any]] = set()
        while self._running:
            for task in self._running - asked:
                task.cancel()
            asked |= self._running
            left = None if deadline is None else max(0.0, deadline - loop.time())
            done, _ = await asyncio.wait(self._running, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                _log.warning("these background tasks do not end when cancelled: %s", ", ".join(self.names))
                return

    async def _watch(
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        on_error: Callable[[BaseException], object] | None,
    ) -> Any:
        loop = asyncio.get_running_loop()
        began = loop.time()
        hooks.task_started.announce(self._life.lifetime, name=name)
        try:
            return await call_anywhere(fn, *args)
        except asyncio.CancelledError as error:
            if not was_cancelled():
                await self._report(name, error, on_error)
            raise
        except Interrupted:
            raise  # as good as a cancellation: the lifetime stops
        except Exception as error:
            await self._report(name, error, on_error)
            raise
        finally:
            hooks.task_finished.announce(self._life.lifetime, name=name, duration=loop.time() - began)

    async def _report(
        self, name: str, error: BaseException, on_error: Callable[[BaseException], object] | None
    ) -> None:
        self.crashed += 1
        _log.error("the background task %r failed: %r", name, error, exc_info=error)
        hooks.task_crashed.announce(self._life.lifetime, name=name, error=error)
        if on_error is None:
            return
        try:
            result = on_error(error)
            if inspect.isawaitable(result):
                await result
        except Exception:  # noqa: BLE001  # whatever user code raises here is logged
            _log.exception("on_error of the background task %r failed", name)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Asyncio is not to complain about an error that has been reported."""
    if not task.cancelled():
        task.exception()

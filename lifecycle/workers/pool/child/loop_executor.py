"""Runs calls in a worker process whose target is async. Other workers don't import asyncio."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from lifecycle._async import start_task
from lifecycle.workers.pool.child.executors import (
    Call,
    ThreadCall,
    ThreadExecutor,
    error_frame,
    is_async,
    refuse_generator,
    under_span,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.workers.pool.child.runtime import Channel

__all__ = ["LoopExecutor"]


class LoopExecutor:
    """An executor that runs async functions in an event loop in the main thread, and plain functions in threads.

    For the arguments, see `MainExecutor`.
    """

    kind: type[Call] = ThreadCall

    def __init__(self, find: Callable[[str], Any], channel: Channel, done: Callable[[Call, list[Any]], None]) -> None:
        self._find = find
        self._channel = channel
        self._done = done
        self._threads = ThreadExecutor(find, channel, done)
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._closed = asyncio.Event()
        # The calls running as tasks. Each semaphore limits how many more chunks the call can send.
        self._tasks: dict[Call, tuple[asyncio.Task[None], asyncio.Semaphore]] = {}

    def run(self, start: Callable[[], None]) -> None:
        """Call ``start`` in the loop, and run the loop until `close` is called and all calls have finished."""
        with self._runner:
            self._runner.run(self._serve(start))
        self._threads.join()

    def submit(self, call: Call) -> None:
        """Run ``call`` immediately."""
        self._loop.call_soon_threadsafe(self._begin, call)

    def cancel(self, call: Call) -> None:
        """Cancel the task of ``call``, or interrupt its thread."""
        self._loop.call_soon_threadsafe(self._cancel, call)

    def credit(self, call: Call, number: int) -> None:
        """Allow ``call`` to send ``number`` more chunks."""
        self._loop.call_soon_threadsafe(self._grant, call, number)

    def close(self) -> None:
        """Accept no more calls. `run` returns when all submitted calls have finished."""
        self._loop.call_soon_threadsafe(self._closed.set)

    def wake(self) -> None:
        """Make the loop run Python code, so that the handlers of signals run. uvloop does not do so by itself."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(lambda: None)

    async def _serve(self, start: Callable[[], None]) -> None:
        start()
        await self._closed.wait()
        while self._tasks:
            await asyncio.wait([task for task, _ in self._tasks.values()])

    def _begin(self, call: Call) -> None:
        try:
            function = self._find(call.function)
        except Exception as error:  # noqa: BLE001  # reported to the caller
            self._done(call, error_frame(call.number, error))
            return
        if is_async(function):
            credit = asyncio.Semaphore(call.window)
            self._tasks[call] = start_task(self._work(call, function, credit)), credit
        else:
            self._threads.submit(call)

    def _cancel(self, call: Call) -> None:
        if call in self._tasks:
            call.cancelled = True
            # A task that is cancelled before its first step never runs, so it could not send a response.
            if call.began is not None:
                self._tasks[call][0].cancel()
        else:
            self._threads.cancel(call)

    def _grant(self, call: Call, number: int) -> None:
        if call in self._tasks:
            for _ in range(number):
                self._tasks[call][1].release()
        else:
            self._threads.credit(call, number)

    async def _work(self, call: Call, function: Callable[..., Any], credit: asyncio.Semaphore) -> None:
        call.began = monotonic()
        if call.traceparent:
            # There is no need to leave the span, because the task has its own context.
            under_span(call.traceparent)
        try:
            frame = await self._perform(call, function, credit)
        except BaseException as error:  # noqa: BLE001  # reported to the caller
            frame = error_frame(call.number, error)
            frame[-1] = call.cancelled and isinstance(error, asyncio.CancelledError)
        del self._tasks[call]
        self._done(call, frame)

    async def _perform(self, call: Call, function: Callable[..., Any], credit: asyncio.Semaphore) -> list[Any]:
        if call.cancelled:
            raise asyncio.CancelledError
        value = function(*self._channel.decode_payload(call.args), **self._channel.decode_payload(call.kwargs))
        if not call.window:
            refuse_generator(call, value)
            return ["result", call.number, await value]
        if not hasattr(value, "__aiter__"):
            # Close the coroutine to avoid Python's warning that it was never awaited.
            value.close()
            raise TypeError(f"{call.function!r} is not a generator; use call() for its result")
        try:
            async for item in value:
                await credit.acquire()
                self._channel.send(["chunk", call.number, self._channel.encode_payload(item)])
        finally:
            await value.aclose()
        return ["end", call.number]

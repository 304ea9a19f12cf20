"""`LoopThread`: a thread that does what a loop gives it, in order, and blocks in the loop's place."""

from __future__ import annotations

import threading
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from lifecycle.journal.databases import Outcome

__all__ = ["LoopThread", "settle"]

_T = TypeVar("_T")
_P = ParamSpec("_P")


class LoopThread(Executor):
    """One thread that does its jobs in order; a daemon, so that the end of the process never waits for a disk.

    An executor, since a loop knows how to wait for one, whatever its clock; for one loop, whose futures it gives, since
    a future that any thread may wait for costs as much as the rest of the way there and back.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(  # type: ignore[override]  # `run_in_executor` returns a loop's future as it is
        self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> asyncio.Future[_T]:
        """Do this after what was submitted before."""
        future: asyncio.Future[_T] = self._loop.create_future()
        self._jobs.put((future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002  # Executor's signature
        """End after what was submitted."""
        self._jobs.put(None)
        if wait:
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(*job)
            # Nothing of a job is kept while the thread waits for the next.
            del job

    def _do(self, future: asyncio.Future[Any], call: Callable[[], Any]) -> None:
        outcome: Outcome
        try:
            outcome = call(), None
        except BaseException as error:  # noqa: BLE001  # whoever submitted it gets it
            outcome = None, error
        # A loop that is closed waits for nothing.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(settle, future, outcome)


def settle(future: asyncio.Future[Any], outcome: Outcome) -> None:
    """Have ``future`` end as the outcome says, unless nobody waits for it."""
    if future.cancelled():
        return
    result, error = outcome
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)

"""A plain function run as a worker, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, ClassVar

from lifecycle._async import is_async
from lifecycle._util import current_worker, name_of
from lifecycle.workers.base import BaseWorker
from lifecycle.workers.functions import takes_one
from lifecycle.workers.handovers import given
from lifecycle.workers.model import End
from lifecycle.workers.stacks import thread_stack

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["ThreadWorker"]


class ThreadWorker(BaseWorker):
    """A thread that runs ``fn``, for work that blocks.

    ``fn`` is given an event that is set to stop it: it should wait with ``stop.wait(seconds)`` and look at
    ``stop.is_set()`` wherever it can end. A thread cannot be killed: one that goes on after ``stop_timeout`` seconds
    is abandoned, which is logged with its stack; it does not hold up the end of the program.

    Args:
        name: what it is called in messages and states.
        fn: plain, of a `threading.Event`.
        stop_timeout: seconds that it has to end.

    Raises:
        TypeError: for anything but such a function.
        ValueError: for an empty name or a negative time-out.
    """

    kind: ClassVar[str] = "thread"
    # Nothing was done to it that could show now.
    _last_wait: ClassVar[float] = 0.0

    def __init__(self, name: str, fn: Callable[[threading.Event], object], *, stop_timeout: float = 10.0) -> None:
        super().__init__(name, stop_timeout=stop_timeout)
        _check(name, fn)
        self._fn = fn
        self._stop_asked = threading.Event()
        self._thread: threading.Thread | None = None

    async def _launch(self) -> Awaitable[End]:
        loop = asyncio.get_running_loop()
        life: asyncio.Future[End] = loop.create_future()
        context = copy_context()

        def run() -> None:
            end = context.run(self._work)
            # The loop may be closed by now; then nobody waits any more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, life, end)

        self._thread = threading.Thread(target=run, name=self.name, daemon=True)
        self._thread.start()
        return life

    def _work(self) -> End:
        given.set(dict(self._env))
        current_worker.set(self.name)
        try:
            self._fn(self._stop_asked)
        except BaseException as error:  # noqa: BLE001  # as its end
            return End(error=error)
        return End()

    def _ask(self, *, force: bool) -> None:  # noqa: ARG002  # it cannot be forced
        self._stop_asked.set()

    def _whereabouts(self) -> str:
        return repr(self._life) if self._thread is None else thread_stack(self._thread)


def _settle(life: asyncio.Future[End], end: End) -> None:
    if not life.done():
        life.set_result(end)


def _check(name: str, fn: Any) -> None:
    if not callable(fn) or is_async(fn):
        raise TypeError(
            f"{fn!r} is no plain function; {name!r} needs one, of a threading.Event (TaskWorker runs async)"
        )
    if not takes_one(fn):
        raise TypeError(
            f"{name_of(fn)} cannot be called by {name!r}: it has to take one argument, the threading.Event that is "
            "set to stop it (functools.partial gives it others)"
        )

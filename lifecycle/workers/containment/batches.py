"""Blocking work beside a loop, a batch at a time: what is wanted while one is at work makes up the next.

A look at all processes takes its time, and workers often start, or end, together. It is done in a thread
of its own: the loop's may all be busy with work of the program, which the end of a worker must not wait for.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

from lifecycle.workers.rushes import after_the_rush

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Batches"]

_log = logging.getLogger("lifecycle.workers")

_T = TypeVar("_T")


class Batches(Generic[_T]):
    """What ``work`` does in a thread ``name``, for each loop; an error of it is logged, and ends nobody's wait."""

    def __init__(self, work: Callable[[Sequence[_T]], object], name: str) -> None:
        self._work = work
        self._name = name
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue[_T]] = WeakKeyDictionary()

    def ask(self, item: _T) -> asyncio.Future[None]:
        """Have ``item`` in the next batch; done with it."""
        loop = asyncio.get_running_loop()
        if (queue := self._queues.get(loop)) is None:
            queue = self._queues[loop] = _Queue(self._work, self._name)
        return queue.ask(loop, item)


class _Queue(Generic[_T]):
    def __init__(self, work: Callable[[Sequence[_T]], object], name: str) -> None:
        self._work = work
        self._name = name
        self._waiting: tuple[list[_T], asyncio.Future[None]] | None = None
        self._busy = False

    def ask(self, loop: asyncio.AbstractEventLoop, item: _T) -> asyncio.Future[None]:
        first = self._waiting is None
        items, done = self._waiting = self._waiting or ([], loop.create_future())
        items.append(item)
        if first and not self._busy:
            self._busy = True
            after_the_rush(items.__len__, partial(self._begin, loop))
        return done

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._waiting is not None, "it is begun when somebody waits"
        (items, done), self._waiting = self._waiting, None
        run = _in_thread(partial(self._work, items), self._name)
        run.add_done_callback(partial(self._ended, loop, done))

    def _ended(self, loop: asyncio.AbstractEventLoop, done: asyncio.Future[None], run: asyncio.Future[None]) -> None:
        if error := run.exception():
            _log.error("the %s failed; some of them may live on", self._name, exc_info=error)
        # Who waits is not cancelled, but it may be that all of its loop is.
        if not done.done():
            done.set_result(None)
        self._busy = self._waiting is not None
        if self._busy:
            self._begin(loop)


def _in_thread(call: Callable[[], object], name: str) -> asyncio.Future[None]:
    """Start ``call`` in a thread ``name``; done when it has returned, with the error that it raised."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def run() -> None:
        error = None
        try:
            call()
        except Exception as raised:  # noqa: BLE001  # handed to who waits
            error = raised
        # The loop may be closed by now; then nobody waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, done, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done


def _resolve(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)

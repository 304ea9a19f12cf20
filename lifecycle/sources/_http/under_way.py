"""The requests of one server that have no answer yet, and what they are told when they are given up.

Here is nothing but bookkeeping: what a request means is not known.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from lifecycle.sources._http.answers import STILL_RUNNING, Refused

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

__all__ = ["STOPPING", "UnderWay"]

STOPPING = "the receiver is stopping"


class UnderWay:
    """Knows how far each request has come: it is read, waits for room in a lane, or for the end of its handler."""

    def __init__(self) -> None:
        # How many are read or wait for room, and who wants to know when there are fewer.
        self._busy = 0
        self._rested: asyncio.Future[None] | None = None
        # The tasks of those that wait for room; of those that wait for a handler; and which of them we have
        # cancelled, to be answered.
        self._waiting: set[asyncio.Task[object]] = set()
        self._following: set[asyncio.Task[object]] = set()
        self._given_up: set[asyncio.Task[object]] = set()

    @property
    def pending(self) -> int:
        """How many wait for room or for a handler."""
        return len(self._waiting) + len(self._following)

    def begin(self) -> None:
        """Count one, from its first line on."""
        self._busy += 1

    def end(self) -> None:
        """It has its answer, or waits for nothing but its handler."""
        self._busy -= 1
        if self._rested is not None and not self._rested.done():
            self._rested.set_result(None)

    def waiting(self) -> _Waiting:
        """The present task waits for room.

        Raises:
            Refused: 503 when it is given up.
        """
        return _Waiting(self)

    def wait_for_room(self, task: asyncio.Task[object]) -> None:
        """``task`` waits for room from here on."""
        self._waiting.add(task)

    def wait_no_more(self, task: asyncio.Task[object], error: BaseException | None) -> None:
        """``task`` does not any more, since ``error`` or because there was some."""
        given_up = isinstance(error, asyncio.CancelledError) and self._is_ours(task)
        self._waiting.discard(task)
        self._given_up.discard(task)
        if given_up:
            raise Refused.for_now(503, STOPPING) from None

    @contextmanager
    def following(self) -> Generator[None]:
        """The present task, inside `waiting`, has its room, and waits for the handler.

        Raises:
            Refused: 504 when it is given up: not 503, since who sends it again may have it handled twice.
        """
        task = _present_task()
        self._waiting.discard(task)
        self._following.add(task)
        self.end()
        try:
            yield
        except asyncio.CancelledError:
            if self._is_ours(task):
                raise Refused(STILL_RUNNING, f"{STOPPING}, and its handler still runs") from None
            raise
        finally:
            self._following.discard(task)
            self.begin()

    def give_up(self, *, handled: bool = False) -> None:
        """Have those answered that wait for room; with ``handled`` also those that wait for a handler."""
        for task in (self._waiting | self._following if handled else self._waiting) - self._given_up:
            self._given_up.add(task)
            task.cancel()

    async def wait_rest(self, seconds: float, *, handled: bool) -> None:
        """Wait until there are none, but not longer than ``seconds``; with ``handled``, none in the handlers either."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._busy or (handled and self._following):
                    self._rested = asyncio.get_running_loop().create_future()
                    await self._rested

    def _is_ours(self, task: asyncio.Task[object]) -> bool:
        """Whether we cancelled it, to be answered, and not aiohttp, which ends the connection."""
        return task in self._given_up and not task.uncancel()


class _Waiting:
    """A block in which the present task waits; no generator, which would cost more than all else that is done here."""

    __slots__ = ("_task", "_under_way")

    def __init__(self, under_way: UnderWay) -> None:
        self._under_way = under_way
        self._task = _present_task()

    def __enter__(self) -> None:
        self._under_way.wait_for_room(self._task)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._under_way.wait_no_more(self._task, error)


def _present_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None, "a request is answered by a task"
    return task

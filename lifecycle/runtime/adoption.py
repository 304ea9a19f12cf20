"""The workers that were started under a lifetime: it stops those that nobody stopped before."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from lifecycle import hooks
from lifecycle.runtime.lifetimes import current_life

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.runtime.lives import Life

__all__ = ["Adopted", "Stoppable", "is_over", "starter", "stop_worker"]

_log = logging.getLogger("lifecycle.runtime")

_FINAL = frozenset({"stopped", "finished", "failed", "killed"})

#: Seconds that a killed worker has to be gone.
_KILL_GRACE = 2.0

#: The main under which code runs, so that the workers it started can be stopped right after it.
starter: ContextVar[object] = ContextVar("lifecycle_starter", default=None)


class Stoppable(Protocol):
    """What the shutdown needs of a worker."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    @property
    def status(self) -> str:
        """One of the ten states."""
        ...

    async def stop(self, timeout: float | None = None) -> None:
        """Return when it has ended; the shortest time-out of several calls counts."""
        ...


class Adopted:
    """Remembers workers as `hooks.worker_started` tells of them, in the order of their starts."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._workers: list[tuple[Stoppable, object]] = []
        # When to throw out those that have ended: at twice the number that was left the last time.
        self._crowded = 16

    def connect(self) -> Callable[[], None]:
        """Begin to adopt; returns what ends it."""
        hooks.worker_started.connect(self._adopt)
        return lambda: hooks.worker_started.disconnect(self._adopt)

    @property
    def names(self) -> tuple[str, ...]:
        """Of those that have not ended."""
        return tuple(worker.name for worker, _ in self._workers if not is_over(worker))

    async def stop(self, started_by: object, left: Callable[[], float]) -> None:
        """Stop what that main started, last first; None stands for all that is left."""
        mine = [worker for worker, by in self._workers if started_by is None or by is started_by]
        governed = self._governed()
        for worker in reversed(mine):
            # A supervisor stops its children itself, and would start again what is stopped behind its back.
            if not is_over(worker) and worker not in governed:
                await stop_worker(worker, left)

    def _adopt(self, _sender: object, *, worker: Any, **_: object) -> None:
        if current_life.get(None) is not self._life:
            return
        if len(self._workers) >= self._crowded:
            self._workers = [each for each in self._workers if not is_over(each[0])]
            self._crowded = max(16, 2 * len(self._workers))
        if all(each is not worker for each, _ in self._workers):
            self._workers.append((worker, starter.get()))

    def _governed(self) -> list[object]:
        children: list[object] = []
        for worker, _ in self._workers:
            supervisor: Any = worker
            if callable(getattr(supervisor, "workers", None)) and not is_over(worker):
                for state in supervisor.workers():
                    # One that is about to be started again has no worker until it is made.
                    with suppress(KeyError):
                        children.append(supervisor[state.name])
        return children


def is_over(worker: Stoppable) -> bool:
    """Whether it has ended."""
    return str(worker.status) in _FINAL


async def stop_worker(worker: Stoppable, left: Callable[[], float]) -> None:
    """Stop it within its own grace period, cut to what the shutdown has left; errors are logged."""
    calls = [asyncio.ensure_future(worker.stop())]
    await asyncio.wait(calls, timeout=left())
    if not calls[0].done():
        _log.warning("there is no time left for worker %r to stop by itself; it is killed", worker.name)
        calls.append(asyncio.ensure_future(worker.stop(0)))
        _, stuck = await asyncio.wait(calls, timeout=_KILL_GRACE)
        for call in stuck:
            call.cancel()
    try:
        await asyncio.gather(*calls)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # the others have to stop all the same
        _log.error("worker %r could not be stopped: %r", worker.name, error, exc_info=error)

"""What a supervisor needs of a worker, whoever wrote it, and what it has to reckon with where that is not us."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from lifecycle._async import was_cancelled
from lifecycle.workers.model import failed

if TYPE_CHECKING:
    from lifecycle.workers.model import Exit, Status, WorkerState

__all__ = ["Worker", "end_of", "stop_and_wait", "suspendable"]

_log = logging.getLogger("lifecycle.workers")


@runtime_checkable
class Worker(Protocol):
    """Anything that starts, stops and ends like a worker; `BaseWorker` is one way to write it."""

    @property
    def status(self) -> Status:
        """Where it is in its life."""
        ...

    async def start(self) -> None:
        """Return when it runs; raise if it cannot. A stop meanwhile MUST end it."""
        ...

    async def stop(self, timeout: float | None = None) -> None:
        """Return when it has ended; legal and idempotent in every state, the shortest time-out counts."""
        ...

    async def wait(self) -> Exit:
        """Wait for its end; for any number of waiters, at any time."""
        ...

    def state(self) -> WorkerState:
        """What there is to know about it."""
        ...


class _Stoppable(Protocol):
    async def stop(self, timeout: float | None = None) -> None: ...

    async def wait(self) -> Exit: ...


async def stop_and_wait(worker: _Stoppable, timeout: float | None = None) -> Exit:
    """Stop ``worker`` and return how it ended; ``timeout`` as in `BaseWorker.stop`."""
    await worker.stop(timeout)
    return await worker.wait()


async def end_of(worker: Worker) -> Exit:
    """Wait for the end of ``worker``; if it cannot tell, what it raises is logged, and is its failure."""
    try:
        return await worker.wait()
    except BaseException as error:  # judged by the owner, SystemExit too
        if isinstance(error, asyncio.CancelledError) and was_cancelled():
            raise
        _log.exception("%r cannot tell of its end, which counts as its failure", worker)
        return failed(error)


def suspendable(worker: Any) -> bool:
    """Whether ``worker`` can be suspended and resumed."""
    has = all(callable(getattr(worker, name, None)) for name in ("suspend", "resume"))
    return has and bool(cast("Any", getattr(worker, "suspendable", True)))

"""What a supervisor needs of a worker, whoever wrote it, and how one is made and started."""

from __future__ import annotations

import asyncio
import inspect
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from lifecycle.errors import WorkerFailed
from lifecycle.workers.base import BaseWorker
from lifecycle.workers.verdicts import failed, stopped_early

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lifecycle.workers._slots import Slot
    from lifecycle.workers.records import Exit, WorkerState
    from lifecycle.workers.specs import Spec
    from lifecycle.workers.status import Status

__all__ = ["Worker", "cancelling", "end_of", "make", "start_in", "suspendable"]

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


async def make(spec: Spec) -> Worker:
    """A new worker for ``spec``.

    Raises:
        WorkerFailed: if its function returns something else, or a worker that has lived.
    """
    made = spec.make()
    if inspect.isawaitable(made):
        made = await made
    if isinstance(made, type) or not isinstance(made, Worker):
        raise WorkerFailed(f"the function of {spec.name!r} returned {made!r}, which is no worker; return a new worker")
    if made.status != "created":
        raise WorkerFailed(
            f"the function of {spec.name!r} returned {made!r}, which has been started before; "
            "return a new one each time"
        )
    return made


async def start_in(slot: Slot, changed: Callable[[Slot, int, Status, Status], None]) -> BaseException | None:
    """Make a worker for ``slot``, which is empty, and start it; why that could not be done, if so.

    ``changed`` is told of every change of a worker that can tell, with the generation of the slot.
    """
    generation = slot.generation
    try:
        worker = await make(slot.spec)
        if slot.generation != generation:
            # It was stopped meanwhile, and a function that was cancelled need not care.
            return stopped_early(slot.spec.name)
        slot.worker = worker
        if isinstance(worker, BaseWorker):
            worker.on_change(partial(changed, slot, generation))
            worker.governed = True
        _hand_over(worker, slot.environment())
        await worker.start()
    except asyncio.CancelledError as error:
        if cancelling():
            raise
        return error
    except BaseException as error:  # noqa: BLE001  # judged by the owner, SystemExit too
        return error
    return None


async def end_of(worker: Worker) -> Exit:
    """Wait for the end of ``worker``; if it cannot tell, what it raises is logged, and is its failure."""
    try:
        return await worker.wait()
    except BaseException as error:  # judged by the owner, SystemExit too
        if isinstance(error, asyncio.CancelledError) and cancelling():
            raise
        _log.exception("%r cannot tell of its end, which counts as its failure", worker)
        return failed(error)


def suspendable(worker: Any) -> bool:
    """Whether ``worker`` can be suspended and resumed."""
    has = all(callable(getattr(worker, name, None)) for name in ("suspend", "resume"))
    return has and bool(cast("Any", getattr(worker, "suspendable", True)))


def _hand_over(worker: Any, environment: Mapping[str, str]) -> None:
    """Into its environment, if it takes one."""
    if callable(getattr(worker, "set_env", None)):
        for name, value in environment.items():
            worker.set_env(name, value)


def cancelling() -> bool:
    """Whether somebody cancelled this task; code of others may also raise CancelledError of its own accord."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

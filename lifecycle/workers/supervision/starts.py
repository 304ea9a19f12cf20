"""How children are started: a worker is made for a slot, is told what it has to know, and comes up, or does not."""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from lifecycle import hooks
from lifecycle._async import was_cancelled
from lifecycle.errors import DoNotRestart, WorkerFailed
from lifecycle.workers.base import BaseWorker, Worker
from lifecycle.workers.containment import Keep
from lifecycle.workers.model import Status, cannot_start, stopped_early
from lifecycle.workers.process import ProcessWorker
from lifecycle.workers.supervision.policy import STEERING, Verdict, cause_of, verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lifecycle.workers.specs import Spec
    from lifecycle.workers.supervision.owner import Owner
    from lifecycle.workers.supervision.slots import Slot

__all__ = ["Starts"]


class Starts:
    """The starts of the children of one owner, which calls it in its turn."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        # Those who are started again need not wait for another guard.
        self._guard = Keep()

    async def close(self) -> None:
        """Nobody is started any more."""
        await self._guard.release()

    def open(self, slot: Slot) -> None:
        """Begin to start a worker in ``slot``, which is empty; how that went is a message."""
        generation = slot.begin()
        slot.opening = asyncio.create_task(_start_in(slot, self._owner.ends.changed), name=f"start of {slot.spec.name}")
        slot.opening.add_done_callback(lambda _: self._owner.mailbox.post(partial(self._opened, slot, generation)))
        self._owner.note(slot)

    def open_in_turn(self, slot: Slot) -> None:
        """Begin to start the next of the queue, unless nobody is to be started now."""
        if not self._owner.restarts.suspended and not self._owner.ending:
            self.open(slot)

    async def _opened(self, slot: Slot, generation: int) -> None:
        if slot.generation != generation or slot.opening is None:
            return
        opening, slot.opening = slot.opening, None
        error = asyncio.CancelledError("cancelled") if opening.cancelled() else opening.result()
        if error is None:
            assert slot.worker is not None, "what has started was made"
            self._came_up(slot, slot.worker)
        else:
            await self._failed(slot, error)

    def _came_up(self, slot: Slot, worker: Worker) -> None:
        slot.came_up(asyncio.get_running_loop().time())
        if isinstance(worker, ProcessWorker):
            self._guard.hold()
        self._owner.queue.discard(slot)
        self._owner.ends.expect(slot, worker)
        self._owner.note(slot)
        slot.answer()
        if slot.restarts:
            hooks.worker_restarted.announce(self._owner.supervisor, worker=worker, restarts=slot.restarts)

    async def _failed(self, slot: Slot, error: BaseException) -> None:
        """A start failed: what that means depends on who wanted it."""
        ended = await self._owner.closer.bury(slot, error)
        slot.came_down(ended)
        cause, first = cause_of(error), self._owner.starting_up and slot in self._owner.queue
        if isinstance(cause, STEERING):
            self._steer(slot, cause)
        elif slot.asked:
            self.refuse(slot, error)
        elif first:
            self._owner.fail(cannot_start(self._owner.name, error, child=slot.spec.name))
        elif verdict(slot.spec.restart, ended) is Verdict.RESTART:
            await self._owner.restarts.again(slot, slot.generation, error)
        else:
            self._owner.queue.discard(slot)
            self._owner.ends.leave(slot)
        slot.answer(None if isinstance(cause, DoNotRestart) else error)
        self._owner.note(slot)

    def _steer(self, slot: Slot, cause: BaseException) -> None:
        """The child does not want to run, or nobody is to run any more."""
        self._owner.queue.discard(slot)
        if isinstance(cause, DoNotRestart):
            slot.rest = Status.STOPPED
        else:
            self._owner.fail(cause)

    def refuse(self, slot: Slot, error: BaseException | None = None) -> None:
        """It was to be started by hand and is not: whoever wanted that decides what follows."""
        self._owner.queue.discard(slot)
        if slot.provisional:
            self._owner.forget(slot)
        slot.answer(error or stopped_early(slot.spec.name))


async def _make(spec: Spec) -> Worker:
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


async def _start_in(slot: Slot, changed: Callable[[Slot, int, Status, Status], None]) -> BaseException | None:
    """Make a worker for ``slot``, which is empty, and start it; why that could not be done, if so.

    ``changed`` is told of every change of a worker that can tell, with the generation of the slot.
    """
    generation = slot.generation
    try:
        worker = await _make(slot.spec)
        if slot.generation != generation:
            # It was stopped meanwhile, and a function that was cancelled need not care.
            return stopped_early(slot.spec.name)
        slot.worker = worker
        if isinstance(worker, BaseWorker):
            worker.on_change(partial(changed, slot, generation))
            worker.supervised = True
        _hand_over(worker, slot.environment())
        await worker.start()
    except asyncio.CancelledError as error:
        if was_cancelled():
            raise
        return error
    except BaseException as error:  # noqa: BLE001  # judged by the owner, SystemExit too
        return error
    return None


def _hand_over(worker: Any, environment: Mapping[str, str]) -> None:
    """Into its environment, if it takes one."""
    if callable(getattr(worker, "set_env", None)):
        for name, value in environment.items():
            worker.set_env(name, value)

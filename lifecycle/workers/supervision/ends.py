"""What follows when a child has ended: whether it is started again, stays down, or is the end of the supervisor."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from lifecycle.errors import WorkerFailed
from lifecycle.workers.base import BaseWorker
from lifecycle.workers.model import FINAL, Status, failed
from lifecycle.workers.supervision import probes
from lifecycle.workers.supervision.policy import Verdict, cause_of, ends_with, verdict
from lifecycle.workers.supervision.slots import end_of

if TYPE_CHECKING:
    from lifecycle.workers.base import Worker
    from lifecycle.workers.model import Exit, ProbeResult
    from lifecycle.workers.specs import AutoShutdown
    from lifecycle.workers.supervision.owner import Owner
    from lifecycle.workers.supervision.slots import Slot

__all__ = ["Ends"]

_log = logging.getLogger("lifecycle.workers")


class Ends:
    """The ends of the children of one owner, which calls it in its turn."""

    def __init__(self, owner: Owner, auto_shutdown: AutoShutdown) -> None:
        self._owner = owner
        self._auto_shutdown = auto_shutdown

    def expect(self, slot: Slot, worker: Worker) -> None:
        """Have the end of ``worker`` come as a message, and its health asked after."""
        generation = slot.generation
        if worker.status in FINAL:
            self._report(slot, generation)
        elif not isinstance(worker, BaseWorker):
            slot.watching = asyncio.create_task(self._wait(slot, generation, worker), name=f"end of {slot.spec.name}")
        if slot.spec.probe_interval is not None:
            tell = partial(self._probed, slot, generation)
            asking = probes.keep_asking(slot, slot.spec.probe_interval, tell)
            slot.probing = asyncio.create_task(asking, name=f"health of {slot.spec.name}")

    def changed(self, slot: Slot, generation: int, _old: Status, new: Status) -> None:
        """A worker moved; its end is news only while nobody has replaced or stopped it."""
        self._owner.note(slot)
        if new in FINAL and slot.live and slot.generation == generation:
            self._report(slot, generation)

    async def _wait(self, slot: Slot, generation: int, worker: Worker) -> None:
        """For the end of a worker that cannot tell us."""
        self._report(slot, generation, await end_of(worker))

    def _report(self, slot: Slot, generation: int, ended: Exit | None = None) -> None:
        self._owner.mailbox.post(partial(self._exited, slot, generation, ended))

    async def _exited(self, slot: Slot, generation: int, ended: Exit | None) -> None:
        if slot.generation != generation or slot.worker is None:
            return
        if ended is None:
            ended = await end_of(slot.worker)
        elif slot.worker.status not in FINAL:
            # One that cannot tell of its end may not have ended; it must not run beside the next.
            await self._owner.closer.ask(slot.worker, slot.spec.stop_timeout)
        slot.came_down(ended)
        self._owner.note(slot)
        match verdict(slot.spec.restart, ended):
            case Verdict.END_TREE:
                self._owner.fail(cause_of(ended.error))
            case Verdict.LEAVE:
                self.leave(slot)
            case Verdict.RESTART:
                await self._owner.restarts.again(slot, generation, ended.error)

    def leave(self, slot: Slot) -> None:
        """It ended and is not started again: that may be the end of the supervisor."""
        others = (each for each in self._owner.slots.values() if each is not slot and each.spec.significant)
        left = [each for each in others if each.active or each in self._owner.queue]
        if ends_with(self._auto_shutdown, significant=slot.spec.significant, others=left):
            _log.info("%r ends: its significant child %r has ended %s", self._owner.name, slot.spec.name, slot.status)
            self._owner.fail(None)

    def _probed(self, slot: Slot, generation: int, bad: int, answer: ProbeResult) -> None:
        self._owner.note(slot)
        if slot.spec.restart_unhealthy and bad == slot.spec.failures:
            self._owner.mailbox.post(partial(self._unhealthy, slot, generation, answer))

    async def _unhealthy(self, slot: Slot, generation: int, answer: ProbeResult) -> None:
        if slot.generation != generation or not slot.live:
            return
        error = WorkerFailed(f"{slot.spec.name!r} was unhealthy {slot.spec.failures} times in a row: {answer.message}")
        await self._owner.closer.close(slot)
        slot.came_down(replace(slot.exit or failed(error), status=Status.FAILED, error=error))
        self._owner.note(slot)
        await self._owner.restarts.again(slot, slot.generation, error)

"""The one task that decides about the children of a supervisor.

Whatever happens (a child ended, a start came to its end, a backoff is over, somebody asks for something) is a message
in its mailbox, and one message is dealt with after the other. What comes from a worker carries the generation of its
slot, and is stale once another worker fills that. The owner never waits for a start, so one that hangs holds up
nobody; it does wait for stops, which are bounded. When and with whom a child is started again is the matter of
`_restarts`; what is asked for by hand is in `_admin` and `_suspension`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from lifecycle import hooks
from lifecycle.errors import DoNotRestart, InvalidTransition, WorkerFailed
from lifecycle.workers import _health
from lifecycle.workers._closing import Closer
from lifecycle.workers._line import Line
from lifecycle.workers._mailbox import Mailbox
from lifecycle.workers._policy import STEERING, Verdict, cause_of, ends_with, verdict
from lifecycle.workers._restarts import Restarts
from lifecycle.workers.base import BaseWorker
from lifecycle.workers.children import end_of, start_in
from lifecycle.workers.containment import Keep
from lifecycle.workers.process import ProcessWorker
from lifecycle.workers.records import End
from lifecycle.workers.status import FINAL, Status
from lifecycle.workers.verdicts import as_failure, cannot_start, failed, stopped_early

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.workers._rules import Rules
    from lifecycle.workers._slots import Slot
    from lifecycle.workers.children import Worker
    from lifecycle.workers.records import Exit, ProbeResult

__all__ = ["Owner"]

_log = logging.getLogger("lifecycle.workers")


class Owner:
    """Keeps the children of ``supervisor``; ``note`` is told when one may have changed."""

    def __init__(self, supervisor: BaseWorker, rules: Rules, note: Callable[[Slot], None]) -> None:
        self.supervisor = supervisor
        self.name = supervisor.name
        self.note = note
        #: The children by name, in the order of their starts.
        self.slots: dict[str, Slot] = {}
        self.mailbox = Mailbox()
        self.closer = Closer(rules.stop_order, note, self.fail)
        self.line = Line(self.mailbox, self._open_in_line)
        self.restarts = Restarts(self, rules)
        #: Set when the supervisor was asked to stop; what may take long gives up then.
        self.halted = asyncio.Event()
        #: Whether it is about to end, for whatever reason.
        self.ending = False
        self._auto_shutdown = rules.auto_shutdown
        self._started: asyncio.Future[WorkerFailed | None] | None = None
        self._end = End()
        # Those who are started again need not wait for another guard.
        self._guard = Keep()

    # -- its life -------------------------------------------------------------------------------------------------

    def begin(self) -> asyncio.Task[End]:
        """Start the children in order; the task ends with the supervisor."""
        self._started = asyncio.get_running_loop().create_future()
        return asyncio.create_task(self._run(self._started), name=f"supervisor {self.name}")

    async def started(self) -> None:
        """Return when all children have started.

        Raises:
            WorkerFailed: if one could not; by then the others are stopped.
        """
        assert self._started is not None, "begin() comes first"
        if error := await asyncio.shield(self._started):
            raise error

    def halt(self) -> None:
        """Have all children stopped, and end."""
        self.halted.set()
        self.mailbox.post(self._halt)

    async def _run(self, started: asyncio.Future[WorkerFailed | None]) -> End:
        self.line.form(list(self.slots.values()))
        try:
            while not self.ending:
                message = await self.mailbox.take()
                await message()
                self._advance()
        finally:
            self.ending = True
            self.line.dissolve()
            await self.closer.close_all(list(self.slots.values()))
            await self.closer.settle()
            await self._guard.release()
            self._dismiss(started)
        return self._end

    async def _halt(self) -> None:
        self.ending = True

    def fail(self, error: BaseException | None) -> None:
        """End by itself, because of ``error`` or because there is nothing left to do; what came first counts."""
        if not self.ending:
            self.ending, self._end = True, End(error=error)

    def _advance(self) -> None:
        self.line.advance()
        if self.line.empty and self.starting_up and not self.ending:
            assert self._started is not None, "it is starting up"
            self._started.set_result(None)

    @property
    def starting_up(self) -> bool:
        """Whether its first start goes on."""
        return self._started is not None and not self._started.done()

    def _dismiss(self, started: asyncio.Future[WorkerFailed | None]) -> None:
        """Nobody is left waiting."""
        for slot in self.slots.values():
            if slot.asked:
                slot.answer(stopped_early(slot.spec.name))
        self.mailbox.dismiss(InvalidTransition(f"the supervisor {self.name!r} has ended; nothing was done"))
        if not started.done():
            error = self._end.error
            started.set_result(None if error is None else as_failure(self.name, error))

    # -- starts ---------------------------------------------------------------------------------------------------

    def open(self, slot: Slot) -> None:
        """Begin to start a worker in ``slot``, which is empty; how that went is a message."""
        generation = slot.opens()
        slot.opening = asyncio.create_task(start_in(slot, self._changed), name=f"start of {slot.spec.name}")
        slot.opening.add_done_callback(lambda _: self.mailbox.post(partial(self._opened, slot, generation)))
        self.note(slot)

    def _open_in_line(self, slot: Slot) -> None:
        if not self.restarts.suspended and not self.ending:
            self.open(slot)

    async def _opened(self, slot: Slot, generation: int) -> None:
        if slot.generation != generation or slot.opening is None:
            return
        opening, slot.opening = slot.opening, None
        error = asyncio.CancelledError("cancelled") if opening.cancelled() else opening.result()
        if error is None:
            assert slot.worker is not None, "what has started was made"
            self._is_up(slot, slot.worker)
        else:
            await self._is_down(slot, error)

    def _is_up(self, slot: Slot, worker: Worker) -> None:
        slot.is_up(_now())
        if isinstance(worker, ProcessWorker):
            self._guard.hold()
        self.line.leave(slot)
        self._observe(slot, worker)
        self.note(slot)
        slot.answer()
        if slot.restarts:
            hooks.worker_restarted.announce(self.supervisor, worker=worker, restarts=slot.restarts)

    async def _is_down(self, slot: Slot, error: BaseException) -> None:
        """A start failed: what that means depends on who wanted it."""
        ended = await self.closer.bury(slot, error)
        slot.is_over(ended)
        cause, first = cause_of(error), self.starting_up and slot in self.line
        if isinstance(cause, STEERING):
            self._steer(slot, cause)
        elif slot.asked:
            self.refuse(slot, error)
        elif first:
            self.fail(cannot_start(self.name, error, child=slot.spec.name))
        elif verdict(slot.spec.restart, ended) is Verdict.RESTART:
            await self.restarts.again(slot, slot.generation, error)
        else:
            self.line.leave(slot)
            self.leave(slot)
        slot.answer(None if isinstance(cause, DoNotRestart) else error)
        self.note(slot)

    def _steer(self, slot: Slot, cause: BaseException) -> None:
        """The child does not want to run, or nobody is to run any more."""
        self.line.leave(slot)
        if isinstance(cause, DoNotRestart):
            slot.rest = Status.STOPPED
        else:
            self.fail(cause)

    def refuse(self, slot: Slot, error: BaseException | None = None) -> None:
        """It was to be started by hand and is not: whoever wanted that decides what follows."""
        self.line.leave(slot)
        if slot.provisional:
            del self.slots[slot.spec.name]
        slot.answer(error or stopped_early(slot.spec.name))

    # -- ends -----------------------------------------------------------------------------------------------------

    def _observe(self, slot: Slot, worker: Worker) -> None:
        """Have the end of ``worker`` come as a message, and its health asked after."""
        generation = slot.generation
        if worker.status in FINAL:
            self._report(slot, generation)
        elif not isinstance(worker, BaseWorker):
            slot.watching = asyncio.create_task(self._wait(slot, generation, worker), name=f"end of {slot.spec.name}")
        if slot.spec.probe_interval is not None:
            tell = partial(self._probed, slot, generation)
            asking = _health.keep_asking(slot, slot.spec.probe_interval, tell)
            slot.probing = asyncio.create_task(asking, name=f"health of {slot.spec.name}")

    def _changed(self, slot: Slot, generation: int, _old: Status, new: Status) -> None:
        """A worker moved; its end is news only while nobody has replaced or stopped it."""
        self.note(slot)
        if new in FINAL and slot.live and slot.generation == generation:
            self._report(slot, generation)

    async def _wait(self, slot: Slot, generation: int, worker: Worker) -> None:
        """For the end of a worker that cannot tell us."""
        self._report(slot, generation, await end_of(worker))

    def _report(self, slot: Slot, generation: int, ended: Exit | None = None) -> None:
        self.mailbox.post(partial(self._exited, slot, generation, ended))

    async def _exited(self, slot: Slot, generation: int, ended: Exit | None) -> None:
        if slot.generation != generation or slot.worker is None:
            return
        if ended is None:
            ended = await end_of(slot.worker)
        elif slot.worker.status not in FINAL:
            # One that cannot tell of its end may not have ended; it must not run beside the next.
            await self.closer.ask(slot.worker, slot.spec.stop_timeout)
        slot.is_over(ended)
        self.note(slot)
        match verdict(slot.spec.restart, ended):
            case Verdict.END_TREE:
                self.fail(cause_of(ended.error))
            case Verdict.LEAVE:
                self.leave(slot)
            case Verdict.RESTART:
                await self.restarts.again(slot, generation, ended.error)

    def leave(self, slot: Slot) -> None:
        """It ended and is not started again: that may be the end of the supervisor."""
        others = (each for each in self.slots.values() if each is not slot and each.spec.significant)
        left = [each for each in others if each.active or each in self.line]
        if ends_with(self._auto_shutdown, significant=slot.spec.significant, others=left):
            _log.info("%r ends: its significant child %r has ended %s", self.name, slot.spec.name, slot.status)
            self.fail(None)

    def _probed(self, slot: Slot, generation: int, bad: int, answer: ProbeResult) -> None:
        self.note(slot)
        if slot.spec.restart_unhealthy and bad == slot.spec.failures:
            self.mailbox.post(partial(self._unhealthy, slot, generation, answer))

    async def _unhealthy(self, slot: Slot, generation: int, answer: ProbeResult) -> None:
        if slot.generation != generation or not slot.live:
            return
        error = WorkerFailed(f"{slot.spec.name!r} was unhealthy {slot.spec.failures} times in a row: {answer.message}")
        await self.closer.close(slot)
        slot.is_over(replace(slot.exit or failed(error), status=Status.FAILED, error=error))
        await self.restarts.again(slot, slot.generation, error)


def _now() -> float:
    return asyncio.get_running_loop().time()

"""Emptying slots: however far the start of a child has come, nothing of it is left, and nothing it says counts."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Final

from lifecycle.workers.base import BaseWorker
from lifecycle.workers.model import FINAL, Status, failed
from lifecycle.workers.specs import StopOrder
from lifecycle.workers.supervision.policy import Verdict, cause_of, verdict
from lifecycle.workers.supervision.slots import end_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lifecycle.workers.base import Worker
    from lifecycle.workers.model import Exit
    from lifecycle.workers.supervision.slots import Slot

__all__ = ["Closer"]

_log = logging.getLogger("lifecycle.workers")

#: Seconds for the start of a worker to notice that it was stopped or cancelled.
_START_ENDS: Final = 1.0
#: Seconds for the making of a worker that has no time-out of its own yet.
_MAKING_ENDS: Final = 10.0


class Closer:
    """Stops children for one supervisor."""

    def __init__(
        self, order: StopOrder, note: Callable[[Slot], None], fail: Callable[[BaseException | None], None]
    ) -> None:
        self._order = order
        self._note = note
        self._fail = fail
        # Who stops what is in a hurry, once there is no time left.
        self._kills: list[asyncio.Task[None]] = []
        self._hurried = False

    async def close_all(self, slots: Sequence[Slot]) -> None:
        """Close ``slots``: the last first, one after the other, or all at once."""
        if self._order is StopOrder.PARALLEL:
            await self._close_at_once(slots)
            return
        for slot in reversed(slots):
            await self.close(slot)

    async def _close_at_once(self, slots: Sequence[Slot]) -> None:
        """Who can be asked without waiting is asked right away; only the others take a task each."""
        asked: list[tuple[Slot, BaseWorker]] = []
        others: list[Slot] = []
        for slot in slots:
            worker = slot.worker
            if slot.live and isinstance(worker, BaseWorker) and type(worker).stop is BaseWorker.stop:
                self._mute(slot)
                asked.append((slot, worker))
            else:
                others.append(slot)
        timers = [timer for each in self._by_grace(asked).items() if (timer := _ask_all(*each)) is not None]
        try:
            await asyncio.gather(*(self.close(slot) for slot in others))
            for slot, worker in asked:
                self._over(slot, await worker.wait())
                self._note(slot)
        finally:
            for timer in timers:
                timer.cancel()

    def _by_grace(self, asked: Iterable[tuple[Slot, BaseWorker]]) -> dict[float, list[BaseWorker]]:
        groups: dict[float, list[BaseWorker]] = {}
        for slot, worker in asked:
            given = self._time_for(slot)
            groups.setdefault(worker.stop_timeout if given is None else given, []).append(worker)
        return groups

    async def close(self, slot: Slot) -> None:
        """Have nothing at work in ``slot``; what its worker still had to say is stale."""
        self._mute(slot)
        if slot.opening is not None:
            await self._interrupt(slot, slot.opening)
        elif slot.live and slot.worker is not None:
            await self._stop(slot, slot.worker)
        elif slot.rest in (Status.CREATED, Status.PENDING):
            slot.rest = Status.STOPPED
        self._note(slot)

    def _mute(self, slot: Slot) -> None:
        slot.generation += 1
        slot.quiet()

    def _time_for(self, slot: Slot) -> float | None:
        return 0 if self._hurried else slot.spec.stop_timeout

    def _over(self, slot: Slot, ended: Exit) -> None:
        """What it did before it was stopped does not count, unless it was to end everything."""
        slot.came_down(ended)
        if ended.error is not None and verdict(slot.spec.restart, ended) is Verdict.END_TREE:
            self._fail(cause_of(ended.error))

    async def bury(self, slot: Slot, error: BaseException) -> Exit:
        """The exit of a start that failed with ``error``; a worker that is not over for all that is stopped."""
        if slot.worker is None:
            return failed(error)
        if slot.worker.status not in FINAL:
            await self.ask(slot.worker, slot.spec.stop_timeout)
        ended = await end_of(slot.worker)
        return ended if ended.error is not None else failed(error)

    def kill(self, slots: Iterable[Slot]) -> None:
        """Give nobody any time from now on; what is being stopped already, too."""
        self._hurried = True
        for slot in slots:
            if slot.worker is not None and (slot.live or slot.opening is not None):
                self._kills.append(asyncio.create_task(self.ask(slot.worker, 0), name=f"kill of {slot.spec.name}"))

    async def settle(self) -> None:
        """Wait for what was killed."""
        if self._kills:
            await asyncio.wait(self._kills)

    async def _stop(self, slot: Slot, worker: Worker) -> None:
        await self.ask(worker, self._time_for(slot))
        self._over(slot, await end_of(worker))

    async def _interrupt(self, slot: Slot, opening: asyncio.Task[BaseException | None]) -> None:
        """End a start wherever it is: in the function that makes the worker, or in the worker."""
        made = slot.worker
        if made is None:
            opening.cancel()
        else:
            await self.ask(made, self._time_for(slot))
        await asyncio.wait({opening}, timeout=_MAKING_ENDS if made is None else _START_ENDS)
        if not opening.done():
            opening.cancel()
            _log.error("the start of %r cannot be ended and is left to itself: %r", slot.spec.name, opening)
        slot.opening = None
        slot.rest = Status.STOPPED
        if made is not None:
            self._over(slot, await end_of(made))

    async def ask(self, worker: Worker, timeout: float | None) -> None:
        """Stop ``worker``, whatever it says to that."""
        try:
            await worker.stop(timeout)
        except Exception:  # noqa: BLE001  # logged; its siblings have to be stopped all the same
            _log.exception("%r could not be stopped", worker)


def _ask_all(grace: float, workers: Iterable[BaseWorker]) -> asyncio.TimerHandle | None:
    """Ask ``workers`` to end, and have one timer for all see to it that they do: one for each costs more than that."""
    for worker in workers:
        worker.ask_to_stop(math.inf if grace > 0 else 0)
    return asyncio.get_running_loop().call_later(grace, _hurry, workers) if 0 < grace < math.inf else None


def _hurry(workers: Iterable[BaseWorker]) -> None:
    for worker in workers:
        worker.ask_to_stop(0)

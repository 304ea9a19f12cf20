"""When a child is started again, and with whom: what an owner does once it is clear that it has to be."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from lifecycle import hooks
from lifecycle._util import reason_of
from lifecycle.errors import RestartLimitReached, WorkerFailed
from lifecycle.workers.model import Status
from lifecycle.workers.specs import OnLimit, Strategy
from lifecycle.workers.supervision.budgets import Budget
from lifecycle.workers.supervision.policy import affected

if TYPE_CHECKING:
    from lifecycle.workers.supervision.mailbox import Message
    from lifecycle.workers.supervision.owner import Owner
    from lifecycle.workers.supervision.policy import Rules
    from lifecycle.workers.supervision.slots import Slot

__all__ = ["Restarts"]

_log = logging.getLogger("lifecycle.workers")


class Restarts:
    """The restarts of the children of one owner, which calls it in its turn."""

    def __init__(self, owner: Owner, rules: Rules) -> None:
        #: While it is, nothing is started: not what ended, not what is added.
        self.suspended: bool = False
        self._owner = owner
        self._strategy = rules.strategy
        self._budget = Budget(owner.name, rules.intensity, pauses=rules.on_limit is OnLimit.PAUSE)
        # What has to wait for the end of a suspension.
        self._held: list[Message] = []

    async def again(self, slot: Slot, generation: int, error: BaseException | None) -> None:
        """Start ``slot`` again, and who has to be with it, if circuit and budget allow it; all in good time."""
        if slot.generation != generation:
            return
        if self.suspended:
            self._held.append(partial(self.again, slot, generation, error))
            return
        now = asyncio.get_running_loop().time()
        if slot.trips(now):
            self._give_up(slot)
            return
        error = error or WorkerFailed(f"{slot.spec.name!r} {slot.status}, and has to run")
        try:
            at = self._budget.spend(now, slot.spec.name, error)
        except RestartLimitReached as limit:
            _log.error("%s", limit)
            self._owner.fail(limit)
            return
        delay = max(at - now, slot.next_delay(now))
        name = slot.spec.name
        _log.warning("%r is started again in %.1f s: %s", name, delay, reason_of(error))
        hooks.restart_scheduled.announce(self._owner.supervisor, child=name, delay=delay, error=error)
        await self._schedule(slot, delay)

    async def _schedule(self, slot: Slot, delay: float) -> None:
        if self._strategy is Strategy.ONE_FOR_ONE:
            self.defer(slot)
            slot.timer = self._owner.mailbox.after(delay, partial(self.due, slot, slot.generation))
            return
        group = affected(self._strategy, list(self._owner.slots.values()), slot)
        self._owner.queue.clear()
        await self._owner.closer.close_all([each for each in group if each is not slot])
        joining = [each for each in group if each is slot or each.joins]
        for each in group:
            if each in joining:
                self.defer(each)
            elif each.asked:
                # A start by hand that came to nothing: its policy does not let it try again.
                self._owner.starts.refuse(each)
        self._owner.queue.fill(joining, delay)

    async def due(self, slot: Slot, generation: int) -> None:
        """The time has come for ``slot`` to be started, unless something else happened to it meanwhile."""
        if slot.generation != generation:
            return
        if self.suspended:
            self._held.append(partial(self.due, slot, generation))
        else:
            self._owner.starts.open(slot)

    def hold(self, slot: Slot) -> None:
        """Start ``slot``, which is empty, once the suspension is over."""
        self.defer(slot)
        if slot not in self._owner.queue:
            self._held.append(partial(self.due, slot, slot.generation))

    async def release(self) -> None:
        """The suspension is over: what had to wait takes place."""
        self.suspended = False
        held, self._held = self._held, []
        for message in held:
            if not (self._owner.halted.is_set() or self._owner.ending):
                await message()

    def defer(self, slot: Slot) -> None:
        """Show that ``slot``, which is empty, waits to be started."""
        slot.rest = Status.PENDING
        self._owner.note(slot)

    def _give_up(self, slot: Slot) -> None:
        """The circuit of ``slot`` opens; its siblings and the supervisor go on."""
        backoff, name = slot.spec.backoff, slot.spec.name
        many = f"more than {backoff.max_restarts} restart{'s'[: backoff.max_restarts != 1]} within {backoff.within:g} s"
        _log.error("%r is given up after %s", name, many)
        slot.rest = Status.FAILED
        self._owner.queue.discard(slot)
        self._owner.note(slot)
        hooks.circuit_opened.announce(self._owner.supervisor, child=name, restarts=slot.restarts)
        self._owner.ends.leave(slot)

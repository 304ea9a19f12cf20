"""What is done about members that are unwell or lost: they are held back, killed, replaced, or the pool gives up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from lifecycle import hooks
from lifecycle.errors import PoolFailed, RestartLimitReached
from lifecycle.workers.model import Status
from lifecycle.workers.pool.losses import loss
from lifecycle.workers.specs import Budget

if TYPE_CHECKING:
    from lifecycle.workers.pool.keepers import Keeper
    from lifecycle.workers.pool.members import Member
    from lifecycle.workers.pool.phases import Reason
    from lifecycle.workers.pool.plans import Plan
    from lifecycle.workers.pool.seats import Seats

__all__ = ["Recovery"]

#: Seconds that a member has to end once it has closed its streams.
_LAST_MOMENT: Final = 1.0


class Recovery:
    """Hears of what befalls members, and has others in their place.

    Args:
        pool: who sends what the hooks announce.
        plan: what the pool was told.
        keeper: who starts members, and ends the pool.
        seats: where calls get members.
    """

    def __init__(self, pool: Any, plan: Plan, keeper: Keeper, *, seats: Seats) -> None:
        #: How many members were started in place of one that was lost.
        self.restarts: int = 0
        self._pool = pool
        self._keeper = keeper
        self._seats = seats
        self._budget = Budget(plan.name, plan.intensity)
        self._loop = asyncio.get_running_loop()

    def degraded(self, member: Member, error: Exception) -> None:
        """It does not feel well: it is given to nobody until it does."""
        self._seats.hold(member)
        self._announce("degrade", member, "health_check_failed", error)

    def kill(self, member: Member, reason: Reason, trouble: str, *, counted: bool = False) -> None:
        """End it at once, since ``trouble`` says that it is of no use any more, and replace it."""
        if member.phase.alive:
            member.trouble = trouble
            member.go(reason, 0)
            self.lost(member, reason, loss(f"{member.id!r} was killed: {trouble}", member), counted=counted)

    def hung_up(self, member: Member) -> None:
        """It can be asked for nothing any more, so it should end."""
        self._seats.book.withdraw(member)
        if member.status is Status.RUNNING:
            trouble = "it closed its streams and went on"
            member.timers.append(self._loop.call_later(_LAST_MOMENT, self._kill_counted, member, trouble))

    def broke(self, member: Member, error: Exception) -> None:
        """It does not keep to the protocol."""
        if member.status is Status.RUNNING:
            self._kill_counted(member, f"it broke the protocol: {error}")

    def _kill_counted(self, member: Member, trouble: str) -> None:
        self.kill(member, "error", trouble, counted=True)

    def lost(self, member: Member, reason: Reason, error: Exception, *, counted: bool = True) -> None:
        """It was not to go: have another in its place, if there is to be one."""
        if self._keeper.over:
            return
        if counted:
            try:
                self._budget.spend(self._loop.time(), member.id, error)
            except RestartLimitReached as limit:
                self._announce("remove", member, reason, error)
                self._give_up(limit, error)
                return
        replaced = self._keeper.replace(0 if self._was_good(member) else member.attempt + 1)
        self.restarts += replaced
        self._announce("replace" if replaced else "remove", member, reason, error)
        self._keeper.adjust()

    def _was_good(self, member: Member) -> bool:
        """Whether its loss is no sign that those in its place cannot work."""
        return member.proven or self._loop.time() - member.ready_at >= self._keeper.backoff.reset_after

    def _give_up(self, limit: RestartLimitReached, error: Exception) -> None:
        def failed() -> PoolFailed:
            failure = PoolFailed(str(limit))
            failure.__cause__ = error
            return failure

        self._keeper.fail(failed)

    def _announce(self, action: str, member: Member, reason: Reason, error: Exception) -> None:
        hooks.pool_recovered.announce(self._pool, action=action, member=member.id, reason=reason, error=error)

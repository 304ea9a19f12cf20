"""Members that go as planned: they have worked enough, are too many, or of a generation that is over.

Nobody suffers from it: who has a call finishes it, and the one in its place is wished for at once.
"""

from __future__ import annotations

import asyncio
import math
import random
from functools import partial
from typing import TYPE_CHECKING

from lifecycle.workers.model import AT_WORK

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.workers.pool.members import Member
    from lifecycle.workers.pool.phases import Reason
    from lifecycle.workers.pool.requests import Pong
    from lifecycle.workers.pool.rosters import Roster
    from lifecycle.workers.pool.seats import Seats
    from lifecycle.workers.pool.settings import Recycle

__all__ = ["Retirements"]


class Retirements:
    """Decides who goes, and when.

    Args:
        recycle: how much work is enough.
        roster: the members.
        seats: where calls get them.
        adjust: called when somebody goes: another may be needed.
    """

    def __init__(self, recycle: Recycle, roster: Roster, *, seats: Seats, adjust: Callable[[], None]) -> None:
        self._recycle = recycle
        self._roster = roster
        self._seats = seats
        self._adjust = adjust
        self._loop = asyncio.get_running_loop()
        # Runs while there may be members that are idle for too long.
        self._idle: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Have nobody go any more."""
        if self._idle is not None:
            self._idle.cancel()

    # -- how they go ------------------------------------------------------------------------------------------------

    def retire(self, member: Member, reason: Reason) -> None:
        """Give it no more calls, and have it end when it has none."""
        if not member.phase.alive:
            return
        member.going = reason
        self._seats.book.withdraw(member)
        if not member.leases:
            member.go(reason)
        self._adjust()

    def vacated(self, member: Member) -> None:
        """A seat on it is about to be given back."""
        if member.leases > 1:
            return
        if member.going is not None:
            member.go(member.going)
        else:
            member.idle_since = self._loop.time()
            self._await_idleness()
            if self._recycle.rss is not None:
                member.link.ping().add_done_callback(partial(self._weighed, member))

    # -- those who have worked enough -------------------------------------------------------------------------------

    def welcome(self, member: Member) -> None:
        """It is ready: how much is enough for it is drawn now."""
        recycle = self._recycle
        member.ready_at = member.idle_since = self._loop.time()
        # Never more than was said, and where that is a small number not less, either.
        member.most_calls = math.inf if recycle.calls is None else math.ceil(recycle.calls * _share())
        member.most_rss = math.inf if recycle.rss_bytes is None else recycle.rss_bytes * _share()
        if recycle.age is not None:
            member.timers.append(self._loop.call_later(recycle.age * _share(), self.retire, member, "recycle"))
        self._await_idleness()

    def worn(self, member: Member) -> None:
        """It was given another call, or said how much memory it has; that may be its last call."""
        if member.going is None and (member.calls >= member.most_calls or (member.rss or 0) > member.most_rss):
            self.retire(member, "recycle")

    def _weighed(self, member: Member, pong: asyncio.Future[Pong]) -> None:
        if pong.exception() is None:
            member.rss = pong.result().rss
            self.worn(member)

    # -- those who are too many -------------------------------------------------------------------------------------

    def shrink(self) -> None:
        """Have those go that are more than the most."""
        for member in self._roster.in_excess():
            self.retire(member, "shutdown")

    def _await_idleness(self) -> None:
        if self._idle is None and self._recycle.idle is not None and len(self._roster.members) > self._roster.low:
            self._idle = self._loop.call_later(self._recycle.idle, self._look_for_idle)

    def _look_for_idle(self) -> None:
        self._idle = None
        assert self._recycle.idle is not None, "there is a timer only where there is a time"
        now = self._loop.time()
        for member in self._seats.book.idle():
            if self._roster.size <= self._roster.low:
                return
            due = member.idle_since + self._recycle.idle
            if due > now:
                self._idle = self._loop.call_at(due, self._look_for_idle)
                return
            if self._seats.is_needed(member):
                # It is looked at again as if its last call had just ended.
                member.idle_since = now
                self._await_idleness()
            else:
                self.retire(member, "idle_timeout")

    # -- those who are outdated -------------------------------------------------------------------------------------

    def renew(self, *, arrived: bool = False) -> None:
        """Have those go that are of a generation that is over: one for each that has ``arrived`` in their place.

        All of them, when no more are to come.
        """
        outdated = self._roster.outdated
        if not outdated:
            return
        coming = any(self._roster.stays(member) and not _is_up(member) for member in self._roster)
        # Who is not even ready is of no use to anybody, and who has no call is the first to go.
        outdated.sort(key=_worth)
        most = sum(not _is_up(member) for member in outdated) or int(arrived)
        for member in outdated[:most] if coming else outdated:
            self.retire(member, "replaced")


def _share() -> float:
    """Up to a tenth less than all, so that those that began together do not go together."""
    return 1 - 0.1 * random.random()  # noqa: S311  # no secret


def _is_up(member: Member) -> bool:
    return member.status in AT_WORK


def _worth(member: Member) -> tuple[bool, int]:
    return _is_up(member), member.leases

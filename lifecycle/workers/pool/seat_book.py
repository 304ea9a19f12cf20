"""The book of seats: who has one on which member, and who is next to get one.

It is a pure sum of what it is told; it keeps no clock and starts nothing. Whoever waits is called in the same step in
which a seat becomes free, and says whether he uses it, so that no seat is ever on its way to somebody who has left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from lifecycle.workers.pool.waiters import Waiter, Waiters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["SeatBook", "Seated"]


class Seated(Protocol):
    """What has seats."""

    #: How many of its seats are taken; only the two below change it.
    leases: int

    def check_out(self, session: str | None) -> None:
        """A seat is taken, for a call of ``session``."""
        ...

    def check_in(self) -> None:
        """A seat is given back."""
        ...


M = TypeVar("M", bound=Seated)


class SeatBook(Generic[M]):
    """Which members have a free seat, and who is next to get one.

    Of the members with a free seat the one with the fewest calls gets the next, of those the one that was used last:
    what is warm stays warm, and who is not needed can be seen to be idle. Waiters come first to last; one that waits
    for a certain member holds nobody up.

    Nobody waits while there is a free seat that would do, unless the book is paused.

    Args:
        capacity: how many seats each member has.
    """

    def __init__(self, capacity: int = 1) -> None:
        self._capacity = capacity
        #: True while no seat is given to anybody.
        self.paused: bool = False
        # Members with a free seat, in the row of how many they have taken; the last was the last to be used.
        self._free: tuple[dict[M, None], ...] = tuple({} for _ in range(capacity))
        self._offered: set[M] = set()
        #: Those who wait: `wait` adds to them, and who waits no longer is discarded.
        self.waiters: Waiters[M] = Waiters()

    # -- what it says -----------------------------------------------------------------------------------------------

    def idle(self) -> Iterator[M]:
        """Members without a call, the one first that has been so the longest."""
        return iter(tuple(self._free[0]))

    def __contains__(self, member: M) -> bool:
        """Whether it may be given calls."""
        return member in self._offered

    # -- seats ------------------------------------------------------------------------------------------------------

    def take(self, session: str | None = None, member: M | None = None) -> M | None:
        """Take a seat at once, on ``member`` or on the best there is; None if there is none.

        It overtakes nobody: where a seat is free, nobody waits for it.
        """
        if self.paused:
            return None
        if member is None:
            for row in self._free:
                if row:
                    member = next(reversed(row))
                    break
            else:
                return None
        elif not self._has_seat(member):
            return None
        self._seat(member, session)
        return member

    def release(self, member: M) -> None:
        """Give a seat back; whoever is next has it when this returns. It cannot be interrupted."""
        self._unseat(member)
        self._grant(member)

    def offer(self, member: M) -> None:
        """Have ``member`` given to callers from now on; any number of times."""
        if member not in self._offered:
            self._offered.add(member)
            if member.leases < self._capacity:
                self._free[member.leases][member] = None
                self._grant(member)

    def withdraw(self, member: M) -> None:
        """Have ``member`` given to nobody any more; who waits for it goes on waiting. Any number of times."""
        if member in self._offered:
            self._offered.remove(member)
            if member.leases < self._capacity:
                del self._free[member.leases][member]

    # -- waiting ----------------------------------------------------------------------------------------------------

    def wait(self, waiter: Waiter[M], member: M | None = None) -> None:
        """Have ``waiter`` join those who wait for a seat on ``member``, or on any; at most once at a time.

        One that has waited before keeps its rank.
        """
        self.waiters.add(waiter, member)
        if member is not None:
            self._grant(member)

    def pause(self) -> None:
        """Give no seat to anybody until `resume`; those that are taken stay so."""
        self.paused = True

    def resume(self) -> None:
        """Give seats again, first to those who have waited."""
        self.paused = False
        for member in [member for row in self._free for member in reversed(row)]:
            self._grant(member)

    def dismiss(self, error: Callable[[], Exception]) -> None:
        """Have all who wait get an ``error`` each."""
        for waiter in self.waiters.all():
            self._refuse(waiter, error())

    def dismiss_from(self, member: M, error: Callable[[str | None], Exception]) -> None:
        """Have those who wait for ``member`` get an ``error`` each, of their session."""
        for waiter in self.waiters.strictly(member):
            self._refuse(waiter, error(waiter.session))

    # -- how ----------------------------------------------------------------------------------------------------------

    def _has_seat(self, member: M) -> bool:
        return member in self._offered and member.leases < self._capacity

    def _seat(self, member: M, session: str | None) -> None:
        del self._free[member.leases][member]
        member.check_out(session)
        if member.leases < self._capacity:
            self._free[member.leases][member] = None

    def _unseat(self, member: M) -> None:
        if member not in self._offered:
            member.check_in()
            return
        if member.leases < self._capacity:
            del self._free[member.leases][member]
        member.check_in()
        self._free[member.leases][member] = None

    def _grant(self, member: M) -> None:
        """Give the free seats of ``member`` to those who may have them, the first first."""
        while not self.paused and self._has_seat(member):
            waiter = self.waiters.first(member)
            if waiter is None:
                return
            self.waiters.discard(waiter)
            self._seat(member, waiter.session)
            if not waiter.use(member):
                self._unseat(member)

    def _refuse(self, waiter: Waiter[M], error: Exception) -> None:
        self.waiters.discard(waiter)
        if not waiter.future.done():
            waiter.future.set_exception(error)

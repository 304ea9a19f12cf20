"""The book of leases: who has a seat on which member, and who waits for one.

It is a pure sum of what it is told; it keeps no clock and starts nothing. Whoever waits is called in the same step in
which a seat becomes free, and says whether he uses it, so that no seat is ever on its way to somebody who has left.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

__all__ = ["SeatBook", "Seated", "Waiter"]


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


class Waiter(Generic[M]):
    """Somebody who waits for a seat: on ``member``, or on any if that is None.

    Args:
        future: what he awaits; once it is done, he wants no seat any more.
        use: called with a member on which a seat was taken for him; False if he has no use for it.
        session: what the seat is for.
    """

    __slots__ = ("future", "member", "number", "session", "use")

    def __init__(self, future: asyncio.Future[Any], use: Callable[[M], bool], session: str | None = None) -> None:
        self.future: asyncio.Future[Any] = future
        self.use: Callable[[M], bool] = use
        self.session: str | None = session
        self.member: M | None = None
        #: Who has the smaller one, came first.
        self.number: int = -1


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
        # Those who wait, the first first: for any seat, and for one on a certain member.
        self._queue: dict[Waiter[M], None] = {}
        self._strict: dict[M, dict[Waiter[M], None]] = {}
        self._numbers = count()

    # -- what it says -----------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many wait for any seat."""
        return len(self._queue)

    @property
    def waiting_strictly(self) -> int:
        """How many wait for a seat on a certain member."""
        return sum(map(len, self._strict.values())) if self._strict else 0

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
        if waiter.number < 0:
            waiter.number = next(self._numbers)
        waiter.member = member
        self._row(waiter)[waiter] = None
        if member is not None:
            self._grant(member)

    def give_up(self, waiter: Waiter[M]) -> None:
        """Wait no longer; nothing happens to one that does not."""
        row = self._queue if waiter.member is None else self._strict.get(waiter.member, {})
        row.pop(waiter, None)
        if waiter.member is not None and not row:
            self._strict.pop(waiter.member, None)

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
        for waiter in [*self._queue, *(waiter for row in self._strict.values() for waiter in row)]:
            self._refuse(waiter, error())

    def dismiss_from(self, member: M, error: Callable[[str | None], Exception]) -> None:
        """Have those who wait for ``member`` get an ``error`` each, of their session."""
        for waiter in list(self._strict.get(member, ())):
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
            waiter = self._next(member)
            if waiter is None:
                return
            self.give_up(waiter)
            self._seat(member, waiter.session)
            if not waiter.use(member):
                self._unseat(member)

    def _next(self, member: M) -> Waiter[M] | None:
        """Who came first of those that would take a seat on ``member``."""
        anyone, strict = _first(self._queue), _first(self._strict.get(member, {}))
        if anyone is None or strict is None:
            return anyone or strict
        return min(anyone, strict, key=_number)

    def _row(self, waiter: Waiter[M]) -> dict[Waiter[M], None]:
        return self._queue if waiter.member is None else self._strict.setdefault(waiter.member, {})

    def _refuse(self, waiter: Waiter[M], error: Exception) -> None:
        self.give_up(waiter)
        if not waiter.future.done():
            waiter.future.set_exception(error)


def _first(row: dict[Waiter[Any], None]) -> Waiter[Any] | None:
    """The first that has not been cancelled in this very turn of the loop."""
    return next((waiter for waiter in row if not waiter.future.done()), None)


def _number(waiter: Waiter[Any]) -> int:
    return waiter.number

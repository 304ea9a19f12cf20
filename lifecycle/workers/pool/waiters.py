"""Who waits for a seat on a member, in the order of their coming; pure sums, as in `seat_book`."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["Waiter", "Waiters"]

M = TypeVar("M")


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


class Waiters(Generic[M]):
    """Those who wait, the first first: for any seat, and for one on a certain member."""

    def __init__(self) -> None:
        self._anywhere: dict[Waiter[M], None] = {}
        # Each in the row of its member.
        self._strict: dict[M, dict[Waiter[M], None]] = {}
        self._numbers = count()

    @property
    def anywhere(self) -> int:
        """How many wait for any seat."""
        return len(self._anywhere)

    def __len__(self) -> int:
        """How many wait at all."""
        return len(self._anywhere) + (sum(map(len, self._strict.values())) if self._strict else 0)

    def add(self, waiter: Waiter[M], member: M | None) -> None:
        """Have ``waiter`` join those who wait for ``member``, or for any; one that has waited before keeps its rank."""
        if waiter.number < 0:
            waiter.number = next(self._numbers)
        waiter.member = member
        row = self._anywhere if member is None else self._strict.setdefault(member, {})
        row[waiter] = None

    def discard(self, waiter: Waiter[M]) -> None:
        """Have it wait no longer; nothing happens to one that does not."""
        row = self._anywhere if waiter.member is None else self._strict.get(waiter.member, {})
        row.pop(waiter, None)
        if waiter.member is not None and not row:
            self._strict.pop(waiter.member, None)

    def first(self, member: M) -> Waiter[M] | None:
        """Who came first of those that would take a seat on ``member``."""
        anyone, strict = _first(self._anywhere), _first(self._strict.get(member, {}))
        if anyone is None or strict is None:
            return anyone or strict
        return min(anyone, strict, key=_number)

    def all(self) -> list[Waiter[M]]:
        """All who wait."""
        return [*self._anywhere, *(waiter for row in self._strict.values() for waiter in row)]

    def strictly(self, member: M) -> list[Waiter[M]]:
        """Those who wait for ``member`` and no other."""
        return list(self._strict.get(member, ()))


def _first(row: dict[Waiter[Any], None]) -> Waiter[Any] | None:
    """The first that has not been cancelled in this very turn of the loop."""
    return next((waiter for waiter in row if not waiter.future.done()), None)


def _number(waiter: Waiter[Any]) -> int:
    return waiter.number

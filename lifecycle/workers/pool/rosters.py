"""Who is in a pool, and how many there should be: plain sums over its members."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lifecycle.workers.model import AT_WORK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lifecycle.workers.pool.members import Member

__all__ = ["Roster", "check_size"]


class Roster:
    """The members that a pool has, those that come and those that go.

    Args:
        size: the least and the most members that it is to have.
        concurrency: how many calls a member has at a time.
    """

    high: int
    low: int

    def __init__(self, size: tuple[int, int], concurrency: int) -> None:
        self.low, self.high = size
        self.concurrency = concurrency
        self.generation = 0
        #: All that have not ended, by their ids, the oldest first.
        self.members: dict[str, Member] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(tuple(self.members.values()))

    def stays(self, member: Member) -> bool:
        """Whether it is one that the pool counts on."""
        return member.going is None and member.generation == self.generation

    @property
    def size(self) -> int:
        """How many the pool counts on, those that come included."""
        return sum(map(self.stays, self.members.values()))

    @property
    def ready(self) -> int:
        """How many of those are at work."""
        return sum(self.stays(member) and member.status in AT_WORK for member in self.members.values())

    @property
    def seats_to_come(self) -> int:
        """How many more calls it could have when all members were there that it may have."""
        return self.concurrency * (self.high - self.ready)

    @property
    def outdated(self) -> list[Member]:
        """Members of a generation that is over, and who have not been told to go."""
        return [member for member in self if member.generation != self.generation and member.going is None]

    def wanted(self, waiting: int) -> int:
        """How many it should have when so many calls wait."""
        served = [member for member in self if member.going is None]
        calls = waiting + sum(member.leases for member in served)
        unfit = sum(not member.sound for member in served)
        return min(self.high, max(self.low, unfit + math.ceil(calls / self.concurrency)))

    def in_excess(self) -> list[Member]:
        """Those that there are too many, the ones first that are missed least."""
        return sorted(filter(self.stays, self), key=_worth)[: max(0, self.size - self.high)]


def _worth(member: Member) -> tuple[bool, bool, int, float]:
    return (member.status in AT_WORK, member.sound, member.leases, member.idle_since)


def check_size(name: str, low: int, high: int) -> tuple[int, int]:
    """The least and the most members of the pool ``name``.

    Raises:
        TypeError, ValueError: for numbers that cannot work.
    """
    if any(isinstance(each, bool) or not isinstance(each, int) for each in (low, high)):
        raise TypeError(f"size={(low, high)!r} of {name!r} is no pair of whole numbers; give (1, 4), or the like")
    if not 0 <= low <= high or high < 1:
        raise ValueError(
            f"size={(low, high)!r} of {name!r} cannot be; give the least, from 0 on, then the most, from 1 on"
        )
    return low, high

"""One timer for all deadlines of a pool: each is told of at its time, in virtual time, whatever else is added."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from lifecycle.workers.pool.deadlines import Deadlines

if TYPE_CHECKING:
    from lifecycle.testing import Clock


class Egg:
    """Has a time, and notes when it was told that it is up."""

    def __init__(self, seconds: float, *, late: float = 0.0) -> None:
        self.seconds = seconds
        self.until = asyncio.get_running_loop().time() + seconds - late
        self.told: list[float] = []

    def overdue(self) -> None:
        self.told.append(asyncio.get_running_loop().time())


async def test_each_is_told_once_at_its_time(clock: Clock) -> None:
    deadlines = Deadlines()
    eggs = []
    for _ in range(20):
        for seconds in (0.5, 3.0, 1.0):
            eggs.append(Egg(seconds))
            deadlines.add(eggs[-1])
        await clock.advance(0.1)
    await clock.advance(4)
    assert [len(egg.told) for egg in eggs] == [1] * 60
    assert [egg.told[0] for egg in eggs] == pytest.approx([egg.until for egg in eggs])


async def test_one_that_began_before_others_and_comes_after_them_is_not_late(clock: Clock) -> None:
    deadlines = Deadlines()
    first, second, third = Egg(10.0), Egg(10.0, late=8.0), Egg(10.0, late=4.0)
    for egg in (first, second, third):
        deadlines.add(egg)
    await clock.advance(20)
    assert [egg.told for egg in (first, second, third)] == [[first.until], [second.until], [third.until]]


async def test_what_was_discarded_is_left_alone(clock: Clock) -> None:
    deadlines = Deadlines()
    chance = random.Random(1)
    eggs = [Egg(chance.choice([1.0, 2.0]), late=chance.random()) for _ in range(50)]
    for egg in eggs:
        deadlines.add(egg)
    gone = eggs[::3]
    for egg in gone:
        deadlines.discard(egg)
        deadlines.discard(egg)
    await clock.advance(5)
    assert [bool(egg.told) for egg in eggs] == [egg not in gone for egg in eggs]


async def test_deadlines_of_many_lengths_take_no_memory_once_discarded(clock: Clock) -> None:
    deadlines = Deadlines()
    tracemalloc.start()
    try:
        for number in range(5000):
            egg = Egg(30 + number * 1e-6)
            deadlines.add(egg)
            deadlines.discard(egg)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        deadlines.close()
    assert kept < 5000 * 50


async def test_nobody_is_told_once_it_is_closed(clock: Clock) -> None:
    deadlines = Deadlines()
    egg = Egg(1.0)
    deadlines.add(egg)
    deadlines.close()
    await clock.advance(2)
    assert not egg.told


async def test_one_that_is_told_may_discard_and_add_others(clock: Clock) -> None:
    deadlines = Deadlines()

    class Greedy(Egg):
        def overdue(self) -> None:
            super().overdue()
            deadlines.discard(other)
            deadlines.add(successor)

    first, other = Greedy(1.0), Egg(2.0)
    successor = Egg(3.0)
    deadlines.add(first)
    deadlines.add(other)
    await clock.advance(5)
    assert (len(first.told), len(other.told), successor.told) == (1, 0, [successor.until])

"""The deadlines of calls share one timer, and each call learns of its own in time."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.workers.pool.calls import Deadlines

if TYPE_CHECKING:
    from lifecycle.testing import Clock


class Call:
    """A call with a deadline, which notes when it is told that the deadline has passed."""

    def __init__(self, seconds: float, *, late: float = 0.0) -> None:
        self.group = seconds
        self.until = asyncio.get_running_loop().time() + seconds - late
        self.missed: list[float] = []

    def miss_deadline(self) -> None:
        self.missed.append(asyncio.get_running_loop().time())


async def test_each_deadline_is_reported_once_in_time(clock: Clock) -> None:
    deadlines: Any = Deadlines()
    calls = []
    for _ in range(20):
        for seconds in (0.5, 3.0, 1.0):
            calls.append(Call(seconds))
            deadlines.add(calls[-1])
        await clock.advance(0.1)
    await clock.advance(4)
    assert [len(call.missed) for call in calls] == [1] * 60
    assert [call.missed[0] for call in calls] == pytest.approx([call.until for call in calls])


async def test_a_call_that_is_added_after_later_calls_is_reported_in_time(clock: Clock) -> None:
    deadlines: Any = Deadlines()
    first, second, third = Call(10.0), Call(10.0, late=8.0), Call(10.0, late=4.0)
    for call in (first, second, third):
        deadlines.add(call)
    await clock.advance(20)
    assert [call.missed for call in (first, second, third)] == [[first.until], [second.until], [third.until]]


async def test_a_discarded_call_is_not_reported(clock: Clock) -> None:
    deadlines: Any = Deadlines()
    chance = random.Random(1)
    calls = [Call(chance.choice([1.0, 2.0]), late=chance.random()) for _ in range(50)]
    for call in calls:
        deadlines.add(call)
    gone = calls[::3]
    for call in gone:
        deadlines.discard(call)
        deadlines.discard(call)
    await clock.advance(5)
    assert [bool(call.missed) for call in calls] == [call not in gone for call in calls]


async def test_discarded_deadlines_of_many_lengths_take_no_memory(clock: Clock) -> None:
    deadlines: Any = Deadlines()
    tracemalloc.start()
    try:
        for number in range(5000):
            call = Call(30 + number * 1e-6)
            deadlines.add(call)
            deadlines.discard(call)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        deadlines.close()
    assert kept < 5000 * 50


async def test_nothing_is_reported_after_close(clock: Clock) -> None:
    deadlines: Any = Deadlines()
    call = Call(1.0)
    deadlines.add(call)
    deadlines.close()
    await clock.advance(2)
    assert not call.missed


async def test_a_reported_call_may_discard_and_add_others(clock: Clock) -> None:
    deadlines: Any = Deadlines()

    class Greedy(Call):
        def miss_deadline(self) -> None:
            super().miss_deadline()
            deadlines.discard(other)
            deadlines.add(successor)

    first, other = Greedy(1.0), Call(2.0)
    successor = Call(3.0)
    deadlines.add(first)
    deadlines.add(other)
    await clock.advance(5)
    assert (len(first.missed), len(other.missed), successor.missed) == (1, 0, [successor.until])

"""What many want in the same moment is done once for all of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lifecycle.workers._posix import Coalescer

if TYPE_CHECKING:
    from collections.abc import Sequence


class Work:
    """Counts what it is given."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __call__(self, items: Sequence[int]) -> int:
        self.batches.append(list(items))
        return len(items)


async def test_all_who_ask_in_one_turn_of_the_loop_are_one() -> None:
    work = Work()
    coalescer = Coalescer(work)
    assert await asyncio.gather(*map(coalescer.submit, range(3))) == [3, 3, 3]
    assert await coalescer.submit(3) == 1
    assert work.batches == [[0, 1, 2], [3]]


async def test_who_is_cancelled_before_it_is_done_is_left_out() -> None:
    work = Work()
    coalescer = Coalescer(work)
    first, second = coalescer.submit(1), coalescer.submit(2)
    first.cancel()
    assert await second == 1
    assert work.batches == [[2]]
    with pytest.raises(asyncio.CancelledError):
        await first


def test_each_loop_has_a_rush_of_its_own() -> None:
    work = Work()
    coalescer = Coalescer(work)

    async def left() -> None:
        coalescer.submit(1)

    async def asked() -> int:
        return await coalescer.submit(2)

    asyncio.run(left())
    assert asyncio.run(asked()) == 1
    assert work.batches[-1] == [2]

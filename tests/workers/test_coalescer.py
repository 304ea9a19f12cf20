"""Simultaneous requests share one call, in the loop or in a thread."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from lifecycle.workers._posix import Coalescer

if TYPE_CHECKING:
    from collections.abc import Sequence


class Work:
    """Records the arguments of its calls."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __call__(self, items: Sequence[int]) -> int:
        self.batches.append(list(items))
        return len(items)


async def test_requests_in_one_iteration_of_the_loop_form_one_batch() -> None:
    work = Work()
    coalescer = Coalescer(work)
    assert await asyncio.gather(*map(coalescer.submit, range(3))) == [3, 3, 3]
    assert await coalescer.submit(3) == 1
    assert work.batches == [[0, 1, 2], [3]]


async def test_cancelled_request_is_left_out() -> None:
    work = Work()
    coalescer = Coalescer(work)
    first, second = coalescer.submit(1), coalescer.submit(2)
    first.cancel()
    assert await second == 1
    assert work.batches == [[2]]
    with pytest.raises(asyncio.CancelledError):
        await first


def test_each_loop_has_separate_batches() -> None:
    work = Work()
    coalescer = Coalescer(work)

    async def left() -> None:
        coalescer.submit(1)

    async def asked() -> int:
        return await coalescer.submit(2)

    asyncio.run(left())
    assert asyncio.run(asked()) == 1
    assert work.batches[-1] == [2]


async def test_requests_during_work_in_a_thread_form_the_next_batch() -> None:
    work, begun, go_on = Work(), threading.Event(), threading.Event()

    def slow(items: Sequence[int]) -> int:
        begun.set()
        go_on.wait(20)
        return work(items)

    coalescer = Coalescer(slow, thread="batches")
    first = coalescer.submit(1)
    await asyncio.to_thread(begun.wait, 20)
    later = [coalescer.submit(2), coalescer.submit(3)]
    go_on.set()
    assert [await first, *await asyncio.gather(*later)] == [1, 2, 2]
    assert work.batches == [[1], [2, 3]]
    assert await coalescer.submit(4) == 1


@pytest.mark.parametrize("thread", [None, "batches"])
async def test_every_caller_gets_the_error_of_its_batch(thread: str | None) -> None:
    def broken(_: Sequence[int]) -> int:
        raise OSError("no")

    coalescer = Coalescer(broken, thread=thread)
    outcomes = await asyncio.gather(coalescer.submit(1), coalescer.submit(2), return_exceptions=True)
    assert [str(each) for each in outcomes] == ["no", "no"]

"""A tally of what is kept elsewhere: it counts while it is open, and only then."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lifecycle.journal.queues import CachedCounts

if TYPE_CHECKING:
    from lifecycle.testing import Clock


async def count() -> dict[str, int]:
    return {"waiting": 1}


async def fail() -> dict[str, int]:
    raise OSError("locked")


async def test_what_was_closed_at_once_counts_when_it_is_opened_again(clock: Clock) -> None:
    tally = CachedCounts(count, lambda: None)
    tally.open()
    await tally.close()
    assert tally.figures == {}
    tally.open()
    await clock.advance(2)
    assert tally.figures == {"waiting": 1}
    await tally.close()


async def test_who_opens_it_while_another_closes_it_has_it_counted(clock: Clock) -> None:
    tally = CachedCounts(count, lambda: None)
    tally.open()
    await asyncio.sleep(0)
    closing = asyncio.create_task(tally.close())
    await asyncio.sleep(0)
    tally.figures = {}
    tally.open()
    await closing
    await clock.advance(2)
    assert tally.figures == {"waiting": 1}
    await tally.close()


async def test_a_count_that_fails_leaves_what_was_known_and_is_tried_when_something_happens(clock: Clock) -> None:
    tally = CachedCounts(fail, lambda: None)
    tally.open()
    await clock.advance(5)
    assert (tally.figures, len(asyncio.all_tasks())) == ({}, 1)
    tally.renew()
    assert len(asyncio.all_tasks()) == 2
    await tally.close()
    assert len(asyncio.all_tasks()) == 1

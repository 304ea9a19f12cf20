"""TickerSource ticks at fixed times on the loop's clock, and skips ticks that it has missed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lifecycle.control import Router
from lifecycle.sources import TickerSource
from lifecycle.testing import running

if TYPE_CHECKING:
    from lifecycle.testing import Clock, Recorder


async def test_the_first_tick_comes_after_one_interval_with_its_time(clock: Clock, recorder: Recorder) -> None:
    router = Router()
    router.handle("tick/beat", recorder)
    router.add_source(TickerSource(2, name="beat"))
    async with running(router):
        await clock.advance(1.9)
        assert recorder.events == []
        await clock.advance(4.2)
    assert [tick.count for tick in recorder.events] == [1, 2, 3]
    assert all(tick.time.tzinfo is not None for tick in recorder.events)


async def test_immediate_sends_the_first_tick_at_the_start_and_keeps_the_rate(clock: Clock) -> None:
    at: list[tuple[float, int]] = []

    async def emit(tick: Any) -> Any:
        at.append((round(clock.time(), 6), tick.count))

    ticking = asyncio.create_task(TickerSource(10, immediate=True).run(emit))
    await clock.advance(25)
    ticking.cancel()
    assert at == [(0, 1), (10, 2), (20, 3)]


async def test_slow_handlers_do_not_make_ticks_drift(clock: Clock) -> None:
    at: list[float] = []

    async def emit(_: Any) -> Any:
        at.append(round(clock.time(), 6))
        await asyncio.sleep(0.7)

    ticking = asyncio.create_task(TickerSource(1).run(emit))
    await clock.advance(100.5)
    ticking.cancel()
    assert at == [float(moment) for moment in range(1, 101)]


async def test_missed_ticks_are_skipped_and_counted(clock: Clock) -> None:
    at: list[tuple[float, int]] = []
    source = TickerSource(1)

    async def emit(tick: Any) -> Any:
        at.append((round(clock.time(), 6), tick.count))
        await asyncio.sleep(2.5 if tick.count == 1 else 0)

    ticking = asyncio.create_task(source.run(emit))
    await clock.advance(5.1)
    ticking.cancel()
    assert at == [(1, 1), (4, 4), (5, 5)]
    assert source.missed == 2

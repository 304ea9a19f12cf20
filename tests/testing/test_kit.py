"""The test kit: virtual time, routers that run during a block, recorders, and manual sources."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, Self

import pytest

from lifecycle.control import Event, Router, SourceFailed
from lifecycle.testing import Clock, ManualSource, Recorder, VirtualLoop, running

# -- virtual time ------------------------------------------------------------------------------------------------


def test_years_pass_in_no_time() -> None:
    began = time.monotonic()
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(asyncio.sleep(10 * 365 * 86400))
        assert runner.get_loop().time() == pytest.approx(10 * 365 * 86400)
    assert time.monotonic() - began < 60  # not ten years


async def test_timers_run_in_order_at_their_own_time(clock: Clock) -> None:
    loop, log = asyncio.get_running_loop(), list[tuple[str, float]]()

    def ring(name: str) -> None:
        log.append((name, loop.time()))

    for name, delay in (("c", 0.3), ("a", 0.1), ("b", 0.2), ("late", 5.0)):
        loop.call_later(delay, ring, name)
    await clock.advance(1)
    assert log == [("a", 0.1), ("b", 0.2), ("c", 0.3)]
    assert clock.time() == 1
    await clock.advance(4)
    assert log[-1] == ("late", 5.0)


async def test_virtual_time_stops_while_there_is_work(clock: Clock) -> None:
    for _ in range(1000):
        await asyncio.sleep(0)
    await clock.settle()
    assert clock.time() == 0


async def test_sums_of_many_small_steps_are_exact_where_a_timer_is_due(clock: Clock) -> None:
    loop, rings = asyncio.get_running_loop(), 0
    due = 0.0

    def ring() -> None:
        # A timer that fires slightly early and sleeps for the rest must not spin.
        nonlocal rings, due
        rings += 1
        assert rings < 5000
        if loop.time() < due:
            loop.call_at(due, ring)
        elif rings < 1000:
            due = loop.time() + 0.1
            loop.call_at(due, ring)

    ring()
    await clock.advance(200)
    assert 1000 <= rings < 1100


async def test_a_timer_is_never_early_even_by_less_than_a_nanosecond(clock: Clock) -> None:
    loop = asyncio.get_running_loop()
    await clock.advance(37)
    due, tries = loop.time() + 3e-14, 0

    async def look() -> None:
        # A loop that is not idle runs timers up to a nanosecond early.
        nonlocal tries
        tries += 1
        assert tries < 100
        if loop.time() < due:
            loop.call_soon(lambda: None)
            loop.call_later(due - loop.time(), begin)

    tasks: list[asyncio.Task[None]] = []

    def begin() -> None:
        tasks.append(asyncio.create_task(look()))

    begin()
    await clock.advance(1)
    await asyncio.gather(*tasks)


async def test_the_clock_waits_for_threads(clock: Clock) -> None:
    gate = threading.Event()

    def work() -> str:
        gate.wait(10)
        return "done"

    job = asyncio.create_task(asyncio.to_thread(work))
    await asyncio.sleep(0)
    timer = asyncio.create_task(asyncio.sleep(1))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(gate.set)
    assert await job == "done"
    assert clock.time() == 0
    await timer
    assert clock.time() == 1


def test_the_end_of_the_loop_waits_for_threads_that_were_given_up() -> None:
    gate = threading.Event()

    async def give_up() -> None:
        job = asyncio.get_running_loop().run_in_executor(None, gate.wait, 10)
        job.cancel()
        threading.Timer(0.1, gate.set).start()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(give_up())
    assert gate.is_set()


async def test_settle_raises_when_a_program_never_becomes_idle(clock: Clock) -> None:
    loop, handle = asyncio.get_running_loop(), list[asyncio.Handle]()

    def again() -> None:
        handle[:] = [loop.call_soon(again)]

    again()
    with pytest.raises(RuntimeError, match="never becomes idle"):
        await clock.settle()
    handle[0].cancel()


def test_the_clock_raises_when_a_test_does_not_run_in_virtual_time() -> None:
    for use in (Clock().advance(3600), Clock().settle()):
        with pytest.raises(RuntimeError, match="use the fixture `clock`"):
            asyncio.run(use)


# -- running -----------------------------------------------------------------------------------------------------


class Slow:
    """A source that takes two seconds to start."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.log: list[str] = []

    async def __aenter__(self) -> Self:
        await asyncio.sleep(2)
        if self.error:
            raise self.error
        self.log.append("started")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.log.append("left")

    async def run(self, emit: Any) -> None:
        await asyncio.Event().wait()


async def test_a_router_has_started_when_the_block_begins_and_drained_when_it_ends(clock: Clock) -> None:
    router, source = Router(), Slow()
    router.add_source(source)
    router.handle("a", recorder := Recorder())
    async with running(router) as same:
        assert same is router
        assert source.log == ["started"]
        assert clock.time() == 2
        for _ in range(3):
            await router.emit(Event("a"))
    assert len(recorder.events) == 3
    assert source.log == ["started", "left"]


async def test_an_error_of_run_is_raised_by_the_block(clock: Clock) -> None:
    router = Router()
    router.add_source(Slow(OSError("no door")))
    with pytest.raises(SourceFailed, match="no door"):
        async with running(router):
            pytest.fail("the block began")


async def test_an_error_in_the_block_comes_out_and_the_router_has_ended(clock: Clock) -> None:
    router = Router()
    with pytest.raises(ZeroDivisionError):
        async with running(router):
            raise ZeroDivisionError
    assert not router.state().running


async def test_a_block_that_is_cancelled_ends_its_router(clock: Clock) -> None:
    router = Router()

    async def test() -> None:
        async with running(router):
            await asyncio.sleep(10)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(test(), 1)
    assert not router.state().running


# -- recorder, manual source -------------------------------------------------------------------------------------


def test_a_recorder_keeps_events_and_their_topics() -> None:
    recorder = Recorder()
    for topic in "ab":
        recorder(Event(topic))
    assert recorder.topics == ["a", "b"]
    assert recorder.events == [Event("a"), Event("b")]


async def test_a_manual_source_sends_once_the_router_runs_and_returns_deliveries(clock: Clock) -> None:
    router, source = Router(), ManualSource()
    router.handle("a", recorder := Recorder())
    router.add_source(source)
    given_up = asyncio.create_task(source.send(Event("a", 0)))
    sending = asyncio.create_task(source.send(Event("a", 1)))
    await clock.settle()
    given_up.cancel()
    await clock.settle()
    assert not sending.done()
    async with running(router):
        await (await sending)
        await (await source.send(Event("a", 2)))
    assert [event.data for event in recorder.events] == [1, 2]


async def test_a_manual_source_fails_on_request_and_is_restarted(clock: Clock) -> None:
    router, source = Router(), ManualSource()
    router.handle("a", recorder := Recorder())
    router.add_source(source)
    async with running(router):
        source.fail(ConnectionError("lost"))
        await clock.settle()
        await (await source.send(Event("a")))
    assert recorder.topics == ["a"]
    with pytest.raises(AssertionError, match="is not running"):
        source.fail(ValueError())

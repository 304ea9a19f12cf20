"""The gate: who is held, who is waited for, and that no request is left behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lifecycle.errors import InvalidTransition
from lifecycle.workers import Gate

if TYPE_CHECKING:
    from lifecycle.testing import Clock


async def loop(gate: Gate, step: float, log: list[float]) -> None:
    while True:
        await gate.checkpoint()
        await asyncio.sleep(step)
        log.append(asyncio.get_running_loop().time())


async def test_suspend_waits_for_every_loop_that_shares_it(clock: Clock) -> None:
    gate, log = Gate(), list[float]()
    async with asyncio.TaskGroup() as group:
        loops = [group.create_task(loop(gate, step, log)) for step in (1, 3, 7)]
        await clock.advance(0.5)
        await gate.suspend()
        assert (clock.time(), gate.suspended) == (7, True)
        steps = len(log)
        await clock.advance(100)
        assert len(log) == steps
        gate.resume()
        await clock.advance(8)
        assert len(log) > steps
        for each in loops:
            each.cancel()


async def test_a_loop_that_has_ended_is_not_waited_for(clock: Clock) -> None:
    gate = Gate()

    async def once() -> None:
        await gate.checkpoint()
        await asyncio.sleep(5)

    task = asyncio.create_task(once())
    await clock.settle()
    await gate.suspend()
    assert (clock.time(), task.done()) == (5, True)


async def test_a_gate_that_no_loop_has_reached_yet_waits_for_the_first(clock: Clock) -> None:
    gate, log = Gate(), list[float]()
    suspension = asyncio.create_task(gate.suspend())
    await clock.advance(1)
    assert not suspension.done()
    task = asyncio.create_task(loop(gate, 1, log))
    await suspension
    assert (gate.suspended, log) == (True, [])
    task.cancel()


async def test_a_suspension_that_timed_out_leaves_nothing_behind(clock: Clock) -> None:
    gate, log = Gate(), list[float]()
    task = asyncio.create_task(loop(gate, 10, log))
    await clock.advance(0.5)
    with pytest.raises(TimeoutError):
        await gate.suspend(timeout=2)
    assert not gate.suspended
    await clock.advance(50)
    assert len(log) == 5
    task.cancel()


async def test_who_gives_up_does_not_open_it_for_another_who_waits(clock: Clock) -> None:
    gate, log = Gate(), list[float]()
    task = asyncio.create_task(loop(gate, 10, log))
    await clock.settle()
    patient = asyncio.create_task(gate.suspend())
    with pytest.raises(TimeoutError):
        await gate.suspend(timeout=2)
    await patient
    assert (clock.time(), gate.suspended) == (10, True)
    task.cancel()


async def test_a_suspend_right_after_a_resume_waits_until_the_loop_comes_by_again(clock: Clock) -> None:
    gate, log = Gate(), list[float]()
    task = asyncio.create_task(loop(gate, 10, log))
    await gate.suspend()
    gate.resume()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await gate.suspend()
    assert (clock.time(), gate.suspended) == (10, True)
    task.cancel()


async def test_a_resume_overtakes_a_suspension(clock: Clock) -> None:
    gate, log = Gate(), list[float]()
    task = asyncio.create_task(loop(gate, 10, log))
    await clock.settle()
    suspension = asyncio.create_task(gate.suspend())
    await clock.advance(1)
    gate.resume()
    with pytest.raises(InvalidTransition, match="resumed before every loop had reached it"):
        await suspension
    task.cancel()


async def test_a_loop_that_waits_for_nothing_else_lets_others_run(clock: Clock) -> None:
    gate, rounds = Gate(), 0

    async def spin() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await gate.checkpoint()

    task = asyncio.create_task(spin())
    await gate.suspend()
    held = rounds
    await clock.advance(1)
    assert held == rounds > 0
    task.cancel()


async def test_a_cancelled_loop_leaves_at_once(clock: Clock) -> None:
    gate = Gate()
    task = asyncio.create_task(loop(gate, 1, []))
    await gate.suspend()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert repr(gate) == "<Gate: suspended>"

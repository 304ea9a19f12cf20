"""State machines: legal and ignored transitions, history, waiting, and one announcement per change."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle import hooks
from lifecycle.errors import InvalidState, InvalidTransition
from lifecycle.states import Machine

if TYPE_CHECKING:
    from lifecycle.testing import Clock


class Light(StrEnum):
    RED = "red"
    GREEN = "green"
    AMBER = "amber"
    BROKEN = "broken"


TABLE = {
    Light.RED: {Light.GREEN, Light.BROKEN},
    Light.GREEN: {Light.AMBER, Light.BROKEN},
    Light.AMBER: {Light.RED},
    Light.BROKEN: (),
}


def light(**settings: Any) -> Machine[Light]:
    return Machine("the light", TABLE, Light.RED, **settings)


@given(st.lists(st.sampled_from(Light)))
def test_a_machine_enters_only_states_that_its_table_allows(targets: list[Light]) -> None:
    machine = light(history=1000)
    for target in targets:
        before = machine.state
        legal = target in TABLE[before]
        assert machine.can(target) is legal
        if legal:
            assert machine.to(target) is True
            assert machine.state is target
        else:
            with pytest.raises(InvalidTransition):
                machine.to(target)
            assert machine.state is before
    moves = [(each.old, each.new) for each in machine.history]
    assert all(new in TABLE[old] for old, new in moves)
    assert [old for old, _ in moves[1:]] == [new for _, new in moves[:-1]]


def test_an_illegal_move_names_both_states_and_what_would_be_legal() -> None:
    with pytest.raises(InvalidTransition, match="'the light' cannot go from red to amber; legal: broken, green"):
        light().to(Light.AMBER)
    machine = light(error=InvalidState)
    machine.to(Light.BROKEN)
    with pytest.raises(InvalidState, match="legal: nothing, broken is final"):
        machine.to(Light.RED)
    assert machine.is_final


def test_an_ignored_move_changes_nothing_and_returns_false() -> None:
    machine = light(ignored={(Light.RED, Light.RED)})
    assert machine.can(Light.RED)
    assert machine.to(Light.RED) is False
    assert machine.history == ()


def test_a_table_with_an_unknown_state_is_refused() -> None:
    with pytest.raises(ValueError, match="no row for green"):
        Machine("x", {"red": ["green"]}, "red")
    with pytest.raises(ValueError, match="no row for blue"):
        Machine("x", {"red": []}, "blue")


async def test_history_is_bounded_frozen_and_knows_durations(clock: Clock) -> None:
    machine = light(history=3)
    for target in (Light.GREEN, Light.AMBER, Light.RED, Light.GREEN):
        await clock.advance(2)
        machine.to(target, reason="time")
    assert [each.new for each in machine.history] == [Light.AMBER, Light.RED, Light.GREEN]
    assert {(each.duration, each.reason) for each in machine.history} == {(2.0, "time")}
    with pytest.raises(dataclasses.FrozenInstanceError):
        machine.history[0].reason = "x"  # type: ignore[misc]  # that is the point


def test_the_last_32_changes_are_kept_with_no_reason_unless_one_is_given() -> None:
    machine = light()
    for target in (Light.GREEN, Light.AMBER, Light.RED) * 11:
        machine.to(target)
    assert len(machine.history) == 32
    assert {each.reason for each in machine.history} == {""}


def test_every_change_is_announced_once() -> None:
    machine, seen = light(), list[Any]()

    def note(sender: object, *, machine: Machine[Light], transition: Any) -> None:
        seen.append((sender, machine, transition.new))

    hooks.state_changed.connect(note)
    try:
        machine.to(Light.GREEN)
        with pytest.raises(InvalidTransition):
            machine.to(Light.RED)
    finally:
        hooks.state_changed.disconnect(note)
    assert seen == [(machine, machine, Light.GREEN)]


async def test_reach_waits_for_a_state_and_counts_one_that_was_passed_through(clock: Clock) -> None:
    machine = light()
    waiting = asyncio.create_task(machine.reach(Light.AMBER, Light.BROKEN))
    await clock.settle()
    for target in (Light.GREEN, Light.AMBER, Light.RED, Light.BROKEN):
        machine.to(target)
    assert await waiting is Light.AMBER
    assert await machine.reach(Light.BROKEN) is Light.BROKEN


async def test_reach_counts_only_changes_after_its_call(clock: Clock) -> None:
    """Earlier changes are ignored, even if the machine was in that state before."""
    machine = light()
    for target in (Light.GREEN, Light.AMBER, Light.RED):
        machine.to(target)
    waiting = asyncio.create_task(machine.reach(Light.AMBER))
    await clock.settle()
    machine.to(Light.GREEN)
    await clock.settle()
    assert not waiting.done()

    machine.to(Light.AMBER)
    machine.to(Light.RED)
    assert await waiting is Light.AMBER


async def test_reach_of_an_unreachable_state_raises_for_every_waiter(clock: Clock) -> None:
    machine = light()
    waiting = [asyncio.create_task(machine.reach(Light.AMBER)) for _ in range(2)]
    await clock.settle()
    machine.to(Light.BROKEN)
    for each in waiting:
        with pytest.raises(InvalidTransition, match="is permanently broken and cannot reach amber"):
            await each


async def test_a_waiter_that_gives_up_leaves_no_future_behind(clock: Clock) -> None:
    machine = light()
    for _ in range(100):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await machine.reach(Light.AMBER)
    gc.collect()
    assert sum(isinstance(each, asyncio.Future) for each in gc.get_objects()) < 50
    machine.to(Light.GREEN)

"""What is written in one transaction, whether or not a receiver listens."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle import hooks
from lifecycle.flows import Batch, Change, Flow, Flows, MemoryStore, Run, Times, linear, task

if TYPE_CHECKING:
    from collections.abc import Callable


class Noting(MemoryStore):
    """A store that notes what was written together."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []

    async def commit(self, batch: Batch) -> None:
        if batch.changes:
            self.batches.append([f"{each.name} {each.new}" for each in batch.changes])
        await super().commit(batch)


def two() -> Flow:
    return linear("f", *[task(lambda: 1, name=name) for name in "ab"])


def told(_: Any, **_arguments: Any) -> None:
    """Of a change."""


@pytest.mark.parametrize(
    "listening",
    [nullcontext, lambda: hooks.flow_changed.connected_to(told), lambda: hooks.state_changed.connected_to(told)],
)
async def test_a_transaction_ends_only_before_a_task_begins_or_while_one_is_at_work(
    listening: Callable[[], Any],
) -> None:
    async with Flows(store=(store := Noting())) as flows:
        with listening():
            await flows.start(two())
    assert store.batches == [["f RUNNING", "a RUNNING"], ["a SUCCESS", "b RUNNING"], ["b SUCCESS", "f SUCCESS"]]


async def test_a_receiver_that_hears_of_the_beginning_of_a_flow_can_suspend_it_before_its_first_task(
    flows: Flows,
) -> None:
    heard: list[str] = []

    def suspend(run: Run, *, change: Change) -> None:
        heard.append(f"{change.name} {change.new}")
        if (change.name, change.new) == ("f", "RUNNING") and len(heard) == 1:
            run.suspend()

    with hooks.flow_changed.connected_to(suspend):
        run = flows.start(two(), id="one")
        assert [state.value async for state in run.states()][-1] == "SUSPENDED"
        assert heard == ["f RUNNING", "f SUSPENDING", "f SUSPENDED"]
        stored = await flows.store.load("one")
        assert (stored.flow.state, stored.steps["a"].state, stored.steps["a"].attempt) == ("SUSPENDED", "PENDING", 0)
        assert [f"{each.name} {each.new}" for each in await flows.store.changes("one")] == heard
        await run.resume()
        await run
    assert run.steps["a"].attempt == 1


async def test_a_flow_that_is_suspended_at_the_end_of_its_last_task_comes_to_its_end(flows: Flows) -> None:
    def suspend(run: Run, *, change: Change) -> None:
        if (change.name, change.new) == ("b", "SUCCESS"):
            run.suspend()

    with hooks.flow_changed.connected_to(suspend):
        run = flows.start(two(), id="one")
        await run
    assert (run.state, (await flows.store.load("one")).flow.state) == ("SUCCESS", "SUCCESS")


async def test_a_receiver_that_hears_of_the_end_of_a_task_can_suspend_the_flow_before_the_next_begins(
    flows: Flows,
) -> None:
    calls: list[str] = []
    heard: list[str] = []

    def suspend(run: Run, *, change: Change) -> None:
        heard.append(f"{change.name} {change.new}")
        if (change.name, change.new) == ("a", "SUCCESS"):
            run.suspend()

    flow = linear("f", *[task(lambda name=name: calls.append(name), name=name) for name in "ab"])
    with hooks.flow_changed.connected_to(suspend):
        run = flows.start(flow, id="one")
        assert [state.value async for state in run.states()][-1] == "SUSPENDED"
    assert heard == ["f RUNNING", "a RUNNING", "a SUCCESS", "f SUSPENDING", "f SUSPENDED"]
    assert (run.state, run.steps["b"].state, run.steps["b"].attempt) == ("SUSPENDED", "PENDING", 0)
    stored = await flows.store.load("one")
    assert (stored.steps["b"].state, stored.steps["b"].attempt) == ("PENDING", 0)
    assert [f"{each.name} {each.new}" for each in await flows.store.changes("one")] == heard
    await run.resume()
    await run
    assert calls == ["a", "b"]


async def test_a_retry_that_was_suspended_before_its_next_attempt_makes_it_when_it_goes_on(flows: Flows) -> None:
    keys = 0

    def fails_once() -> int:
        nonlocal keys
        keys += 1
        if keys == 1:
            raise OSError("no connection")
        return keys

    def suspend(run: Run, *, change: Change) -> None:
        if (change.name, change.new) == ("a", "REVERTED"):
            run.suspend()

    flow = linear("f", task(fails_once, name="a"), retry=Times(3))
    with hooks.flow_changed.connected_to(suspend):
        run = flows.start(flow, id="one")
        assert [state.value async for state in run.states()][-1] == "SUSPENDED"
    stored = await flows.store.load("one")
    assert {name: row.state for name, row in stored.steps.items()} == {"a": "REVERTED", "f_retry": "SUCCESS"}
    await run.resume()
    assert (await run)["a"] == 2

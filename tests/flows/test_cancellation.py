"""A cancellation that `Flows.cancel` has accepted ends the workflow, whatever the workflow does at that moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lifecycle.errors import FlowCancelled, FlowError, InvalidState
from lifecycle.flows import (
    Flows,
    FlowState,
    MemoryStore,
    SignalRow,
    child,
    gather,
    linear,
    step,
    task,
    undo,
    wait_for,
    workflow,
)
from lifecycle.flows.records import CANCEL
from tests.flows.noted_calls import CALLS, note

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from lifecycle.flows import FlowRow

# The timer of open Flows may look for workflows that are due when a test ends.
pytestmark = [pytest.mark.keeps_tasks, pytest.mark.usefixtures("calls", "clock")]


class SlowStore(MemoryStore):
    """A store whose signals are read slowly."""

    async def signals(self, id: str, *, after: int = 0) -> list[SignalRow]:  # noqa: A002  # as in the protocol
        rows = await super().signals(id, after=after)
        await asyncio.sleep(0.02)
        return rows


@workflow
async def inner() -> None:
    undo(note, "inner undone")
    await wait_for("approval")


@workflow
async def outer(id: str) -> None:  # noqa: A002  # the natural name
    undo(note, "outer undone")
    await child(inner, id=id)


@workflow
async def both(id: str) -> None:  # noqa: A002  # the natural name
    undo(note, "outer undone")
    await gather(child(inner, id=id), wait_for("approval"))


#: Seconds from the start of a workflow to its cancellation. Workflows leave memory after one second.
MOMENTS = [0.9 + n * 0.005 for n in range(40)]


@pytest.mark.parametrize("store", [MemoryStore, SlowStore])
@pytest.mark.parametrize("parent", [outer, both])
async def test_a_cancellation_while_workflows_leave_memory_is_not_lost(
    store: Callable[[], MemoryStore], parent: Any
) -> None:
    async with Flows(store=store()) as flows:

        async def cancel_after(seconds: float, n: int) -> None:
            await flows.start(parent, f"in {n}", id=f"out {n}").stored()
            await asyncio.sleep(seconds)
            await flows.cancel(f"out {n}")

        await asyncio.gather(*(cancel_after(seconds, n) for n, seconds in enumerate(MOMENTS)))
        await asyncio.sleep(20)
        states = {row.state for row in await flows.list(limit=1000)}
    assert states == {FlowState.CANCELLED}
    assert sorted(CALLS) == ["inner undone"] * len(MOMENTS) + ["outer undone"] * len(MOMENTS)


async def test_a_cancellation_that_is_stored_before_the_last_write_undoes_the_workflow(flows: Flows) -> None:
    async def cancelled_meanwhile() -> None:
        # As from a process whose message is late.
        await flows.store.signal(SignalRow("one", CANCEL, "null"))

    @workflow
    async def order() -> str:
        await step(note, "charged")
        undo(note, "refunded")
        await step(cancelled_meanwhile)
        return "done"

    run = flows.start(order, id="one")
    with pytest.raises(FlowCancelled):
        await run
    info = await flows.get("one")
    assert (info.state, CALLS) == (FlowState.CANCELLED, ["charged", "refunded"])
    assert [row.taken for row in await flows.store.signals("one")] == [True]
    # The history continues without the success that was not stored.
    ends = [change.new for change in await flows.store.changes("one") if change.kind == "flow"]
    assert ends == ["RUNNING", "CANCELLED"]


async def test_a_cancellation_before_the_last_write_of_a_workflow_without_undo_cancels_it(flows: Flows) -> None:
    async def cancelled_meanwhile() -> None:
        await flows.store.signal(SignalRow("one", CANCEL, "null"))

    @workflow
    async def order() -> str:
        await step(cancelled_meanwhile)
        return "done"

    run = flows.start(order, id="one")
    with pytest.raises(FlowCancelled):
        await run
    assert (await flows.get("one")).state is FlowState.CANCELLED


class LateStore(MemoryStore):
    """A store whose `get` returns what it has read once ``gate`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def get(self, id: str) -> FlowRow | None:  # noqa: A002  # as in the protocol
        row = await super().get(id)
        await self.gate.wait()
        return row


async def test_a_second_cancellation_has_no_effect_even_if_the_workflow_ends_meanwhile() -> None:
    store = LateStore()
    async with Flows(store=store) as flows:
        run = flows.start(inner, id="one")
        await run.stored()
        await flows.cancel("one")
        store.gate.clear()
        second = asyncio.create_task(flows.cancel("one"))
        with pytest.raises(FlowCancelled):
            await run
        store.gate.set()
        await second
        await flows.cancel("one")


async def test_a_workflow_that_has_ended_otherwise_cannot_be_cancelled(flows: Flows) -> None:
    @workflow
    async def order() -> None: ...

    await flows.start(order, id="one")
    with pytest.raises(InvalidState, match="flow 'one' has ended as SUCCESS"):
        await flows.cancel("one")


async def test_a_flow_of_tasks_receives_no_signals(flows: Flows) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @task
    async def wait() -> None:
        begun.set()
        await go.wait()

    run = flows.start(linear("f", wait), id="one")
    await begun.wait()
    with pytest.raises(FlowError, match="'one' is not a workflow, so it receives no signals"):
        await flows.signal("one", "approval")
    assert await flows.store.signals("one") == []
    go.set()
    await run

"""Taking over runs whose process has exited, whose store was away, or whose code has changed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.errors import FlowCancelled, StepFailed
from lifecycle.flows import Flows, SQLiteStore, child, current_task, linear, step, task, undo, workflow

if TYPE_CHECKING:
    from pathlib import Path

    from lifecycle.flows import FlowRow

# The timer of open Flows may look for workflows that are due when a test ends.
pytestmark = pytest.mark.keeps_tasks

LIMIT = 60.0


# -- flows that have ended ---------------------------------------------------------------------------------------------


class _Slow(SQLiteStore):
    """A store whose lists of flows arrive late."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.read, self.arrive = asyncio.Event(), asyncio.Event()

    async def flows(self, **settings: Any) -> list[FlowRow]:
        rows = await super().flows(**settings)
        self.read.set()
        await self.arrive.wait()
        return rows


@pytest.mark.parametrize("kind", ["reverted", "cancelled", "tasks", "child"])
async def test_a_flow_that_ends_while_another_process_recovers_it_does_not_run_again(tmp_path: Path, kind: str) -> None:
    begun, go, keys = asyncio.Event(), asyncio.Event(), list[str]()

    async def charge() -> None:
        keys.append(current_task().key)
        begun.set()
        await go.wait()

    async def refuse() -> None:
        raise PermissionError("not approved")

    async def refund() -> None:
        pass

    @workflow
    async def order() -> None:
        undo(refund)
        await step(charge)
        await step(refuse)

    @workflow
    async def parent() -> None:
        await child(order, id="one")

    tasks = linear("tasks", task(charge).revert(refund), task(refuse))
    item: Any = {"tasks": tasks, "child": parent}.get(kind, order)
    slow = _Slow(tmp_path / "flows.db")
    async with Flows(store=slow) as second, asyncio.timeout(LIMIT):
        async with Flows(tmp_path / "flows.db", stop_timeout=0) as first:
            run = first.start(item, id="out" if kind == "child" else "one")
            await begun.wait()
            recovering = asyncio.ensure_future(second.recover(tasks if kind == "tasks" else order))
            await slow.read.wait()
            if kind == "cancelled":
                await first.cancel("one")
            go.set()
            with pytest.raises((PermissionError, FlowCancelled, StepFailed)):
                await run
            ended = await first.get("one")
        slow.arrive.set()
        for again in await recovering:
            with pytest.raises((StepFailed, FlowCancelled)):
                await again
        assert (await second.get("one")).state == ended.state
    assert len(keys) == 1

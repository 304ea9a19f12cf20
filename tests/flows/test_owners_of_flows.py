"""A flow that somebody runs is left to him as long as he lives."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lifecycle.flows import ClaimLost, Flows, linear, task

if TYPE_CHECKING:
    from pathlib import Path


async def test_what_one_runs_another_can_neither_start_nor_recover(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        begun.set()
        await go_on.wait()
        return "done"

    flow = linear("f", task(work, name="a"))
    path = tmp_path / "flows.db"
    async with Flows(path) as flows, Flows(path) as others:
        run = flows.start(flow, id="one")
        await begun.wait()
        assert await others.recover(flow) == []
        with pytest.raises(ClaimLost, match="'one' is RUNNING and run by another who has the store open"):
            await others.start(flow, id="one")
        go_on.set()
        assert await run == {"a": "done"}
        assert await others.start(flow, id="one") == {"a": "done"}


async def test_what_one_has_suspended_another_may_go_on_with(tmp_path: Path) -> None:
    flow = linear("f", task(lambda: 1, name="a"))
    path = tmp_path / "flows.db"
    async with Flows(path) as flows, Flows(path) as others:
        run = flows.start(flow, id="one")
        await run.suspend()
        (other,) = await others.recover(flow)
        assert await other == {"a": 1}
        await run.resume()
        with pytest.raises(ClaimLost, match="'one' was taken by somebody else"):
            await run

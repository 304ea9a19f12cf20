"""What becomes of a flow does not depend on who of those at work at once is quicker, nor on how many may be."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.flows import Flows, Options
from tests.flows.recipes import Recipe, left_of

if TYPE_CHECKING:
    from lifecycle.testing import Clock


async def end(number: int, concurrency: int | None, pace: Random | None) -> tuple[Any, ...]:
    """What becomes of a flow, whose tasks take as long as ``pace`` says."""

    async def take_time() -> None:
        if pace is not None:
            await asyncio.sleep(pace.random())

    recipe = Recipe(number, take_time)
    async with Flows(options=Options(concurrency=concurrency)) as flows:
        run = flows.start(recipe.flow)
        try:
            given = await run
        except Exception:  # noqa: BLE001  # it is seen in the states
            given = None
        return run.state, left_of(run.steps, run.state, exactly=recipe.sequential), given


@pytest.mark.parametrize("concurrency", [None, 1, 2])
async def test_in_the_end_all_is_where_it_would_be_anyway(clock: Clock, concurrency: int | None) -> None:
    for number in range(40):
        wanted = await end(number, None, None)
        for seed in range(2):
            assert await end(number, concurrency, Random(seed)) == wanted, number

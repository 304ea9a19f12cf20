"""A supervisor matches the model in `tests.chaos.model`, which runs longer in `make chaos`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.model import Game

if TYPE_CHECKING:
    from lifecycle.testing import Clock


async def test_a_supervisor_matches_its_model_and_its_budget_is_exact(clock: Clock) -> None:
    for seed in range(40):
        assert await Game(clock, seed).play(100) == [], seed

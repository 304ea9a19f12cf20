"""Runs `tests.chaos.flows` for a few seconds, or for two minutes with ``LIFECYCLE_CHAOS`` (`make chaos`)."""

from __future__ import annotations

import os
import random

import pytest

from tests.chaos.flows import storm

SECONDS = 120.0 if "LIFECYCLE_CHAOS" in os.environ else 4.0
ON_SERVER = 120.0 if "LIFECYCLE_CHAOS" in os.environ else 2.0
SEED = int(os.environ.get("LIFECYCLE_SEED", random.randrange(2**32)))


@pytest.mark.timeout(600)
async def test_no_kill_changes_the_result_of_a_flow() -> None:
    print(f"LIFECYCLE_SEED={SEED}")
    result = await storm(SECONDS, seed=SEED, kills=2)
    print(result)
    assert result.lost == {}
    assert result.flows


@pytest.mark.engine("postgres")
@pytest.mark.timeout(600)
async def test_no_kill_changes_the_result_of_a_flow_on_a_server_that_is_killed_too() -> None:
    print(f"LIFECYCLE_SEED={SEED}")
    result = await storm(ON_SERVER, seed=SEED, kills=2, store="postgres")
    print(result)
    assert result.lost == {}
    assert result.flows

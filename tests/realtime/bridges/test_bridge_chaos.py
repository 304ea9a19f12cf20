"""Runs `tests.chaos.bridge` for a few seconds, or for a minute with ``LIFECYCLE_CHAOS`` (`make chaos`)."""

from __future__ import annotations

import os
import random

import pytest

from tests.chaos.bridge import storm

SECONDS, KILLS = (60.0, 30) if "LIFECYCLE_CHAOS" in os.environ else (2.0, 2)
SEED = int(os.environ.get("LIFECYCLE_SEED", random.randrange(2**32)))


@pytest.mark.timeout(300)
async def test_no_kill_loses_what_the_bus_has() -> None:
    print(f"LIFECYCLE_SEED={SEED}")
    result = await storm(SECONDS, seed=SEED, kills=KILLS)
    print(result)
    assert result.wrong() == []
    assert result.published
    assert result.kills >= KILLS

"""Runs `tests.chaos.inbox` for a few seconds, or for ten with ``LIFECYCLE_CHAOS`` (`make chaos`)."""

from __future__ import annotations

import os
import random

import pytest

from tests.chaos.inbox import storm

SECONDS = 10.0 if "LIFECYCLE_CHAOS" in os.environ else 4.0
SEED = int(os.environ.get("LIFECYCLE_SEED", random.randrange(2**32)))


@pytest.mark.timeout(240)
async def test_no_kill_loses_what_was_acknowledged() -> None:
    print(f"LIFECYCLE_SEED={SEED}")
    result = await storm(SECONDS, seed=SEED, kills=2)
    print(result)
    assert result.wrong() == []
    assert result.acknowledged
    assert result.kills >= 2

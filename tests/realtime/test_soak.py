"""Runs `make soak` for a few seconds: all packages in one program, with injected faults."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest

from tests.soak.storm import Storm

SECONDS = 5.0
SEED = int(os.environ.get("LIFECYCLE_SEED", random.randrange(2**32)))


@pytest.mark.timeout(600)
async def test_a_program_under_faults_keeps_its_promises_and_leaves_nothing() -> None:
    print(f"LIFECYCLE_SEED={SEED}")
    with tempfile.TemporaryDirectory(prefix="soak") as directory:
        storm = Storm(Path(directory), SECONDS, SEED, print)
        await storm.run()
        print(*storm.report(), sep="\n")
    assert storm.wrong == []
    assert storm.lives >= 4
    assert storm.quiet_phases >= 2

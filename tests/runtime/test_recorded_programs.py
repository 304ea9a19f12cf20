"""Random programs start, stop and fail in the same order, at the same times, with the same messages, as recorded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.runtime.programs import RECORDED, outcome

if TYPE_CHECKING:
    import pytest


def test_random_programs_behave_as_recorded(capfd: pytest.CaptureFixture[str]) -> None:
    recorded = json.loads(RECORDED.read_text())
    changed = {seed: (lines, now) for seed, lines in recorded.items() if (now := outcome(int(seed))) != lines}
    assert changed == {}

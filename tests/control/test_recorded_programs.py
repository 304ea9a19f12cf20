"""Random router programs still have the outcomes that `python -m tests.control.programs --record` has recorded."""

from __future__ import annotations

import pytest

from tests.control.playing import play
from tests.control.programs import differences, recorded, report, write

#: The number of differences that are printed in full.
_SHOWN = 3


@pytest.mark.parametrize("part", range(4))
def test_random_programs_have_their_recorded_outcomes(part: int) -> None:
    digests, _ = recorded()
    different = differences(range(part, len(digests), 4))
    if different:
        pytest.fail("\n\n".join([*map(report, different[:_SHOWN]), f"{len(different)} outcomes differ: {different}"]))


def test_outcomes_recorded_in_full_are_the_same() -> None:
    _, full = recorded()
    assert len(full) > 20
    assert {seed: play(write(seed)) for seed in full} == full

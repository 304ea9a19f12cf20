"""Runs each storm of `tests.chaos.all` for a moment. `make chaos` runs them for minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos import all as storms
from tests.chaos.report import Report

if TYPE_CHECKING:
    from tests.chaos.report import Storm

SECONDS = 2.0


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.engine("postgres")] if name.endswith("postgres") else [])
        for name in storms.STORMS
    ],
)
def test_nothing_is_lost_double_or_stuck_after(name: str) -> None:
    seed = storms.seed()
    report = storms.run_storm(storms.STORMS[name], SECONDS, seed)
    assert report.violations == [], f"LIFECYCLE_SEED={seed}"
    assert report.operations


def table(storm: Storm, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """Return the exit status and the last lines of the command's output, with spaces folded."""
    status = storms.run_storms({"one": storm}, "tests.chaos.all", "", ["--seconds", "0", "--seed", "7"])
    return status, [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()[-2:]]


@pytest.mark.parametrize(
    ("report", "status", "row"),
    [
        (Report(5, 2), 0, "one 5 2 0 0 0 7"),
        (Report(5, 2, lost=["a"]), 1, "one 5 2 1 0 0 7"),
        (Report(5, 2, double=["a", "b"]), 1, "one 5 2 0 2 0 7"),
        (Report(5, 2, stuck=["a"]), 1, "one 5 2 0 0 1 7"),
    ],
)
def test_a_violation_is_counted_last_and_fails_the_command(
    report: Report, status: int, row: str, capsys: pytest.CaptureFixture[str]
) -> None:
    header = "storm operations kills lost double stuck seed"
    assert table(lambda *_: report, capsys) == (status, [header, row])


def test_a_storm_that_raises_is_stuck_and_a_skipped_one_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def failing(*_: float) -> Report:
        raise TimeoutError("no answer")

    def skipping(*_: float) -> Report:
        pytest.skip("no engine")

    assert table(failing, capsys)[0] == 1
    assert table(skipping, capsys) == (0, ["storm operations kills lost double stuck seed", "one skipped"])

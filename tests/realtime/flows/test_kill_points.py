"""A workflow whose process is killed at any of its calls of the store has the same outcome.

Each point is tried with a process that starts afterwards, or with one that runs already and takes the workflow over.
`tests.chaos.kill_points` tries all points of random workflows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.kill_points import kill_at_each, stores_of
from tests.chaos.report import Report

if TYPE_CHECKING:
    from pathlib import Path

#: A workflow with children, a branch, a loop and a patch, which waits for nothing and succeeds.
NUMBER = 242


@pytest.mark.parametrize(
    ("store", "ways"),
    [
        ("sqlite", ("before", "during", "after")),
        pytest.param("postgres", ("during", "after", "cut"), marks=pytest.mark.engine("postgres")),
    ],
)
async def test_a_workflow_whose_process_is_killed_ends_the_same(
    store: str, ways: tuple[str, ...], tmp_path: Path
) -> None:
    report = Report()
    points = [(NUMBER, calls, ways[calls % 3]) for calls in (5, 8, 13, 16, 19, 22)]
    await kill_at_each(points, stores_of(store, tmp_path, 2), tmp_path, report)
    assert report.violations == []
    assert report.kills

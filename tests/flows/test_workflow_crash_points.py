"""A workflow has the same outcome even if its process dies after one of its writes."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import pytest

from lifecycle.flows import PostgresStore, SQLiteStore
from tests import postgres
from tests.chaos.report import Report
from tests.chaos.workflow_crash_points import die_at_each_write
from tests.flows.numbered_workflows import script_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lifecycle.flows import Store

pytestmark = pytest.mark.usefixtures("clock")

#: The numbers of the workflows. `script_of` always returns the same workflow for the same number.
WORKFLOWS = range(16)


@pytest.mark.parametrize("number", WORKFLOWS)
async def test_a_workflow_that_dies_after_any_write_ends_the_same(number: int) -> None:
    report = Report()
    await die_at_each_write(number, report)
    assert report.violations == []
    assert report.kills


@pytest.mark.parametrize("number", [1, 5])
async def test_a_workflow_in_a_file_that_dies_after_any_write_ends_the_same(number: int, tmp_path: Path) -> None:
    files = count()

    def make() -> Callable[[], Store]:
        return partial(SQLiteStore, tmp_path / f"{next(files)}.db")

    report = Report()
    await die_at_each_write(number, report, make)
    assert report.violations == []
    assert report.kills


@pytest.mark.engine("postgres")
@pytest.mark.parametrize(("number", "every"), [(1, 1), (0, 9), (2, 9), (8, 9)])
async def test_a_workflow_in_postgres_that_dies_after_a_write_ends_the_same(number: int, every: int) -> None:
    def make() -> Callable[[], Store]:
        return partial(PostgresStore, postgres.server().cleared())

    report = Report()
    await die_at_each_write(number, report, make, every=every)
    assert report.violations == []
    assert report.kills


def test_the_numbered_workflows_cover_all_operations() -> None:
    text = str([script_of(number) for number in WORKFLOWS])
    kinds = ["step", "undo", "sleep", "wait", "timeout", "patch", "loop", "branch", "gather", "child", "flow"]
    assert [kind for kind in [*kinds, "doomed", "endless", "fail"] if f"('{kind}'" not in text] == []

"""`lifecycle watch --on-change-only -- pytest -x`: one run per burst, its status, and changes during a run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.realtime.watches import documented, here, watch, write
from tests.waiting import until_blocking

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["here", "watch"]  # fixtures

PYTEST = documented("restart-on-change.md", "-- pytest")
SLOW = """\
import pathlib, time
def test_slow():
    pathlib.Path("../began").touch()
    until = time.monotonic() + 60
    while not pathlib.Path("../go").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
"""


@pytest.fixture(autouse=True)
def only_tests(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "app.py").unlink()
    # The installed plugins take most of the time that pytest needs to start.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def runs(seen: Any) -> int:
    return len(re.findall("test session starts", seen.out.read_text()))


def test_a_burst_leads_to_one_run_whose_status_is_shown(watch: Any, here: Path) -> None:
    seen = watch("--wait", "1", *PYTEST)
    seen.said("waiting for the first change")
    for number in range(20):
        write(here / f"test_{number}.py", "def test_it(): pass\n")
    seen.seen("20 passed")
    seen.said(r"exited with status 0 after [\d.]+ s; waiting for a change")

    write(here / "test_0.py", "def test_it(): assert 0\n")
    seen.seen("1 failed")
    seen.said(r"exited with status 1 after [\d.]+ s; waiting for a change")
    # The files that pytest writes do not cause a run.
    assert runs(seen) == 2


@pytest.mark.parametrize(("busy", "results"), [("queue", ["1 passed", "1 failed"]), ("restart", ["1 failed"])])
def test_change_during_a_run_follows_it_or_ends_it(watch: Any, here: Path, busy: str, results: list[str]) -> None:
    seen = watch("--busy", busy, *PYTEST)
    seen.said("waiting for the first change")
    write(here / "test_it.py", SLOW)
    until_blocking((here.parent / "began").exists)
    write(here / "test_it.py", "def test_it(): assert 0\n")
    seen.said(r"changed: test_it\.py; (queued|restarting)")
    (here.parent / "go").touch()
    seen.seen("1 failed")
    seen.said("exited with status 1")
    assert re.findall(r"\d (?:passed|failed)", seen.out.read_text()) == results
    assert runs(seen) == 2

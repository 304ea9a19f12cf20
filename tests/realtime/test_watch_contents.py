"""`lifecycle watch` and files that are written without a change of content."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.realtime.watches import APP, here, watch, write

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["here", "watch"]  # fixtures


def test_a_touch_and_a_save_without_a_change_do_nothing(watch: Any, here: Path) -> None:
    (here / "page.html").write_text("x")
    seen = watch()
    seen.seen("up 1")
    (here / "app.py").touch()
    write(here / "app.py", "VALUE = 1\n" + APP)
    # If one of the earlier writes had been detected, it would appear in this message or before it.
    (here / "page.html").write_text("y")
    seen.said("changed: .*; restarting")
    assert "changed: page.html; restarting" in seen.err.read_text()
    seen.seen("up 1", times=2)
    (here / "page.html").touch()
    write(here / "app.py", "VALUE = 2\n" + APP)
    seen.seen("up 2")
    assert seen.err.read_text().count("changed:") == 2


def test_touches_while_the_command_starts_do_nothing(watch: Any, here: Path) -> None:
    (here / "page.html").write_text("x")
    seen = watch(ready=False)
    while not seen.out.read_text():
        (here / "app.py").touch()
        os.sched_yield()
    (here / "app.py").touch()
    (here / "page.html").write_text("y")
    seen.said("changed: .*; restarting")
    assert "changed: page.html; restarting" in seen.err.read_text()


@pytest.mark.parametrize("change", ["modified", "added", "deleted"])
def test_a_change_after_the_first_output_counts_in_a_large_tree(watch: Any, here: Path, change: str) -> None:
    """The command starts before the watches exist, because setting them up takes a while for so many files."""
    for directory in (here / f"d{number}" for number in range(100)):
        directory.mkdir()
        for number in range(100):
            (directory / f"{number}.txt").write_text("x")
    seen = watch(ready=False)
    seen.seen("up 1")
    file = here / "d99" / ("new.txt" if change == "added" else "50.txt")
    if change == "deleted":
        file.unlink()
    else:
        file.write_text("y")
    seen.seen(f'up 1 .*{file.name}", "change": "{change}"')

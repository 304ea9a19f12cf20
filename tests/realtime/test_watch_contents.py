"""`lifecycle watch` and files that are written without a change of content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

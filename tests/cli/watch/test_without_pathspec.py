"""Without the library that reads .gitignore the watch goes on, and says what it cannot do."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import pytest

from lifecycle.cli.output import Voice
from lifecycle.cli.watch.run import _honours_git
from lifecycle.cli.watch.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("rules", "wanted", "warned"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_it_is_said_where_there_are_rules_and_they_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: bool, wanted: bool, warned: bool
) -> None:
    monkeypatch.setitem(sys.modules, "pathspec", None)
    if rules:
        (tmp_path / ".gitignore").write_text("*.log\n")
    said = io.StringIO()
    settings = Settings(command=("true",), paths=(tmp_path,), gitignore=wanted)

    assert not _honours_git(settings, Voice(stream=said))
    assert ("lifecycle-control[watch]" in said.getvalue()) is warned

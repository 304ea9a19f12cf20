"""The question to the command's own Python whether a file can be compiled."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from lifecycle.cli.watch.session import broken_files

if TYPE_CHECKING:
    from pathlib import Path


async def test_what_cannot_be_compiled_is_shown_with_file_line_and_caret(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad ü.py"
    good.write_text("raise SystemExit('never run')\n")
    bad.write_text("x = 1\ndef f(:\n    pass\n")

    found = await broken_files(sys.executable, [good, bad])

    assert list(found) == [bad]
    assert f'File "{bad}", line 2' in found[bad]
    assert "^" in found[bad]
    assert "SyntaxError" in found[bad]
    assert list(tmp_path.rglob("*.pyc")) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("gone.py", None),
        ("page.html", b"def f(:"),
        ("latin.py", b"# -*- coding: latin-1 -*-\nx = '\xe4'\n"),
        ("warns.py", b"x = 1 is 1\n"),
        ("empty.py", b""),
    ],
)
async def test_what_is_no_fault(tmp_path: Path, name: str, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert await broken_files(sys.executable, [tmp_path / name]) == {}


@pytest.mark.parametrize("content", [b"x = '\xff'\n", b"x = 1\0\n", b"\tx\n y\n"])
async def test_bytes_that_are_no_source_are_a_fault(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.py").write_bytes(content)
    assert list(await broken_files(sys.executable, [tmp_path / "x.py"])) == [tmp_path / "x.py"]


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho hello\n", "#!/bin/sh\nsleep 60\n", None])
async def test_where_no_answer_comes_nothing_is_found(tmp_path: Path, text: str | None) -> None:
    """A Python that fails, babbles, hangs or is not there must not keep a restart back."""
    python, source = tmp_path / "python", tmp_path / "bad.py"
    source.write_text("def f(:\n")
    if text is not None:
        python.write_text(text)
        python.chmod(0o755)
    assert await broken_files(str(python), [source], limit=0.2) == {}

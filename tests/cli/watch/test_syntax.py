"""Detection of changed Python and JavaScript files that cannot be compiled."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

import psutil
import pytest

from lifecycle.cli.watch.syntax import SyntaxCheck, syntax_errors
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


async def test_syntax_errors_are_shown_with_file_line_and_caret(tmp_path: Path) -> None:
    success, error = tmp_path / "good.py", tmp_path / "bad ü.py"
    success.write_text("raise SystemExit('never run')\n")
    error.write_text("x = 1\ndef f(:\n    pass\n")

    found = await syntax_errors(sys.executable, [success, error])

    assert list(found) == [error]
    assert f'File "{error}", line 2' in found[error]
    assert "^" in found[error]
    assert "SyntaxError" in found[error]
    assert list(tmp_path.rglob("*.pyc")) == []


async def test_a_name_in_an_error_stays_on_its_line(tmp_path: Path) -> None:
    file = tmp_path / "a\n[lifecycle] stopped.py"
    file.write_text("def f(:\n")
    [text] = (await syntax_errors(sys.executable, [file])).values()
    assert r"a\n[lifecycle] stopped.py" in text
    assert "\n[lifecycle]" not in text


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
async def test_files_without_syntax_errors(tmp_path: Path, name: str, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert await syntax_errors(sys.executable, [tmp_path / name]) == {}


@pytest.mark.parametrize("content", [b"x = '\xff'\n", b"x = 1\0\n", b"\tx\n y\n"])
async def test_undecodable_source_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.py").write_bytes(content)
    assert list(await syntax_errors(sys.executable, [tmp_path / "x.py"])) == [tmp_path / "x.py"]


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho hello\n", "#!/bin/sh\nsleep 60\n", None])
async def test_check_without_an_answer_finds_no_error(tmp_path: Path, text: str | None) -> None:
    """A Python interpreter that fails, prints unexpected output, hangs or is missing must not prevent a restart."""
    python, source = tmp_path / "python", tmp_path / "bad.py"
    source.write_text("def f(:\n")
    if text is not None:
        python.write_text(text)
        python.chmod(0o755)
    assert await syntax_errors(str(python), [source], limit=0.2) == {}


async def test_broken_files_are_checked_until_they_are_correct(tmp_path: Path) -> None:
    check, bad, other = SyntaxCheck(sys.executable), tmp_path / "bad.py", tmp_path / "other.py"
    bad.write_text("x = (\n")
    other.write_text("x = 1\n")
    assert len(await check.errors([bad])) == 1
    assert len(await check.errors([other])) == 1
    bad.write_text("x = 22\n")
    assert await check.errors([other]) == []


async def test_only_one_interpreter_is_started_in_advance_for_each_check(tmp_path: Path) -> None:
    """The interpreter is a script that records each start and executes Python."""
    python, starts, bad = tmp_path / "python", tmp_path / "starts", tmp_path / "bad.py"
    python.write_text(f'#!/bin/sh\necho $$ >>"{starts}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    bad.write_text("x = (\n")
    check = SyntaxCheck(str(python))

    def pids() -> list[int]:
        return [int(line) for line in starts.read_text().split()] if starts.exists() else []

    def has_started(number: int) -> bool:
        return len(pids()) == number

    async with check.in_advance():
        # This check finds no interpreter that is ready.
        assert len(await check.errors([bad])) == 1
        for number in range(2, 4):
            await until(partial(has_started, number))
            assert len(await check.errors([bad])) == 1
            assert len(pids()) == number
        await until(partial(has_started, 4))
        os.kill(pids()[-1], signal.SIGKILL)
        assert len(await check.errors([bad])) == 1
        assert len(pids()) == 5
        await until(partial(has_started, 6))
        await check.errors([tmp_path / "page.html"])
    assert not [pid for pid in pids() if psutil.pid_exists(pid)]


async def test_a_missing_interpreter_finds_no_error(tmp_path: Path) -> None:
    check = SyntaxCheck(str(tmp_path / "python"))
    async with check.in_advance():
        assert await check.errors([tmp_path / "bad.py"]) == []


@pytest.mark.engine("node")
class TestNode:
    async def test_syntax_errors_are_shown_with_file_line_and_caret(self, tmp_path: Path) -> None:
        files = [
            tmp_path / f"{number}.{suffix}" for number, suffix in enumerate(["js", "mjs", "cjs", "js", "js", "js"])
        ]
        for file in files:
            file.write_text("const x = 1;\nfunction f(:\n")
        found = await syntax_errors("node", [*files, tmp_path / "gone.js"])
        assert sorted(found) == files
        assert found[files[0]].splitlines() == [
            f"{files[0]}:2",
            "function f(:",
            "           ^",
            "",
            "SyntaxError: Unexpected token ':'",
        ]

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("script.js", "#!/usr/bin/env node\nthrow new Error('never run')\n"),
            ("module.js", "import fs from 'node:fs';\nawait fs;\n"),
            ("module.mjs", "export const x = 1;\n"),
            ("jsx.js", "const page = <div/>;\n"),
            ("app.ts", "let x: number = 1;\n"),
            ("app.py", "def f(:\n"),
        ],
    )
    async def test_files_without_syntax_errors(self, tmp_path: Path, name: str, text: str) -> None:
        (tmp_path / name).write_text(text)
        assert await syntax_errors("node", [tmp_path / name]) == {}

    async def test_options_for_the_command_do_not_apply(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NODE_OPTIONS", "--require /no/such/module")
        (tmp_path / "bad.js").write_text("(")
        assert list(await syntax_errors("node", [tmp_path / "bad.js"])) == [tmp_path / "bad.js"]


async def test_slow_check_of_javascript_ends_and_finds_no_error(tmp_path: Path) -> None:
    node, source = tmp_path / "node", tmp_path / "bad.js"
    source.write_text("(")
    node.write_text("#!/bin/sh\nsleep 60\n")
    node.chmod(0o755)
    assert await syntax_errors(str(node), [source] * 9, limit=0.2) == {}

"""`lifecycle up` finds the interpreter of a process, to check changed Python files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from lifecycle.cli.up.changes import interpreter_of
from lifecycle.cli.up.processes import Process

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "command",
    [
        ("python", "app.py"),
        ("./server", "--port", "80"),
        "python app.py",
        "exec ./server --port $PORT",
        "DEBUG=1 MODE='a b' exec python app.py",
        "cd src && python app.py | tee log",
    ],
)
def test_interpreter_of_the_first_python_program_is_used(tmp_path: Path, command: str | tuple[str, ...]) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    (tmp_path / "server").write_text(f"#!{tmp_path}/python\n")
    (tmp_path / "server").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/bin:/usr/bin"}
    assert interpreter_of(Process("web", command, cwd=tmp_path), env) == str(tmp_path / "python")


@pytest.mark.parametrize("command", [("echo", "python"), "echo python", "'", "no-such-program", "  ;", "./nope"])
def test_other_commands_have_no_interpreter(tmp_path: Path, command: str | tuple[str, ...]) -> None:
    assert interpreter_of(Process("web", command, cwd=tmp_path), {"PATH": "/bin:/usr/bin"}) is None

"""`lifecycle watch` and `lifecycle up` report an inaccessible directory in one line."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Runs the command line without root's privilege to access every file.
UNPRIVILEGED = """
import ctypes, os, sys

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
if os.geteuid() == 0:
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0
os.execv(sys.executable, [sys.executable, "-P", "-m", "lifecycle", *sys.argv[1:]])
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="capabilities are a feature of Linux")


@pytest.fixture(params=[0o000, 0o444], ids=["closed", "not searchable"])
def closed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Yield a directory that this user may not access. It and its subdirectory each contain a Procfile."""
    directory = tmp_path / "closed"
    (directory / "inner").mkdir(parents=True)
    for each in (directory, directory / "inner"):
        (each / "Procfile").write_text("web: true\n")
    directory.chmod(request.param)
    yield directory
    directory.chmod(0o755)


def run_in(directory: Path, closed: Path, *argv: str) -> tuple[int, list[str]]:
    """Make ``closed`` inaccessible, run a command in ``directory``, and return its exit status and output."""
    mode = closed.stat().st_mode
    closed.chmod(0o755)
    enter = f"import os; os.chdir({str(directory)!r}); os.chmod({str(closed)!r}, {mode})\n"
    done = subprocess.run(
        [sys.executable, "-P", "-c", enter + UNPRIVILEGED, *argv],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"NO_COLOR": "1"},
    )
    return done.returncode, (done.stdout + done.stderr).splitlines()


@pytest.mark.parametrize("here", [".", "inner"])
@pytest.mark.parametrize("command", [("watch", "--", "true"), ("watch", "..", "--", "true"), ("up",)], ids=" ".join)
def test_inside(closed: Path, here: str, command: tuple[str, ...]) -> None:
    status, lines = run_in(closed / here, closed, *command)
    assert status == 3
    assert len(lines) == 1
    assert f"[lifecycle] {closed}" in lines[0]
    assert "cannot be read: Permission denied" in lines[0]


@pytest.mark.parametrize(
    "command",
    [
        ("watch", "closed", "--", "true"),
        ("watch", "closed/inner", "--", "true"),
        ("up", "-f", "closed/Procfile"),
        ("up", "-f", "other/../closed/inner/Procfile"),
    ],
    ids=" ".join,
)
def test_from_outside(closed: Path, command: tuple[str, ...]) -> None:
    (closed.parent / "other").mkdir()
    status, lines = run_in(closed.parent, closed, *command)
    assert status == 3
    assert lines == [f"[lifecycle] {closed}: cannot be read: Permission denied; change its mode or its owner"]

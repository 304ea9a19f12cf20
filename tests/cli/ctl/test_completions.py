"""Completions: commands, options, and the names that a running program reports."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from lifecycle.cli import main
from lifecycle.cli.completions import SCRIPTS
from tests.cli.ctl.fake_sockets import answer, speaker

if TYPE_CHECKING:
    from pathlib import Path


def completed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    with pytest.raises(SystemExit) as end:
        main(["--candidates", *words])
    assert not end.value.code
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["wa"], ["watch"]),
        (["--v"], ["--version"]),
        (["watch", "--exit-on"], ["--exit-on-error"]),
        (["flows", "re"], ["replay", "resume", "retry"]),
        (["flows", "list", "--j"], ["--json"]),
        (["ctl", "stop", "--t"], ["--timeout"]),
        (["ctl", "sta"], ["stacks", "start", "status"]),
        (["ctl", "restart", "w"], []),
        (["watch", "--", "ct"], []),
        (["nothing", "x"], []),
    ],
)
def test_commands_and_options_are_completed(
    sockets: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: list[str]
) -> None:
    assert completed(capsys, *words) == expected


def test_names_of_running_programs_are_completed(sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with speaker(sockets / "shop.sock", b""):
        assert completed(capsys, "ctl", "-p", "") == ["shop"]


def test_a_running_program_completes_its_commands_and_workers(
    sockets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands, workers = answer(json.dumps([{"name": "stage"}])), answer(json.dumps(["web", "web/one"]))
    with speaker(sockets / "shop.sock", commands, workers) as asked:
        assert completed(capsys, "ctl", "-p", "shop", "sta") == ["stacks", "stage", "start", "status"]
        assert completed(capsys, "ctl", "logs", "we") == ["web", "web/one"]
    assert asked[1].startswith(b"GET /api/complete?line=start+we ")


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_script_of_each_shell_is_printed(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    with pytest.raises(SystemExit):
        main(["--completions", shell])
    script = capsys.readouterr().out
    assert "lifecycle --candidates" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)

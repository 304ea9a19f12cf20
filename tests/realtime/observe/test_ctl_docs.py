"""Each `lifecycle ctl` command in the README and the how-to guide works on a similar program."""

from __future__ import annotations

import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

from lifecycle.cli import main
from tests.programs import LIMIT
from tests.realtime.observe.shops import ctl, environment, home, started
from tests.test_docs import ROOT, blocks, versions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import pytest


def shown(page: Path) -> Iterator[list[str]]:
    """Yield the arguments of each `lifecycle ctl` command on the page."""
    for block in blocks(page, "console"):
        for line in block.text.splitlines():
            words = shlex.split(line, comments=True)
            if words[:3] == ["$", "lifecycle", "ctl"]:
                yield words[3:]


def given(env: Mapping[str, str], words: list[str]) -> None:
    """Run a command as a reader would. For a command that keeps running, read the first lines."""
    if "--watch" not in words and "tail" not in words:
        # Only commands that read lines need a separate process, which is slower.
        assert (ctl(env, *words, given="")[0] if "attach" in words else main(["ctl", *words])) == 0
        return
    command = [sys.executable, "-m", "lifecycle", "ctl", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(env)) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(LIMIT) == 0


def test_the_lines_of_the_how_to(monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs/howto/steer.md"
    lines = sorted(shown(page), key=lambda words: words == ["stop"])
    assert ["stop"] in lines
    with home() as env, started(env, "-c", versions(page, "shop.py")[0], until="") as program:
        monkeypatch.setenv("XDG_RUNTIME_DIR", env["XDG_RUNTIME_DIR"])
        program.answers(lambda: main(["ctl", "ship", "first"]), "deployed first")
        for words in lines:
            given(env, words)
        assert "deployed v1" in program.rest()


def test_the_lines_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program under `lifecycle watch` also has the commands of the watcher's prompt."""
    (tmp_path / "app.py").write_text("import time; print('up'); time.sleep(600)")
    command = ("-m", "lifecycle", "watch", "--", sys.executable, "app.py")
    with home() as env, started(env, *command, cwd=tmp_path) as program:
        monkeypatch.setenv("XDG_RUNTIME_DIR", env["XDG_RUNTIME_DIR"])
        assert main(["ctl", "-p", f"watch-{tmp_path.name}", "--", "status"]) == 0
        assert "running for" in capsys.readouterr().out
        monkeypatch.chdir(tmp_path)
        for words in shown(ROOT / "README.md"):
            given(env, words)
        program.rest()

"""The commands `hold` and `release`, read by `lifecycle watch` without a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.realtime.watches import APP, LIMIT, here, write
from tests.waiting import until_blocking

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["here"]  # a fixture


def test_command_continues_while_held_and_release_acts_on_changes(here: Path, tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    with (
        out.open("w") as to_out,
        err.open("w") as to_err,
        subprocess.Popen(
            [sys.executable, "-m", "lifecycle", "watch", "--prompt", "--", sys.executable, "app.py"],
            cwd=here,
            env={**os.environ, "NO_COLOR": "1"},
            stdin=subprocess.PIPE,
            stdout=to_out,
            stderr=to_err,
            text=True,
        ) as watch,
    ):
        assert watch.stdin is not None
        print("hold", file=watch.stdin, flush=True)
        until_blocking(lambda: "held" in err.read_text() and "up 1" in out.read_text())
        write(here / "app.py", "VALUE = 2\n" + APP)
        print("status", file=watch.stdin, flush=True)
        until_blocking(lambda: "changes are held until release" in err.read_text())
        assert "up 2" not in out.read_text()
        print("release", file=watch.stdin, flush=True)
        until_blocking(lambda: "up 2" in out.read_text())
        print("quit", file=watch.stdin, flush=True)
        assert watch.wait(LIMIT) == 0

"""A `lifecycle watch` process without a terminal, and the directory that it watches."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.guards import is_checker, is_guard
from tests.waiting import until_blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["APP", "LIMIT", "Watch", "documented", "has_ended", "here", "watch", "write"]

LIMIT = 30.0
_DOCS = Path(__file__).parents[2] / "docs" / "howto"

APP = """\
import os, sys, time
print("up", VALUE, os.environ["LIFECYCLE_CHANGES"])
print("to stderr", file=sys.stderr)
time.sleep(600)
"""


def write(path: Path, text: str) -> None:
    """Write a file as editors do, so that readers never see half of it."""
    draft = path.with_name(f".{path.name}.draft~")
    draft.write_text(text)
    draft.replace(path)


def documented(page: str, pattern: str) -> list[str]:
    """Return the arguments of the `lifecycle watch` command that matches ``pattern`` on a page of the documentation."""
    commands = re.findall(r"^\$ lifecycle watch (.+)", (_DOCS / page).read_text(), re.MULTILINE)
    [command] = [each for each in commands if re.search(pattern, each)]
    return shlex.split(command)


def has_ended(process: psutil.Process) -> bool:
    """Return whether the process has exited. The system may take a while to reap an orphan."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


class Watch:
    """A `lifecycle watch` process that writes its output to files."""

    def __init__(self, here: Path, *argv: str, env: dict[str, str] | None = None) -> None:
        self.here = here
        self.out, self.err = here.parent / "out", here.parent / "err"
        # The command may be a program that is installed next to Python.
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = psutil.Popen(
                [sys.executable, "-m", "lifecycle", "watch", *argv],
                cwd=here,
                env={**os.environ, "PATH": path, "NO_COLOR": "1", **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def seen(self, pattern: str, *, times: int = 1, err: bool = False) -> list[str]:
        """Wait until the output contains ``pattern`` ``times`` times, and return the matches."""
        file = self.err if err else self.out

        def found() -> list[str] | None:
            hits = re.findall(pattern, file.read_text())
            if len(hits) < times and self.process.poll() is not None:
                pytest.fail(f"the process exited: {self.everything()}")
            return hits if len(hits) >= times else None

        return until_blocking(found, lambda: f"{pattern!r} did not appear {times} times: {self.everything()}")

    def said(self, pattern: str, *, times: int = 1) -> list[str]:
        """Wait until the watcher's own messages contain ``pattern`` ``times`` times, and return the matches."""
        return self.seen(pattern, times=times, err=True)

    def everything(self) -> str:
        return f"\n--- out ---\n{self.out.read_text()}--- err ---\n{self.err.read_text()}"

    def children(self) -> list[psutil.Process]:
        """Return the child processes, except the guard and the interpreter for the next syntax check."""
        found = self.process.children(recursive=True)
        return [each for each in found if not is_guard(each) and not is_checker(each)]

    def checker(self) -> psutil.Process | None:
        """Return the interpreter that waits for the next syntax check, if it has started."""
        return next(filter(is_checker, self.process.children()), None)

    def ends(self, status: int) -> None:
        assert self.process.wait(LIMIT) == status, self.everything()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    directory = tmp_path / "here"
    directory.mkdir()
    write(directory / "app.py", "VALUE = 1\n" + APP)
    return directory


@pytest.fixture
def watch(here: Path) -> Iterator[Callable[..., Watch]]:
    started: list[Watch] = []

    def start(*argv: str, env: dict[str, str] | None = None, ready: bool = True) -> Watch:
        command = () if "--" in argv else ("--", sys.executable, "app.py")
        started.append(Watch(here, *argv, *command, env=env))
        if ready:
            started[-1].said("watching")
        return started[-1]

    yield start
    for each in started:
        left = each.process.children(recursive=True) if each.process.poll() is None else []
        if each.process.poll() is None:
            each.process.terminate()
        _, stuck = psutil.wait_procs([each.process, *left], LIMIT)
        for one in stuck:
            one.kill()
        psutil.wait_procs(stuck, LIMIT)

"""`lifecycle up` and `lifecycle watch` keep working while nothing reads their output."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.programs import LIMIT, Running
from tests.waiting import until_blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: Prints more than a pipe and the queue hold, and then creates the file "flooded".
FLOOD = "yes 'a line that fills the pipe and then the queue, because nothing reads it' | head -n 50000; touch flooded"
#: A table for a process that is restarted, and appends its PID to the file "pids" at each start.
QUIET = '[processes.quiet]\ncommand = "echo $$ >>pids; exec sleep 600"\nrestart = "always"\nbackoff = 0.01\n'


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Return a function that starts a `lifecycle` command whose output is not read until the test reads it."""
    programs: list[Running] = []

    def run(*argv: str) -> Running:
        programs.append(Running("-m", "lifecycle", *argv, cwd=tmp_path, env={"NO_COLOR": "1"}))
        return programs[-1]

    yield run
    for program in programs:
        program.close()


def appears(file: Path) -> None:
    until_blocking(file.exists, f"the creation of {file.name}")


def kill_and_await_restart(pids: Path) -> None:
    """Kill the process that has written its PID to the file, and wait for its successor."""
    until_blocking(lambda: pids.exists() and pids.read_text(), "the first start")
    before = pids.read_text().split()
    psutil.Process(int(before[-1])).kill()
    until_blocking(lambda: len(pids.read_text().split()) > len(before), "the restart")


class TestUp:
    def test_unread_output_stops_neither_restarts_nor_the_end(
        self, start: Callable[..., Running], tmp_path: Path
    ) -> None:
        (tmp_path / "lifecycle.toml").write_text(f'{QUIET}[processes.loud]\ncommand = "{FLOOD}; exec sleep 600"\n')
        program = start("up")
        appears(tmp_path / "flooded")
        kill_and_await_restart(tmp_path / "pids")
        program.process.send_signal(signal.SIGTERM)
        assert program.process.wait(LIMIT) == 0

    def test_lines_that_were_dropped_are_counted_and_the_latest_are_kept(
        self, start: Callable[..., Running], tmp_path: Path
    ) -> None:
        (tmp_path / "Procfile").write_text(f"loud: {FLOOD}; echo the last line; exec sleep 600\n")
        program = start("up")
        appears(tmp_path / "flooded")
        program.until(" lines were not shown, because nothing read the output\nloud   | a line")
        program.until("loud   | the last line\n")
        program.stop()

    def test_all_output_is_kept_for_a_reader_that_starts_after_the_end(
        self, start: Callable[..., Running], tmp_path: Path
    ) -> None:
        (tmp_path / "Procfile").write_text("job: seq 20000; touch over\n")
        program = start("up")
        appears(tmp_path / "over")
        text = program.rest(0)
        assert text.count("job    | ") == 20_000
        assert "job  finished" in text

    def test_ctrl_s_stops_neither_restarts_nor_ctrl_c(self, tmp_path: Path) -> None:
        (tmp_path / "lifecycle.toml").write_text(f'{QUIET}[processes.loud]\ncommand = "{FLOOD}; exec sleep 600"\n')
        ours, theirs = pty.openpty()
        program = subprocess.Popen(
            [sys.executable, "-m", "lifecycle", "up"],
            cwd=tmp_path,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        try:
            os.write(ours, b"\x13")  # Ctrl+S
            appears(tmp_path / "flooded")
            kill_and_await_restart(tmp_path / "pids")
            program.send_signal(signal.SIGINT)
            assert program.wait(LIMIT) == 0
        finally:
            program.kill()
            program.wait(LIMIT)
            os.close(ours)
            os.close(theirs)


class TestWatch:
    def test_unread_output_stops_neither_restarts_nor_the_end(
        self, start: Callable[..., Running], tmp_path: Path
    ) -> None:
        file = tmp_path / "a.txt"
        file.touch()
        command = f"{FLOOD}; mv flooded run$(ls run* | wc -l); exec sleep 600"
        program = start("watch", str(file), "--shell", "--", command)
        appears(tmp_path / "run0")
        file.write_text("changed")
        appears(tmp_path / "run1")
        program.process.send_signal(signal.SIGTERM)
        assert program.process.wait(LIMIT) == 0

"""Peers as programs. Each program is started in a temporary directory and stopped with all its processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["LIMIT", "PARENT", "edit", "folder", "lives", "pids", "run", "running", "until"]

LIMIT = 30.0

#: A program that starts a second one, and prints both PIDs.
PARENT = """
import os, subprocess, time
child = subprocess.Popen(["sleep", "600"])
with open("pids", "a") as file:
    print(os.getpid(), child.pid, file=file, flush=True)
time.sleep(600)
"""


@contextmanager
def folder(program: str) -> Iterator[Path]:
    """Yield a directory that contains ``program`` as app.py. Then kill the processes listed in its file ``pids``."""
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        (here / "app.py").write_text(program)
        try:
            yield here
        finally:
            for pid in reported_pids(here):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextmanager
def running(here: Path, command: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    null = subprocess.DEVNULL
    command_line = [program(command), *arguments]
    process = subprocess.Popen(command_line, cwd=here, process_group=0, stdin=null, stdout=null, stderr=null)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(LIMIT)


def run(here: Path, command: str, *arguments: str) -> None:
    subprocess.run([program(command), *arguments], cwd=here, check=True, capture_output=True, timeout=LIMIT)


def program(command: str) -> str:
    path = Path(sys.executable).with_name(command)
    if not path.exists():
        raise ImportError(f"{path} does not exist")
    return str(path)


def edit(here: Path, text: str) -> None:
    with (here / "app.py").open("a") as file:
        file.write(text)


def pids(here: Path, lines: int) -> list[int]:
    until(lambda: len(reported_pids(here)) >= 2 * lines)
    return reported_pids(here)


def reported_pids(here: Path) -> list[int]:
    file = here / "pids"
    return [int(each) for each in file.read_text().split()] if file.exists() else []


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.05)

"""CPU usage of an idle `lifecycle watch`."""

from __future__ import annotations

import os
import pty
import select
import sys
import tempfile
import time
from pathlib import Path

import psutil

__all__ = ["idle_cpu_percent"]


def idle_cpu_percent(seconds: float = 10.0, *, files: int = 1000) -> float:
    """Return the CPU usage of `lifecycle watch` with a sleeping command over ``seconds``, in percent of one core."""
    with tempfile.TemporaryDirectory() as directory:
        for number in range(files):
            place = Path(directory, f"d{number % 20}")
            place.mkdir(exist_ok=True)
            Path(place, f"{number}.py").write_text("x = 1\n", encoding="utf-8")
        return _measure(directory, seconds)


def _measure(directory: str, seconds: float) -> float:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(directory)
        os.execv(sys.executable, [sys.executable, "-m", "lifecycle", "watch", "--", "sleep", "600"])
    try:
        _read(terminal, until=b"started")
        _read(terminal, settle=1.0)
        return _used(psutil.Process(pid), terminal, seconds)
    finally:
        os.kill(pid, 15)
        _read(terminal, settle=1.0)
        os.waitpid(pid, 0)
        os.close(terminal)


def _used(process: psutil.Process, terminal: int, seconds: float) -> float:
    """Return the CPU time of the process and its children as a percentage of wall time."""
    before, began = _cpu(process), time.monotonic()
    while (left := began + seconds - time.monotonic()) > 0:
        _read(terminal, settle=left)
    return 100 * (_cpu(process) - before) / (time.monotonic() - began)


def _cpu(process: psutil.Process) -> float:
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def _read(terminal: int, *, until: bytes | None = None, settle: float = 30.0) -> None:
    """Read the output until it contains ``until``, or until no output has arrived for ``settle`` seconds."""
    seen = b""
    while until is None or until not in seen:
        readable, _, _ = select.select([terminal], [], [], settle)
        if not readable:
            if until is None:
                return
            raise TimeoutError(f"the output did not contain {until!r}: {seen!r}")
        try:
            seen += os.read(terminal, 65536)
        except OSError:  # the other side is closed
            return


if __name__ == "__main__":
    print(idle_cpu_percent())

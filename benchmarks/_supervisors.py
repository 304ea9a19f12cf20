"""Supervisor programs, ours and its peers. Each is started with its defaults and keeps some commands running."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

__all__ = ["KINDS", "missing", "started"]

#: The number of seconds within which a supervisor must exit. By default, every supervisor stops its children sooner.
_ENDS = 30.0

_SUPERVISORD = """
[supervisord]
nodaemon = true
logfile = {place}/log
pidfile = {place}/pid
childlogdir = {place}

[program:child]
command = {command}
numprocs = {count}
process_name = child%(process_num)d
"""

_CIRCUS = """
[circus]
endpoint = ipc://{place}/endpoint
pubsub_endpoint = ipc://{place}/pubsub
stats_endpoint = ipc://{place}/stats

[watcher:child]
cmd = {command}
numprocesses = {count}
"""


def _ours(_place: Path, command: Sequence[str], count: int) -> list[str]:
    return [sys.executable, "-m", "benchmarks._supervised", str(count), *command]


def _supervisord(place: Path, command: Sequence[str], count: int) -> list[str]:
    config = place / "supervisord.conf"
    config.write_text(_SUPERVISORD.format(place=place, command=" ".join(command), count=count))
    return [sys.executable, "-m", "supervisor.supervisord", "-c", str(config)]


def _circus(place: Path, command: Sequence[str], count: int) -> list[str]:
    config = place / "circus.ini"
    config.write_text(_CIRCUS.format(place=place, command=" ".join(command), count=count))
    return [sys.executable, "-m", "circus.circusd", str(config)]


def _runsv(place: Path, command: Sequence[str], count: int) -> list[str]:
    assert count == 1, "there is one runsv for each child"
    script = place / "run"
    script.write_text("#!/bin/sh\nexec " + " ".join(command) + "\n")
    script.chmod(0o755)
    return ["runsv", str(place)]


#: Commands that start each supervisor once its configuration has been written to a directory.
KINDS: dict[str, Callable[[Path, Sequence[str], int], list[str]]] = {
    "ours": _ours,
    "supervisord": _supervisord,
    "circus": _circus,
    "runit": _runsv,
}


def missing() -> dict[str, str]:
    """Return the supervisors that are not installed, each with the reason."""
    reasons: dict[str, str] = {}
    for kind, module in (("supervisord", "supervisor"), ("circus", "circus")):
        if importlib.util.find_spec(module) is None:
            reasons[kind] = f"{module} is not installed; `make bench` installs it (dependency group `bench`)"
    if shutil.which("runsv") is None:
        reasons["runit"] = "runsv is not installed; `make engines` installs it (Debian: apt-get install runit)"
    return reasons


@contextmanager
def started(kind: str, place: Path, command: Sequence[str], count: int = 1) -> Iterator[psutil.Process]:
    """Run a supervisor that keeps ``count`` copies of ``command`` running. No argument may contain a space."""
    place.mkdir()
    silent = subprocess.DEVNULL
    with subprocess.Popen(KINDS[kind](place, command, count), stdout=silent, stderr=silent) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            try:
                process.wait(_ENDS)
            except subprocess.TimeoutExpired:
                process.kill()

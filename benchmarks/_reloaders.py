"""Commands that restart a program when files change, ours and others. Each runs with its default settings."""

from __future__ import annotations

import importlib.util
import os
import select
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["KINDS", "PATIENCE", "Reloader", "missing", "running", "started"]

#: The number of seconds within which a program must start again after a change.
PATIENCE = 20.0
#: The number of seconds within which a reloader must exit.
_ENDS = 10.0
_NODEMON = Path(__file__).parents[1] / ".engines" / "node_modules" / ".bin" / "nodemon"

#: Writes its process ID to the pipe named in its first argument.
_APP = """
import os, sys, time
os.write(os.open(sys.argv[1], os.O_WRONLY), b"%d\\n" % os.getpid())
time.sleep(3600)
"""


def _ours(place: Path, command: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "lifecycle", "watch", str(place), "--", *command]


def _entr(_: Path, command: Sequence[str]) -> list[str]:
    return ["entr", "-n", "-r", *command]


def _reflex(_: Path, command: Sequence[str]) -> list[str]:
    return ["reflex", "-s", "--", *command]


def _watchfiles(place: Path, command: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "watchfiles", shlex.join(command), str(place)]


def _watchmedo(place: Path, command: Sequence[str]) -> list[str]:
    program = [sys.executable, "-m", "watchdog.watchmedo", "auto-restart"]
    return [*program, "--recursive", "--directory", str(place), "--", *command]


def _nodemon(place: Path, command: Sequence[str]) -> list[str]:
    # By default, it watches only JavaScript files.
    return [str(_NODEMON), "--quiet", "--watch", str(place), "--ext", "py", "--exec", shlex.join(command)]


#: The command lines, given the directory to watch and the command to run.
KINDS: dict[str, Callable[[Path, Sequence[str]], list[str]]] = {
    "ours": _ours,
    "entr": _entr,
    "reflex": _reflex,
    "watchfiles": _watchfiles,
    "watchmedo": _watchmedo,
    "nodemon": _nodemon,
}


def missing() -> dict[str, str]:
    """Return the reloaders that are not installed, each with the reason."""
    reasons: dict[str, str] = {}
    for kind in ("entr", "reflex"):
        if shutil.which(kind) is None:
            reasons[kind] = f"{kind} is not installed; `make engines` installs it (Debian: apt-get install {kind})"
    if importlib.util.find_spec("watchdog") is None:
        reasons["watchmedo"] = "watchdog is not installed; `make bench` installs it (dependency group `bench`)"
    if not _NODEMON.exists():
        reasons["nodemon"] = "nodemon is not installed; `make engines` installs it (npm)"
    return reasons


class Reloader:
    """A running reloader. Its program reports each start through a named pipe."""

    def __init__(self, process: psutil.Process, place: Path, pipe: int) -> None:
        self.place = place
        self._process = process
        self._pipe = pipe
        self._app = 0

    def next_start(self, timeout: float = PATIENCE) -> float:
        """Wait for the next start and return its time. Raise TimeoutError if there is none."""
        readable, _, _ = select.select([self._pipe], [], [], timeout)
        at = time.perf_counter()
        if not readable:
            raise TimeoutError(f"{self._process} did not start its program within {timeout:g} s")
        self._app = int(os.read(self._pipe, 4096).split()[-1])
        return at

    def starts(self, quiet: float) -> list[float]:
        """Return the times of all starts until there has been none for ``quiet`` seconds."""
        found = [self.next_start()]
        while True:
            try:
                found.append(self.next_start(quiet))
            except TimeoutError:
                return found

    def cpu_seconds(self) -> float:
        """Return the CPU time used so far by the reloader's processes, without the program's."""
        times = [each.cpu_times() for each in self._processes()]
        return sum(each.user + each.system for each in times)

    def memory(self) -> int:
        """Return the memory in bytes that only the reloader's processes use, without the program's."""
        return sum(each.memory_full_info().uss for each in self._processes())

    def _processes(self) -> list[psutil.Process]:
        found = [self._process, *self._process.children(recursive=True)]
        return [each for each in found if each.pid != self._app]


@contextmanager
def started(kind: str, place: Path) -> Iterator[Reloader]:
    """Run a reloader that watches ``place``. The program is not among the watched files."""
    app, pipe = place.with_suffix(".app.py"), place.with_suffix(".pipe")
    app.write_text(_APP)
    os.mkfifo(pipe)
    # Open the pipe for reading and writing, so that opening does not wait for a writer, and reads never reach its end.
    fd = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        with running(KINDS[kind](place, [sys.executable, str(app), str(pipe)]), place) as process:
            yield Reloader(process, place, fd)
    finally:
        os.close(fd)


@contextmanager
def running(argv: Sequence[str], place: Path) -> Iterator[psutil.Process]:
    """Run a reloader in ``place``. entr reads the names of the files to watch from its standard input."""
    files = "\n".join(str(each) for each in place.rglob("*.py")) if argv[0] == "entr" else ""
    silent = subprocess.DEVNULL
    with subprocess.Popen(
        argv, cwd=place, stdin=subprocess.PIPE, stdout=silent, stderr=silent, text=True, start_new_session=True
    ) as process:
        assert process.stdin is not None
        if argv[0] == "entr":
            process.stdin.write(files)
            process.stdin.close()
        try:
            yield psutil.Process(process.pid)
        finally:
            _stop(psutil.Process(process.pid))


def _stop(process: psutil.Process) -> None:
    """Stop a reloader, and kill the processes that it leaves behind."""
    family = [process, *process.children(recursive=True)]
    process.terminate()
    _, alive = psutil.wait_procs(family, _ENDS if process.is_running() else 0.0)
    for each in alive:
        each.kill()

"""The cost of supervised processes: restart time, stop time, and memory with many children."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import psutil

from benchmarks._supervisors import missing, started
from lifecycle.workers import Spec, Supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["idle_cpu_percent", "restarts", "rss_over_supervisord", "stop_over_killpg"]

COUNT = 100
ROUNDS = 9
#: The number of rounds with circus, which is small because circus checks its children only every five seconds.
CIRCUS_ROUNDS = 3
#: The number of seconds after which a missing child is considered failed.
LIMIT = 60.0
#: Seconds that a child runs before it is killed. runsv and supervisord do not treat an exit within the first second as
#: a crash.
SETTLED = 1.2
#: Seconds to wait until newly started processes are idle.
REST = 0.5
SLEEP = ("sleep", "100000")


# -- restarts --------------------------------------------------------------------------------------------------------


def restarts() -> dict[str, float]:
    """Measure the seconds from a child's crash, or from a plain `Popen`, to the new process's first output."""
    kinds = [kind for kind in ("ours", "runit", "supervisord", "circus") if kind not in missing()]
    samples: dict[str, list[float]] = {kind: [] for kind in ("spawn", *kinds)}
    with TemporaryDirectory() as directory, ExitStack() as stack:
        place = Path(directory)
        bare = stack.enter_context(_Trivial.at(place, "spawn"))
        children = {kind: stack.enter_context(_Trivial.at(place, kind)) for kind in kinds}
        for kind, child in children.items():
            stack.enter_context(started(kind, place / kind, child.command))
            child.up()
        for turn in range(ROUNDS):
            time.sleep(SETTLED)
            samples["spawn"].append(bare.spawned())
            for kind, child in children.items():
                if kind != "circus" or turn < CIRCUS_ROUNDS:
                    samples[kind].append(child.replaced())
    return {kind: statistics.median(figures) for kind, figures in samples.items()}


class _Trivial:
    """A child that prints its PID when it is up, and then sleeps."""

    def __init__(self, fifo: Path, command: tuple[str, ...]) -> None:
        self.command = command
        # Opened for reading and writing, so that reads do not reach end of file when a writer exits.
        self._fd = os.open(fifo, os.O_RDWR)
        self._pid = 0

    @classmethod
    @contextmanager
    def at(cls, place: Path, name: str) -> Iterator[_Trivial]:
        """Return a supervisor that stores its files in ``place``."""
        fifo, script = place / f"{name}.fifo", place / f"{name}.sh"
        os.mkfifo(fifo)
        script.write_text(f"echo $$ > {fifo}\nexec {' '.join(SLEEP)}\n")
        child = cls(fifo, ("sh", str(script)))
        try:
            yield child
        finally:
            os.close(child._fd)

    def up(self) -> None:
        """Wait until the child is up."""
        if not select.select([self._fd], [], [], LIMIT)[0]:
            sys.exit(f"{self.command} was not started (again) within {LIMIT:g} s")
        self._pid = int(os.read(self._fd, 100))

    def replaced(self) -> float:
        """Kill the child, and return the seconds until the next one is up."""
        began = time.perf_counter()
        os.kill(self._pid, signal.SIGKILL)
        self.up()
        return time.perf_counter() - began

    def spawned(self) -> float:
        """Start the child without a supervisor, and return the seconds until it is up."""
        began = time.perf_counter()
        with subprocess.Popen(self.command, start_new_session=True) as process:
            self.up()
            taken = time.perf_counter() - began
            process.kill()
        return taken


# -- stopping --------------------------------------------------------------------------------------------------------


def stop_over_killpg() -> float:
    """Measure stopping all children with a supervisor, relative to signalling and reaping them directly."""
    return statistics.median(asyncio.run(_stopped()) / _killed() for _ in range(ROUNDS))


async def _stopped() -> float:
    specs = (Spec(f"sleep{number}", SLEEP) for number in range(COUNT))
    supervisor = Supervisor("processes", *specs, stop_order="parallel")
    await supervisor.start()
    # Work left over from starting the children must finish first.
    await asyncio.sleep(REST)
    with _undisturbed():
        began = time.perf_counter()
        await supervisor.stop()
        return time.perf_counter() - began


def _killed() -> float:
    processes = [subprocess.Popen(SLEEP, start_new_session=True) for _ in range(COUNT)]
    time.sleep(REST)
    with _undisturbed():
        began = time.perf_counter()
        for process in processes:
            os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            process.wait()
        return time.perf_counter() - began


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Run a block without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# -- memory and CPU usage --------------------------------------------------------------------------------------------


def rss_over_supervisord() -> float:
    """Return our resident memory with sleeping processes, including helpers, divided by that of supervisord."""
    figures: dict[str, int] = {}
    with TemporaryDirectory() as directory:
        for kind in ("ours", "supervisord"):
            with _keeping(kind, Path(directory)) as processes:
                figures[kind] = sum(each.memory_info().rss for each in processes)
    return figures["ours"] / figures["supervisord"]


def idle_cpu_percent(seconds: float = 10.0) -> float:
    """Return the CPU usage of our supervisor while its children sleep, in percent of one core."""
    with TemporaryDirectory() as directory, _keeping("ours", Path(directory)) as processes:
        before, began = _cpu(processes), time.monotonic()
        time.sleep(seconds)
        return 100 * (_cpu(processes) - before) / (time.monotonic() - began)


@contextmanager
def _keeping(kind: str, place: Path) -> Iterator[list[psutil.Process]]:
    """Yield the processes of an idle supervisor, without its children."""
    with started(kind, place / kind, SLEEP, COUNT) as supervisor:
        until = time.monotonic() + LIMIT
        while len(_sleeping(supervisor)) < COUNT:
            if time.monotonic() > until:
                sys.exit(f"{kind} had not started {COUNT} children within {LIMIT:g} s")
            time.sleep(0.1)
        time.sleep(SETTLED)
        sleeping = _sleeping(supervisor)
        yield [each for each in (supervisor, *supervisor.children(recursive=True)) if each not in sleeping]


def _sleeping(supervisor: psutil.Process) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for each in supervisor.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if each.name() == SLEEP[0]:
                found.append(each)
    return found


def _cpu(processes: list[psutil.Process]) -> float:
    times = [each.cpu_times() for each in processes]
    return sum(each.user + each.system for each in times)

"""`lifecycle watch`, compared with other commands that restart a program when files change.

All run with their default settings and start the same Python program, which reports its start. ``best`` is the fastest
of the others.

- ``save``: the time from saving one file to the first output of the new process.
- ``burst``: the time from saving the last of 500 files to the first output of the last new process.
- ``start``: the time from the command to the program's first output, in a directory with 50,000 files.
- ``idle``: the CPU usage and memory after that, without the program itself.
- ``lost``: the requests that fail per restart of a uvicorn server, at 100 requests per second. ``uvicorn`` is
  ``uvicorn --reload``, and ``keep_old`` is ``lifecycle watch --socket --keep-old``.

If a reloader does not restart the program within 20 seconds, its time is recorded as 20 seconds and its runs as 0.
Before it stops the old process, ours waits until no file has changed for 20 ms and compiles the changed files. entr
does neither. Before the first start, ours imports asyncio and watches each directory.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._measure import interleaved, ratio, report
from benchmarks._reloaders import KINDS, PATIENCE, Reloader, missing, started
from benchmarks._reloaders_requests import lost_requests

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks._measure import Samples

BARS = {
    "save_over_best": "at most 1.1",
    "burst_over_best": "at most 1.1",
    "start_50000_over_best": "printed",
    "save_ms": "printed",
    "burst_ms": "printed",
    "burst_runs": "printed",
    "start_50000_ms": "printed",
    "idle_cpu_percent_50000": "printed",
    "idle_memory_mib_50000": "printed",
    "lost_keep_old": "0",
    "lost": "printed",
}
ROUNDS = 15
BURSTS = 3
BURST = 500
MANY = 50_000
#: Seconds without a start after which all reloaders have settled.
QUIET = 1.0
IDLE = 5.0


def main() -> None:
    """Measure all figures and print them."""
    for reason in missing().values():
        print(reason, file=sys.stderr)
    kinds = [kind for kind in KINDS if kind not in missing()]
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        report("reloaders", _restarts(kinds, place) | _large(kinds, place) | lost_requests(kinds, place), BARS)


# -- restarts --------------------------------------------------------------------------------------------------


def _restarts(kinds: Iterable[str], directory: Path) -> dict[str, object]:
    with ExitStack() as stack:
        running = {kind: stack.enter_context(started(kind, _small(directory / kind))) for kind in kinds}
        for reloader in running.values():
            reloader.starts(QUIET)
        saves = interleaved({kind: partial(_save, each) for kind, each in running.items()}, rounds=ROUNDS)
        runs: dict[str, list[int]] = {kind: [] for kind in kinds}
        cases = {kind: partial(_burst, each, runs[kind]) for kind, each in running.items()}
        bursts = interleaved(cases, rounds=BURSTS)
    return {
        "save_over_best": _over_best(saves),
        "burst_over_best": _over_best(bursts),
        "save_ms": _medians(saves),
        "burst_ms": _medians(bursts),
        "burst_runs": {kind: statistics.median(each) for kind, each in runs.items()},
    }


def _small(place: Path) -> Path:
    """Create a directory with as many files as a burst saves."""
    place.mkdir()
    for number in range(BURST):
        (place / f"{number}.py").write_text("x = 0\n")
    return place


def _save(reloader: Reloader) -> float:
    """Save one file, wait until no more starts follow, and return the seconds from the save to the first start."""
    began = time.perf_counter()
    (reloader.place / "0.py").write_text(f"x = {began}\n")
    return reloader.starts(QUIET)[0] - began


def _burst(reloader: Reloader, runs: list[int]) -> float:
    for number in range(BURST):
        (reloader.place / f"{number}.py").write_text(f"x = {time.perf_counter()}\n")
    ended = time.perf_counter()
    try:
        starts = reloader.starts(QUIET)
    except TimeoutError:
        runs.append(0)
        return PATIENCE
    runs.append(len(starts))
    return starts[-1] - ended


# -- a large directory -----------------------------------------------------------------------------------------


def _large(kinds: Iterable[str], directory: Path) -> dict[str, object]:
    place = directory / "large"
    for number in range(MANY // 200):
        folder = place / f"d{number}"
        folder.mkdir(parents=True)
        for file in range(200):
            (folder / f"{file}.py").write_text("x = 0\n")
    taken = {kind: _idle(kind, place) for kind in kinds}
    others = [seconds for kind, (seconds, _, _) in taken.items() if kind != "ours"]
    return {
        "start_50000_over_best": taken["ours"][0] / min(others) if others else None,
        "start_50000_ms": {kind: round(each[0] * 1000, 1) for kind, each in taken.items()},
        "idle_cpu_percent_50000": {kind: round(each[1], 2) for kind, each in taken.items()},
        "idle_memory_mib_50000": {kind: round(each[2], 1) for kind, each in taken.items()},
    }


def _idle(kind: str, place: Path) -> tuple[float, float, float]:
    """Return the seconds until the program has started, and the CPU usage in percent and memory in MiB after that."""
    began = time.perf_counter()
    with started(kind, place) as reloader:
        seconds = reloader.next_start() - began
        _settle(reloader)
        before = reloader.cpu_seconds()
        time.sleep(IDLE)
        used = 100 * (reloader.cpu_seconds() - before) / IDLE
        memory = reloader.memory() / 2**20
    place.with_suffix(".pipe").unlink()
    return seconds, used, memory


def _settle(reloader: Reloader) -> None:
    """Wait until the reloader has read the directory: until it uses no CPU time for a second."""
    before = -1.0
    while (now := reloader.cpu_seconds()) - before > 0.01:  # psutil measures CPU time in steps of 0.01 s
        before = now
        time.sleep(QUIET)


# -- figures ---------------------------------------------------------------------------------------------------


def _over_best(samples: Samples) -> float | None:
    """Return the ratio of our time to that of the fastest other reloader."""
    others = [kind for kind in samples if kind != "ours"]
    if not others:
        return None
    return ratio(samples, "ours", min(others, key=lambda kind: statistics.median(samples[kind])))


def _medians(samples: Samples) -> dict[str, float]:
    return {kind: round(statistics.median(each) * 1000, 1) for kind, each in samples.items()}


if __name__ == "__main__":
    main()

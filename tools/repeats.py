"""Repeat the suite to find unstable tests: ``python -m tools.repeats [runs]``, by default 20.

During the last two runs, one busy loop per core runs as well. After the last run, the tool prints each failure with its
count and text, and the tests with the highest median duration. It exits with 1 if any test failed. Arguments after the
number are passed to pytest: ``python -m tools.repeats 5 tests/realtime``.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["main"]

RUNS, LOADED, SLOWEST = 20, 2, 20

_BUSY = "while True: pass"
_WORKERS = ("-n", "auto", "--dist", "worksteal")


def main(argv: Sequence[str]) -> int:
    """Run the suite repeatedly, and return 1 if a test failed."""
    runs, rest = int(argv[0]) if argv else RUNS, list(argv[1:])
    failures: dict[str, list[str]] = defaultdict(list)
    seconds: dict[str, list[float]] = defaultdict(list)
    for run in range(runs):
        loaded = run >= runs - LOADED
        for name, took, failure in _cases(rest, loaded=loaded):
            seconds[name].append(took)
            if failure:
                failures[name].append(f"run {run + 1}: {failure}")
        print(f"run {run + 1} of {runs}{', loaded' * loaded}: {len(failures)} tests have failed so far", flush=True)
    slow = sorted(seconds, key=lambda name: -statistics.median(seconds[name]))[:SLOWEST]
    print("", *(f"{statistics.median(seconds[name]):7.2f} s  {name}" for name in slow), sep="\n")
    print("", *(f"{name}\n  {words}" for name, told in sorted(failures.items()) for words in told), sep="\n")
    return 1 if failures else 0


def _cases(arguments: list[str], *, loaded: bool) -> Iterator[tuple[str, float, str]]:
    """Yield each test in one run, with its duration in seconds and its failure."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        report = Path(directory, "report.xml")
        for _ in range((os.cpu_count() or 1) if loaded else 0):
            busy = stack.enter_context(subprocess.Popen([sys.executable, "-c", _BUSY]))
            stack.callback(busy.kill)
        pytest = [sys.executable, "-m", "pytest", *_WORKERS, "-q", f"--junitxml={report}", *arguments]
        subprocess.run(pytest, check=False, stdout=subprocess.DEVNULL)
        if not report.exists():
            sys.exit(f"pytest wrote no report: {' '.join(pytest)}")
        yield from (_case(each) for each in ET.parse(report).iter("testcase"))


def _case(element: ET.Element) -> tuple[str, float, str]:
    failure = next((each for kind in ("failure", "error") for each in element.iter(kind)), None)
    words = "" if failure is None else (failure.get("message") or "failed").splitlines()[0]
    return f"{element.get('classname')}::{element.get('name')}", float(element.get("time") or 0), words


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

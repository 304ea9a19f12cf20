"""Run the suite on each installed Python and on other event loops, and print a table: ``python -m tools.matrix``.

It runs the whole suite on asyncio's default loop, the tests in real time on uvloop, and the tests in virtual time with
``asyncio.eager_task_factory``. Arguments select interpreters, by default every installed version from 3.11. `make`
creates an environment for each. The exit status is 1 if a test failed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

from tools.release.environments import minor_of, pythons

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["main"]

#: The make targets that run the tests, by event loop.
_LOOPS = {"asyncio": "suite", "uvloop": "uvloop", "eager": "eager"}


def main(names: Sequence[str]) -> int:
    """Run all tests, print the table and the failures, and return 1 if a test failed."""
    print("| Python | event loop | command | result |", "| --- | --- | --- | --- |", sep="\n", flush=True)
    failures: list[str] = []
    for version, python in pythons([*names]).items():
        for loop, target in _runs(version):
            result, failed = _run(target, python)
            print(f"| {version} | {loop} | `make {target} PYTHON=python{minor_of(version)}` | {result} |", flush=True)
            failures += [f"{version}, {loop}: {line}" for line in failed]
    print("", *failures, sep="\n")
    return 1 if failures else 0


def _runs(version: str) -> Iterator[tuple[str, str]]:
    for loop, target in _LOOPS.items():
        # asyncio has eager tasks since Python 3.12.
        if loop != "eager" or version.split(".")[1] != "11":
            yield loop, target


def _run(target: str, python: str) -> tuple[str, list[str]]:
    """Return the counts of tests in one run, and its failures."""
    command = ["make", "--silent", target, f"PYTHON={python}"]
    done = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = done.stdout.splitlines() or [""]
    failed = [line for line in lines if re.match(r"(FAILED|ERROR) ", line)]
    # pytest ends with a line such as "6397 passed, 2 skipped in 176.56s".
    counts = re.sub(r" in [\d.]+s.*", "", lines[-1].strip(" ="))
    return counts, failed or (lines[-20:] if done.returncode else [])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

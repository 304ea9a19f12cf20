"""Coverage-guided fuzzers of the parsers at the boundaries: ``python -m tests.chaos.fuzz --seconds 60 [NAME …]``.

Each target of `tests.chaos.fuzz_targets` runs in its own process, where atheris changes inputs and keeps those that
reach new code. The process ends at the first finding, and the report contains the error and the input. The options and
the table are those of `tests.chaos.all`.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chaos.report import Report

if TYPE_CHECKING:
    from tests.chaos.report import Storm

__all__ = ["STORMS", "storm"]

ROOT = Path(__file__).parents[2]

NAMES = ("patterns", "commands", "signatures", "frames", "env-files", "gitignore", "cloudevents")

#: Seconds after which an input counts as a hang, and the maximum number of bytes in an input.
_HANG, _LONGEST = 10, 2048


def storm(seconds: float, seed: int, *, target: str) -> Report:
    """Fuzz one target."""
    if importlib.util.find_spec("atheris") is None:
        missing = "has no wheel for this Python" if sys.version_info >= (3, 14) else "is not installed"
        pytest.skip(f"atheris {missing}; it has wheels for Linux on x86-64 and Python 3.11 to 3.13")
    with tempfile.TemporaryDirectory() as directory:
        options = [
            f"-max_total_time={max(1, round(seconds))}",
            # 0 would select a random seed.
            f"-seed={1 + seed % (2**32 - 1)}",
            f"-timeout={_HANG}",
            f"-max_len={_LONGEST}",
            f"-artifact_prefix={directory}/libfuzzer-",
        ]
        done = subprocess.run(
            [sys.executable, "-m", "tests.chaos._fuzzed", target, directory, *options],
            cwd=ROOT,
            capture_output=True,
            check=False,
        )
        output = done.stderr.decode(errors="replace") + done.stdout.decode(errors="replace")
        runs = re.findall(r"^#(\d+)", output, re.MULTILINE)
        report = Report(operations=int(runs[-1]) if runs else 0)
        if done.returncode:
            _find(report, output, Path(directory))
    return report


def _find(report: Report, output: str, directory: Path) -> None:
    wrong = directory / "crash-input"
    if wrong.exists():
        report.lost.append(f"{wrong.read_bytes()!r}: {output[output.find('Traceback') :][:3000]}")
    else:
        slow = [path.read_bytes() for path in directory.glob("libfuzzer-*")]
        report.stuck.append(f"{slow}: {output[-3000:]}")


STORMS: dict[str, Storm] = {name: partial(storm, target=name) for name in NAMES}


if __name__ == "__main__":
    # `tests.chaos.all` also contains these storms.
    from tests.chaos.all import run_storms

    sys.exit(run_storms(STORMS, "tests.chaos.fuzz", __doc__))

"""The cases that were recorded with TaskFlow, in random order on a PostgreSQL server."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

from tests.chaos.report import Report
from tests.conformance import flows
from tests.engines import require

__all__ = ["storm"]

FILE = Path(__file__).parents[1] / "data" / "taskflow_conformance.json"


def storm(seconds: float, seed: int) -> Report:
    """Play each case once, or as many as the time allows."""
    require("postgres")
    report = Report()
    plays = list(flows.plays(json.loads(FILE.read_text())))
    random.Random(seed).shuffle(plays)
    end = time.monotonic() + seconds
    for name, play in plays:
        if time.monotonic() > end:
            break
        report.lost += [f"{name}: {wrong}" for wrong in play("postgres")]
        report.operations += 1
    report.notes = f"{report.operations} of {len(plays)} cases"
    return report

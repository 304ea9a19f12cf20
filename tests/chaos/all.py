"""Every storm in turn: ``python -m tests.chaos.all --seconds 60 --seed 7 [NAME …]``.

Without names, all storms in `STORMS` run. A table with the counts of each storm comes last. The exit status is 1 if
anything was lost, done twice or stuck. A seed repeats the random choices of a run, but the timing still depends on the
machine. ``LIFECYCLE_CHAOS`` and ``LIFECYCLE_SEED`` set the defaults of the options.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import random
import sys
import traceback
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests import postgres
from tests.chaos import (
    bridge,
    crash_points,
    flows,
    fuzz,
    inbox,
    jobs,
    kill_points,
    leader,
    model,
    pool,
    recorded_cases,
    schedules,
    supervisor,
    workflow_crash_points,
    workflows,
)
from tests.chaos.report import Report

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.chaos.report import Storm

__all__ = ["STORMS", "run_storm", "run_storms", "seed"]

#: To add a storm, write a function that returns a `Report`, and add one line.
STORMS: dict[str, Storm] = {
    "supervisor": supervisor.storm,
    "supervisor-model": model.storm,
    "pool": pool.storm,
    "inbox": inbox.storm,
    "flows": flows.storm,
    "flows-postgres": partial(flows.storm, store="postgres"),
    "crash-points": crash_points.storm,
    "workflows": workflows.storm,
    "workflows-postgres": partial(workflows.storm, store="postgres"),
    "workflow-crash-points": workflow_crash_points.storm,
    "kill-points": kill_points.storm,
    "kill-points-postgres": partial(kill_points.storm, store="postgres"),
    "recorded-cases-postgres": recorded_cases.storm,
    "jobs": jobs.storm,
    "jobs-postgres": partial(jobs.storm, store="postgres"),
    "schedules": schedules.storm,
    "schedules-postgres": partial(schedules.storm, store="postgres"),
    "bridge": bridge.storm,
    "bridge-cluster": bridge.cluster_storm,
    "leader": leader.storm,
    "leader-cluster": leader.cluster_storm,
    **{f"fuzz-{name}": target for name, target in fuzz.STORMS.items()},
}

#: Seconds by which a storm may exceed its time. Each wait in a storm has a shorter limit.
_GRACE = 600.0

_ROW = "{:24} {:>10} {:>6} {:>6} {:>6} {:>6}  {}"


def seed() -> int:
    """Return the seed in ``LIFECYCLE_SEED``, or a random one."""
    return int(os.environ.get("LIFECYCLE_SEED", random.randrange(2**32)))


def run_storms(
    storms: Mapping[str, Storm], program: str, doc: str | None, arguments: Sequence[str] | None = None
) -> int:
    """Run the storms that ``arguments`` name, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=doc)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("LIFECYCLE_CHAOS", "60")))
    parser.add_argument("--seed", type=int, default=seed())
    parser.add_argument("names", metavar="NAME", nargs="*", help=", ".join(storms))
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - storms.keys():
        parser.error(f"NAME must be one of {', '.join(storms)}, got {', '.join(sorted(unknown))}")
    rows: list[str] = []
    wrong = 0
    for name in given.names or storms:
        print(f"{name}: {given.seconds:g} s with LIFECYCLE_SEED={given.seed}", flush=True)
        faulthandler.dump_traceback_later(2 * given.seconds + _GRACE, exit=True, file=2)
        try:
            report = run_storm(storms[name], given.seconds, given.seed)
        except pytest.skip.Exception as reason:
            print(f"  skipped: {reason}", flush=True)
            rows.append(f"{name:24} skipped")
            continue
        wrong += len(report.violations)
        counts = map(len, (report.lost, report.double, report.stuck))
        rows.append(_ROW.format(name, report.operations, report.kills, *counts, given.seed))
    faulthandler.cancel_dump_traceback_later()
    postgres.stop()
    print(_ROW.format("storm", "operations", "kills", "lost", "double", "stuck", "seed"), *rows, sep="\n")
    return bool(wrong)


def run_storm(storm: Storm, seconds: float, seed: int) -> Report:
    """Return the storm's report, and print its figures and violations. A storm that raises an error is stuck."""
    try:
        report = storm(seconds, seed)
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # the other storms must still run
        traceback.print_exc()
        report = Report(stuck=[f"{type(error).__name__}: {error}"])
    print(*(f"  {line}" for line in (report.notes, *report.violations) if line), sep="\n", flush=True)
    return report


if __name__ == "__main__":
    # Failures are part of every storm.
    logging.getLogger("lifecycle").setLevel(logging.CRITICAL)
    sys.exit(run_storms(STORMS, "tests.chaos.all", __doc__))

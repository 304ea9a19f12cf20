"""The program's resource usage over time, and the check that it does not grow.

In a long run, the median of the second quarter is compared with the median of the last quarter. Caches are full by
then, so nothing should grow. The sizes of files are compared in the same way, across all runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

import psutil

from tests.guards import is_guard
from tests.soak.flow_jobs import FILE as FLOWS
from tests.soak.program import LOG
from tests.soak.webhooks import FILE as INBOX

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.soak.history import History
    from tests.soak.lives import Life

__all__ = ["JUDGED", "Series", "Table", "measured", "on_disk"]

#: The minimum duration, in seconds, of a run and of the whole soak before resources are compared.
JUDGED = 60.0
JUDGED_ON_DISK = 240.0

_MEGABYTE = 1e6


@dataclass(frozen=True)
class Figure:
    """A figure and its limits: the median may grow by a share of its value plus an absolute amount."""

    name: str
    share: float
    amount: float


#: Figures whose limits allow small random variation. A leak per event exceeds them.
_HELD = (
    Figure("memory, MB", 0.05, 3.0),
    Figure("memory of the guard, MB", 0.05, 1.0),
    Figure("objects", 0.05, 3000),
    Figure("tasks", 0.1, 10),
    Figure("threads", 0.1, 4),
    Figure("descriptors", 0.1, 10),
    Figure("processes", 0.1, 4),
    Figure("cgroups", 0.1, 4),
)
_FILES = (
    Figure("inbox on disk, MB", 0.5, 0.5),
    Figure("flows on disk, MB", 0.5, 0.5),
    Figure("other files on disk, MB", 0.5, 0.5),
)
FIGURES = {figure.name: figure for figure in (*_HELD, *_FILES)}


@dataclass
class Series:
    """The samples of each figure, in order."""

    samples: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, at: float, measured: dict[str, float]) -> None:
        """Add the measurements made at the time ``at``."""
        for name, value in measured.items():
            self.samples.setdefault(name, []).append((at, value))

    def rows(self) -> Iterator[tuple[str, float, float, float]]:
        """Yield each figure, its medians in the second and the last quarter, and the limit for the latter."""
        for name, samples in self.samples.items():
            quarters = _quarters(samples)
            if quarters[1] and quarters[3]:
                before, after = median(quarters[1]), median(quarters[3])
                figure = FIGURES[name]
                yield name, before, after, before * (1 + figure.share) + figure.amount


def _quarters(samples: list[tuple[float, float]]) -> list[list[float]]:
    begin, end = samples[0][0], samples[-1][0]
    span = max(end - begin, 1e-9)
    quarters: list[list[float]] = [[], [], [], []]
    for at, value in samples:
        quarters[min(3, int(4 * (at - begin) / span))].append(value)
    return quarters


class Table:
    """The report on a series of samples. A series that is too short passes."""

    def __init__(self, title: str, series: Series, *, judged: bool) -> None:
        self.title, self.judged = title, judged
        self._rows = list(series.rows())

    def wrong(self) -> list[str]:
        """Return the figures that have grown beyond their limits."""
        if not self.judged:
            return []
        return [
            f"{self.title}: {name} grew from {before:.4g} to {after:.4g}, and {most:.4g} is the most"
            for name, before, after, most in self._rows
            if after > most
        ]

    def __str__(self) -> str:
        head = f"{self.title}{'' if self.judged else ' (too short to be judged)'}"
        lines = [f"{head:44} {'2nd quarter':>12} {'last quarter':>12} {'at most':>12}"]
        for name, before, after, most in self._rows:
            mark = "  GREW" if self.judged and after > most else ""
            lines.append(f"  {name:42} {before:12.1f} {after:12.1f} {most:12.1f}{mark}")
        return "\n".join(lines)


def measured(life: Life, history: History) -> dict[str, float]:
    """Return the resources that a run currently uses, or nothing if the run has just finished."""
    try:
        program = psutil.Process(life.process.pid)
        with program.oneshot():
            found = {"memory, MB": program.memory_info().rss / _MEGABYTE, "descriptors": program.num_fds()}
        children = program.children(recursive=True)
        guards = [child.memory_info().rss for child in children if is_guard(child)]
    except psutil.Error:
        return {}
    tasks, threads = history.sample
    found |= {"processes": len(children), "cgroups": len(life.cgroups())}
    found |= {"tasks": tasks, "threads": threads} if tasks else {}
    found |= {"objects": history.objects} if history.objects else {}
    return found | ({"memory of the guard, MB": sum(guards) / _MEGABYTE} if guards else {})


def on_disk(directory: Path) -> dict[str, float]:
    """Return the sizes of files that could fill a disk, except the soak's notes."""
    sizes = {"inbox": 0, "flows": 0, "other files": 0}
    for path in directory.rglob("*"):
        kind = {INBOX: "inbox", FLOWS: "flows", LOG: "other files"}
        name = next((what for start, what in kind.items() if start in (path.name[: len(start)], path.parts[-2])), None)
        try:
            sizes[name or "inbox"] += path.stat().st_size if name else 0
        except OSError:
            continue
    return {f"{name} on disk, MB": size / _MEGABYTE for name, size in sizes.items()}

"""Shared benchmark code: interleaved rounds, median ratios, and output."""

from __future__ import annotations

import json
import statistics
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Samples", "difference", "interleaved", "ratio", "report"]

#: One figure per case and round. The n-th figures of all cases come from the same round.
Samples = dict[str, list[float]]


def interleaved(cases: Mapping[str, Callable[[], float]], *, rounds: int, warmup: int = 1) -> Samples:
    """Measure each case once per round, in turn, so that changes in the machine's speed affect all cases equally."""
    samples: Samples = {name: [] for name in cases}
    for turn in range(-warmup, rounds):
        names = list(cases)[:: 1 if turn % 2 else -1]
        for name in names:
            figure = cases[name]()
            if turn >= 0:
                samples[name].append(figure)
    return samples


def ratio(samples: Samples, over: str, under: str) -> float:
    """Return the median of ``over`` divided by ``under``, computed per round."""
    return statistics.median(a / b for a, b in zip(samples[over], samples[under], strict=True))


def difference(samples: Samples, more: str, less: str) -> float:
    """Return the median of ``more`` minus ``less``, computed per round."""
    return statistics.median(a - b for a, b in zip(samples[more], samples[less], strict=True))


def report(
    title: str, results: Mapping[str, object], bars: Mapping[str, str], argv: Sequence[str] | None = None
) -> None:
    """Print ``results`` as one JSON object with ``--json``, otherwise as a table with the limit next to each figure.

    No figure can be less than 0. If a difference is, what it measures is smaller than the noise. Such a figure is not
    measured: it is null, and stderr shows the reason.
    """
    arguments = sys.argv[1:] if argv is None else argv
    shown = {name: _rounded(name, value) for name, value in results.items()}
    if "--json" in arguments:
        print(json.dumps(shown))
        return
    print(title)
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        print(f"  {name:<{width}}  {value!s:>10}  {bars.get(name, '')}".rstrip())


def _rounded(name: str, value: object) -> object:
    if isinstance(value, int | float) and value < 0:
        print(f"{name} is not measured, because it is smaller than the noise: {value:.3g}", file=sys.stderr)
        return None
    return round(value, 3) if isinstance(value, float) else value

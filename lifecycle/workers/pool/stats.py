"""What a pool has to tell of itself in numbers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lifecycle.workers.model import ProbeResult

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CallTimes", "PoolStats"]

#: How many of the last calls the quantiles are of.
_LAST = 1000


@dataclass(frozen=True, slots=True)
class PoolStats:
    """A pool at one moment."""

    #: Members that are there or on their way: idle + busy + degraded + starting.
    size: int
    #: Members without a call, ready for one.
    idle: int
    #: Members that have a call.
    busy: int
    #: Members that do not feel well and get no calls until they do.
    degraded: int
    #: Members that are not ready yet, with those that wait for their start.
    starting: int
    #: Members that finish their last call or end.
    stopping: int
    #: Calls that wait for a member.
    queued: int
    #: The share of all seats that are taken, of those that a pool of full size has.
    saturation: float
    #: Calls that have had their outcome, whatever it was.
    calls: int
    #: Members that were started in place of one that was lost.
    restarts: int
    #: Seconds that calls waited for a member and that they ran, of the last 1000: the median, and what 19 of 20 met.
    wait_p50: float
    wait_p95: float
    run_p50: float
    run_p95: float

    @property
    def verdict(self) -> ProbeResult:
        """Whether it is of use: it is, unless all of its members are unwell."""
        return ProbeResult(
            healthy=self.degraded < max(1, self.size),
            message=f"{self.idle} idle, {self.busy} busy, {self.starting} starting, {self.degraded} degraded",
        )


class CallTimes:
    """How long calls took."""

    def __init__(self) -> None:
        self.calls: int = 0
        self._waits: deque[float] = deque(maxlen=_LAST)
        self._runs: deque[float] = deque(maxlen=_LAST)

    def add(self, waited: float, ran: float) -> None:
        """A call had its outcome."""
        self.calls += 1
        self._waits.append(waited)
        self._runs.append(ran)

    def quantiles(self) -> dict[str, float]:
        """The figures of `PoolStats` that are of the last calls."""
        waits, runs = sorted(self._waits), sorted(self._runs)
        return {
            "wait_p50": _quantile(waits, 0.5),
            "wait_p95": _quantile(waits, 0.95),
            "run_p50": _quantile(runs, 0.5),
            "run_p95": _quantile(runs, 0.95),
        }


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

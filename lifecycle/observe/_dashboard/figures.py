"""What is measured for an open page, beside the state: latencies of patterns, memory of processes, CPU of this one.

Memory is read from /proc, and where that is not, by psutil if it is there.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict, deque
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

from lifecycle import hooks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Self

__all__ = ["FRESH", "Figures", "Latencies", "Latency", "memory_of"]

#: Seconds for which what was measured is good enough.
FRESH: Final = 2.0

#: Calls of a pattern that are remembered, and patterns; the one that was called longest ago is forgotten first.
_LAST, _MOST = 200, 2000

_PROC = Path("/proc")


class Latency(TypedDict):
    """Of the last calls of a pattern: seconds in the median, and what 19 of 20 met; ``count`` is of all calls."""

    p50: float
    p95: float
    count: int


class Latencies:
    """Listens to ``hooks.handler_finished`` as long as it is entered, for every router of the process."""

    def __init__(self) -> None:
        self._durations: OrderedDict[str, deque[float]] = OrderedDict()
        self._counts: dict[str, int] = {}

    def __enter__(self) -> Self:
        """Listen."""
        hooks.handler_finished.connect(self._finished)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Listen no longer."""
        hooks.handler_finished.disconnect(self._finished)

    def of(self, pattern: str) -> Latency | None:
        """The figures of ``pattern``; None before its first call ended."""
        last = self._durations.get(pattern)
        if not last:
            return None
        ordered = sorted(last)
        return Latency(p50=_quantile(ordered, 0.5), p95=_quantile(ordered, 0.95), count=self._counts[pattern])

    def all(self) -> dict[str, Latency]:
        """The figures of every pattern that was called."""
        return {pattern: found for pattern in self._durations if (found := self.of(pattern)) is not None}

    def _finished(self, sender: object, *, pattern: str, duration: float, **_: Any) -> None:  # noqa: ARG002
        durations = self._durations.get(pattern)
        if durations is None:
            durations = self._durations[pattern] = deque(maxlen=_LAST)
            self._counts[pattern] = 0
            if len(self._durations) > _MOST:
                del self._counts[self._durations.popitem(last=False)[0]]
        durations.append(duration)
        self._durations.move_to_end(pattern)
        self._counts[pattern] += 1


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class _Told(TypedDict):
    latency: dict[str, Latency]
    memory: dict[int, int]
    cpu: float


class Figures:
    """What is measured beside the state: latencies of patterns, memory of processes, and CPU of this one.

    Measured once for all readers.
    """

    def __init__(self, latencies: Latencies) -> None:
        self._latencies = latencies
        self._told = _Told(latency={}, memory={}, cpu=0.0)
        self._at, self._cpu = time.monotonic(), time.process_time()
        self._until = 0.0

    def of(self, pids: Iterable[int]) -> _Told:
        """The figures as they were within the last two seconds; ``pids`` are those whose memory is wanted."""
        now = time.monotonic()
        if now >= self._until:
            self._told = _Told(latency=self._latencies.all(), memory=memory_of(pids), cpu=self._share(now))
            self._until = now + FRESH
        return self._told

    def _share(self, now: float) -> float:
        """Of one core, since the last time."""
        cpu = time.process_time()
        share = (cpu - self._cpu) / max(1e-3, now - self._at)
        self._at, self._cpu = now, cpu
        return share


def memory_of(pids: Iterable[int]) -> dict[int, int]:
    """Resident bytes by process id, of those that could be read: one that is gone has none."""
    read = _reader()
    return {pid: size for pid in pids if (size := read(pid))}


@cache
def _reader() -> Callable[[int], int]:
    if (_PROC / "self/statm").exists():
        return _from_proc
    try:
        import psutil
    except ImportError:
        return lambda _: 0

    def from_psutil(pid: int) -> int:
        with suppress(psutil.Error):
            return int(psutil.Process(pid).memory_info().rss)
        return 0

    return from_psutil


def _from_proc(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int((_PROC / str(pid) / "statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0

"""What is measured for an open page, next to the state: latencies of routes, memory of processes, CPU of this one.

Memory is read from /proc, and where that is not, by psutil if it is there.
"""

from __future__ import annotations

import os
import time
from collections import Counter, OrderedDict, deque
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

from lifecycle import hooks
from lifecycle._text import component_name
from lifecycle.control.router import Router
from lifecycle.observe._http.streams import event
from lifecycle.observe._snapshot.nodes import router_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Self

    from lifecycle.observe.console import Console

__all__ = ["FRESH", "Figures", "Latencies", "Latency", "memory_of"]

#: Seconds for which what was measured is good enough.
FRESH: Final = 2.0

#: Calls of a route that are remembered, and routes; the one that was called longest ago is forgotten first.
_LAST, _MOST = 200, 2000

_PROC = Path("/proc")


class Latency(TypedDict):
    """Of the last calls of a route: seconds in the median, and what 19 of 20 met; ``count`` is of all calls."""

    p50: float
    p95: float
    count: int


class Latencies:
    """Listens to ``hooks.handler_finished`` as long as it is entered, for every router of the process.

    A route is a router and a pattern: two routers may have the same pattern.
    """

    def __init__(self) -> None:
        self._durations: OrderedDict[tuple[object, str], deque[float]] = OrderedDict()
        self._counts: dict[tuple[object, str], int] = {}

    def __enter__(self) -> Self:
        """Listen."""
        hooks.handler_finished.connect(self._finished)
        hooks.router_stopped.connect(self._stopped)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Listen no longer."""
        hooks.handler_finished.disconnect(self._finished)
        hooks.router_stopped.disconnect(self._stopped)

    def of(self, pattern: str, router: object = None) -> Latency | None:
        """The figures of ``pattern`` in ``router``; None before its first call ended."""
        last = self._durations.get((router, pattern))
        if not last:
            return None
        ordered = sorted(last)
        count = self._counts[router, pattern]
        return Latency(p50=_quantile(ordered, 0.5), p95=_quantile(ordered, 0.95), count=count)

    def all(self, router: object = None) -> dict[str, Latency]:
        """The figures of every pattern of ``router`` that was called."""
        patterns = [pattern for owner, pattern in self._durations if owner is router]
        return {pattern: found for pattern in patterns if (found := self.of(pattern, router)) is not None}

    def _finished(self, router: object, *, pattern: str, duration: float, **_: Any) -> None:
        route = router, pattern
        durations = self._durations.get(route)
        if durations is None:
            durations = self._durations[route] = deque(maxlen=_LAST)
            self._counts[route] = 0
            if len(self._durations) > _MOST:
                del self._counts[self._durations.popitem(last=False)[0]]
        durations.append(duration)
        self._durations.move_to_end(route)
        self._counts[route] += 1

    def _stopped(self, _sender: object, *, router: object) -> None:
        """Let go of a router that has ended."""
        for route in [route for route in self._durations if route[0] is router]:
            del self._durations[route], self._counts[route]


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class _Told(TypedDict):
    #: By pattern; by the ids of routes where several routers have the pattern.
    latency: dict[str, Latency]
    memory: dict[int, int]
    cpu: float


class Figures:
    """What is measured next to the state: latencies of routes, memory of processes, and CPU of this one.

    Measured and written once for all readers.
    """

    def __init__(self, latencies: Latencies, console: Console) -> None:
        self._latencies = latencies
        self._console = console
        self._message = b""
        self._at, self._cpu = time.monotonic(), time.process_time()
        self._until = 0.0

    def message(self, pids: Iterable[int]) -> bytes:
        """The figures as they were within the last two seconds; ``pids`` are those whose memory is wanted."""
        now = time.monotonic()
        if now >= self._until:
            self._message = event(
                _Told(latency=self._latency(), memory=memory_of(pids), cpu=self._share(now)), "figures"
            )
            self._until = now + FRESH
        return self._message

    def _latency(self) -> dict[str, Latency]:
        routers = [each for each in self._console.lifetime.components() if isinstance(each, Router)]
        found = [self._latencies.all(router) for router in routers]
        owners = Counter(pattern for each in found for pattern in each)
        return {
            pattern if owners[pattern] == 1 else f"{name}/route:{pattern}": latency
            for name, each in zip(router_ids(map(component_name, routers)), found, strict=True)
            for pattern, latency in each.items()
        }

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

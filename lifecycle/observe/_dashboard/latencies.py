"""How long the handlers of each pattern took lately."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, TypedDict

from lifecycle import hooks

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["Latencies", "Latency"]

#: Calls of a pattern that are remembered, and patterns; the one that was called longest ago is forgotten first.
_LAST, _MOST = 200, 2000


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

"""What a supervisor was told to do about its children, and the budget that it keeps."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from lifecycle.backoff import Intensity
from lifecycle.errors import RestartLimitReached, WorkerFailed
from lifecycle.workers._policy import room_at
from lifecycle.workers.specs import AutoShutdown, OnLimit, StopOrder, Strategy

__all__ = ["Budget", "Rules"]


@dataclass(frozen=True, slots=True)
class Rules:
    """How a supervisor deals with its children, as it was told."""

    strategy: Strategy
    intensity: Intensity | None
    on_limit: OnLimit
    auto_shutdown: AutoShutdown
    stop_order: StopOrder

    def __post_init__(self) -> None:
        if not isinstance(self.intensity, Intensity | None):
            raise TypeError(f"intensity={self.intensity!r} is no Intensity; give Intensity(5, within=30)")


class Budget:
    """The restarts that a supervisor may still make, and the errors that used them up."""

    def __init__(self, name: str, rules: Rules) -> None:
        self._name = name
        self._intensity = rules.intensity
        self._pauses = rules.on_limit is OnLimit.PAUSE
        # Newest first; with a pause, some lie in the future.
        self._restarts: tuple[float, ...] = ()
        kept = 0 if rules.intensity is None else rules.intensity.limit + 1
        self._errors: deque[Exception] = deque(maxlen=max(10, kept))

    def spend(self, now: float, child: str, error: BaseException) -> float:
        """Count one restart of ``child`` because of ``error``; when it may take place.

        Raises:
            RestartLimitReached: if it may not, and nobody wants to wait.
        """
        if self._intensity is None:
            return now
        self._errors.append(_exception(child, error))
        if self._pauses:
            at = room_at(self._intensity, self._restarts, now)
            self._restarts = self._intensity.add(self._restarts, at)
            return at
        self._restarts = self._intensity.add(self._restarts, now)
        if self._intensity.exceeded(self._restarts):
            raise self._spent(self._intensity, child)
        return now

    def _spent(self, intensity: Intensity, child: str) -> RestartLimitReached:
        restarts = f"{intensity.limit} restart{'s'[: intensity.limit != 1]}"
        limit = RestartLimitReached(
            f"{self._name!r} gives up: more than {restarts} within {intensity.within:g} s, "
            f"the last of {child!r}: {self._errors[-1]}"
        )
        last = list(self._errors)[-(intensity.limit + 1) :]
        limit.__cause__ = ExceptionGroup(f"the last errors of the children of {self._name!r}", last)
        return limit


def _exception(child: str, error: BaseException) -> Exception:
    """As a group of exceptions can hold it; a cancellation that nobody asked for is none."""
    if isinstance(error, Exception):
        return error
    wrapped = WorkerFailed(f"{child!r} was cancelled, and nobody of us asked for it")
    wrapped.__cause__ = error
    return wrapped

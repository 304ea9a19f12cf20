"""How many restarts are left, of a supervisor or a pool; plain sums, whose clock is an argument."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

from lifecycle.errors import RestartLimitReached, WorkerFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lifecycle.backoff import Intensity

__all__ = ["Budget"]


#: Errors that are kept for the group that a supervisor gives up with.
_ERRORS: Final = 100


class Budget:
    """The restarts that ``name`` may still make, and the errors that used them up.

    Without an ``intensity`` there is no end to them. When it is used up, one that ``pauses`` says when it is not any
    more; else that is an error.
    """

    def __init__(self, name: str, intensity: Intensity | None, *, pauses: bool = False) -> None:
        self._name = name
        self._intensity = intensity
        self._pauses = pauses
        # Newest first; with a pause, some lie in the future.
        self._restarts: deque[float] = deque()
        kept = 0 if intensity is None else min(intensity.limit + 1, _ERRORS)
        self._errors: deque[Exception] = deque(maxlen=kept)

    def spend(self, now: float, child: str, error: BaseException) -> float:
        """Count one restart of ``child`` because of ``error``; when it may take place.

        Raises:
            RestartLimitReached: if it may not, and nobody wants to wait.
        """
        if self._intensity is None:
            return now
        self._errors.append(_exception(child, error))
        if self._pauses:
            at = _room_at(self._intensity, self._restarts, now)
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
        limit.__cause__ = ExceptionGroup(f"the last errors of the children of {self._name!r}", list(self._errors))
        return limit


def _exception(child: str, error: BaseException) -> Exception:
    """As a group of exceptions can hold it; a cancellation that nobody asked for is none."""
    if isinstance(error, Exception):
        return error
    wrapped = WorkerFailed(f"{child!r} was cancelled, and nobody of us asked for it")
    wrapped.__cause__ = error
    return wrapped


def _room_at(intensity: Intensity, restarts: Sequence[float], now: float) -> float:
    """When one more restart fits into the budget; ``restarts``, newest first, may lie in the future."""
    if len(restarts) < intensity.limit:
        return now
    # The window is closed: a restart still counts when it is exactly as old as the window is long.
    return max(now, math.nextafter(restarts[intensity.limit - 1] + intensity.within, math.inf))

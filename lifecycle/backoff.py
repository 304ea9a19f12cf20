"""Calculation of delays that grow after each failure, and of limits on the number of restarts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lifecycle._durations import duration, in_seconds, store_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lifecycle._durations import Duration, DurationField


__all__ = ["Backoff", "Intensity"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays before restarts, and a limit on the number of restarts.

    The delay before retry ``n`` (from 0) is ``initial * multiplier ** n`` seconds, up to ``maximum``, plus a random
    part.

    Args:
        initial: The number of seconds before the first retry.
        maximum: The maximum delay in seconds, before the random part is added.
        multiplier: The ratio of each delay to the previous delay.
        jitter: The maximum size of the random part, relative to the delay. It spreads out the retries of components
            that failed at the same time.
        reset_after: The number of seconds a component must run before its failure count is reset.
        max_restarts: The maximum number of restarts within ``within`` seconds. Beyond this, the circuit opens, and
            there are no more restarts. 0 means no limit.
        within: The length of the period in seconds.

    Raises:
        ValueError: if a number is negative, or if the multiplier is below 1.
    """

    initial: DurationField = duration(0.1)
    maximum: DurationField = duration(30.0)
    multiplier: float = 2.0
    jitter: float = 0.1
    reset_after: DurationField = duration(60.0)
    max_restarts: int = 0
    within: DurationField = duration(60.0)

    def __post_init__(self) -> None:
        store_seconds(self, "initial", "maximum", "reset_after", "within", least=0)
        for name in ("jitter", "max_restarts"):
            if getattr(self, name) < 0:
                raise ValueError(f"Backoff({name}={getattr(self, name)!r}) is negative; use 0 or more")
        if self.multiplier < 1:
            raise ValueError(f"Backoff(multiplier={self.multiplier!r}) would shorten the delays; use 1 or more")

    def delay(self, retry: int, *, chance: Callable[[], float] | None = None) -> float:
        """Return the number of seconds to wait before retry ``retry`` (from 0).

        ``chance`` returns a number in [0, 1) for the random part [default: `random.random`].
        """
        try:
            plain = min(self.maximum, self.initial * self.multiplier**retry)
        except OverflowError:
            plain = self.maximum if self.initial else 0.0
        return plain * (1 + self.jitter * (chance or _chance)())


@dataclass(frozen=True, slots=True, init=False)
class Intensity:
    """A limit of ``limit`` restarts in any period of ``within`` seconds (OTP's intensity and period).

    Args:
        limit: The maximum number of restarts.
        within: The length of the period in seconds.

    Raises:
        ValueError: if the limit is negative or the period is not positive.
    """

    limit: int
    within: float

    def __init__(self, limit: int, within: Duration) -> None:
        if limit < 0:
            raise ValueError(f"Intensity.limit must be 0 or more, got {limit!r}")
        object.__setattr__(self, "limit", limit)
        object.__setattr__(self, "within", in_seconds("Intensity.within", within))

    def add(self, restarts: Iterable[float], now: float) -> deque[float]:
        """Add a restart at ``now``, and return the restarts within the period, newest first.

        A deque is modified in place.
        """
        kept = restarts if isinstance(restarts, deque) else deque(restarts)
        while kept and kept[-1] < now - self.within:
            kept.pop()
        kept.appendleft(now)
        return kept

    def exceeded(self, restarts: Sequence[float]) -> bool:
        """Return True if ``restarts``, as returned by `add`, exceed the limit."""
        return len(restarts) > self.limit


def _chance() -> float:
    """Return a number in [0, 1). We import `random` here, because most programs never need it."""
    import random

    return random.random()  # noqa: S311  # nothing secret depends on it

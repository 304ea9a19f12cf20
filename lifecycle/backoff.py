"""Waiting longer after each failure, and giving up after too many: pure sums on plain records."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["Backoff", "Intensity"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next start of something that failed, and when to stop trying it.

    The wait before retry ``n`` (from 0) is ``initial * multiplier ** n`` seconds, at most ``maximum``, plus up to
    ``jitter`` of itself at random, so that many that failed together do not come back together. Something that
    ran for ``reset_after`` seconds counts as healthy again. More than ``max_restarts`` within ``within`` seconds
    opens its circuit; 0 means no limit.

    Raises:
        ValueError: for a negative figure, or a multiplier below 1.
    """

    initial: float = 0.1
    maximum: float = 30.0
    multiplier: float = 2.0
    jitter: float = 0.1
    reset_after: float = 60.0
    max_restarts: int = 0
    within: float = 60.0

    def __post_init__(self) -> None:
        for name in ("initial", "maximum", "jitter", "reset_after", "max_restarts", "within"):
            if getattr(self, name) < 0:
                raise ValueError(f"Backoff({name}={getattr(self, name)!r}) is negative; give 0 or more")
        if self.multiplier < 1:
            raise ValueError(f"Backoff(multiplier={self.multiplier!r}) would shrink the wait; give 1 or more")

    def delay(self, retry: int, *, chance: Callable[[], float] | None = None) -> float:
        """Seconds to wait before retry number ``retry`` (the first is 0).

        ``chance`` gives a number in [0, 1) for the jitter; the default is `random.random`.
        """
        try:
            plain = min(self.maximum, self.initial * self.multiplier**retry)
        except OverflowError:
            plain = self.maximum if self.initial else 0.0
        return plain * (1 + self.jitter * (chance or _chance)())


@dataclass(frozen=True, slots=True)
class Intensity:
    """At most ``limit`` restarts in any closed window of ``within`` seconds (OTP's intensity and period).

    Raises:
        ValueError: for a negative limit or a window that is not positive.
    """

    limit: int
    within: float

    def __post_init__(self) -> None:
        if self.limit < 0 or self.within <= 0:
            raise ValueError(f"{self!r} is no budget; give a limit of 0 or more and a window above 0 seconds")

    def add(self, restarts: Iterable[float], now: float) -> deque[float]:
        """Return the restarts that count once one more happened at ``now``, newest first; change a deque in place."""
        kept = restarts if isinstance(restarts, deque) else deque(restarts)
        while kept and kept[-1] < now - self.within:
            kept.pop()
        kept.appendleft(now)
        return kept

    def exceeded(self, restarts: Sequence[float]) -> bool:
        """Whether ``restarts``, as `add` returned them, are more than the budget allows."""
        return len(restarts) > self.limit


def _chance() -> float:
    """A number in [0, 1); its module is imported when something has failed, which most programs never see."""
    import random

    return random.random()  # noqa: S311  # nothing secret depends on it

"""The series of one meter, and the receivers of hooks that count and time with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.observe._meters.tables import Counted, Timed
    from lifecycle.observe.labels import LabelPolicy

__all__ = ["Series", "counting", "timing"]

T = TypeVar("T")


class Series(Generic[T]):
    """Finds what counts a set of labels; the same for those that the policy folds into one."""

    def __init__(self, labels: tuple[str, ...], policy: LabelPolicy, make: Callable[[tuple[str, ...]], T]) -> None:
        self._labels = labels
        self._policy = policy
        self._make = make
        self._series: dict[tuple[str, ...], T] = {}
        # As they were told, for those that come again and again; never more than a few times what there can be.
        self._known: dict[tuple[object, ...], T | None] = {}

    def of(self, values: tuple[object, ...]) -> T | None:
        """What counts ``values``; None where they are not to be counted."""
        try:
            return self._known[values]
        except KeyError:
            return self._learn(values)

    def _learn(self, values: tuple[object, ...]) -> T | None:
        settled = self._policy.settle_all(self._labels, values)
        series = None if settled is None else self._settled(settled)
        if len(self._known) < 4 * self._policy.max_series:
            self._known[values] = series
        return series

    def _settled(self, labels: tuple[str, ...]) -> T:
        if labels not in self._series and len(self._series) >= self._policy.max_series:
            labels = self._policy.fold(labels)
        if labels not in self._series:
            self._series[labels] = self._make(labels)
        return self._series[labels]


def timing(
    meter: Timed, policy: LabelPolicy, make: Callable[[tuple[str, ...]], Callable[[float], object]]
) -> Callable[..., None]:
    """A receiver for the hook of ``meter``; ``make`` gives what takes the seconds of one series."""
    told, seconds, series = meter.told, meter.seconds, Series(meter.labels, policy, make)

    def time(sender: Any, **facts: Any) -> None:
        if (take := series.of(told(sender, facts))) is not None:
            take(facts[seconds])

    return time


def counting(
    meter: Counted, policy: LabelPolicy, make: Callable[[tuple[str, ...]], Callable[[], object]]
) -> Callable[..., None]:
    """A receiver for the hook of ``meter``; ``make`` gives what counts one more of one series."""
    told, counts, series = meter.told, meter.counts, Series(meter.labels, policy, make)

    def count(sender: Any, **facts: Any) -> None:
        if counts(facts) and (add := series.of(told(sender, facts))) is not None:
            add()

    return count

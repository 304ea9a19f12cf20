"""The series of one meter: which labels it has been told with, and what counts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from lifecycle.observe.labels import LabelPolicy

__all__ = ["Series"]

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

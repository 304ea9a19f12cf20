"""`Backoff` and `Intensity`, which compute delays and limits."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.backoff import Backoff, Intensity

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_waits_grow_up_to_the_maximum() -> None:
    backoff = Backoff(initial=1, maximum=10, multiplier=3, jitter=0)
    assert [backoff.delay(retry) for retry in range(5)] == [1, 3, 9, 10, 10]


def test_the_defaults_are_those_of_the_documentation() -> None:
    backoff = Backoff()
    assert (backoff.initial, backoff.maximum, backoff.multiplier, backoff.jitter) == (0.1, 30.0, 2.0, 0.1)
    assert (backoff.reset_after, backoff.max_restarts, backoff.within) == (60.0, 0, 60.0)


@given(st.integers(0, 100_000), st.floats(0, 1, exclude_max=True))
def test_a_wait_is_never_negative_nor_beyond_the_maximum_with_its_jitter(retry: int, chance: float) -> None:
    backoff = Backoff(initial=0.5, maximum=20, jitter=0.25)
    assert 0.5 <= backoff.delay(retry, chance=lambda: chance) <= 25


def test_a_backoff_from_zero_never_waits() -> None:
    backoff = Backoff(initial=0)
    assert {backoff.delay(retry) for retry in (0, 1, 1023, 1024, 100_000)} == {0}


@pytest.mark.parametrize("name", ["jitter", "max_restarts"])
def test_negative_figures_are_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=-1"):
        Backoff(**{name: -1})


def test_a_multiplier_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"multiplier=0\.5"):
        Backoff(multiplier=0.5)
    assert Backoff(multiplier=1, jitter=0).delay(5) == 0.1


@given(st.lists(st.floats(0, 100), max_size=30).map(sorted), st.integers(0, 5), st.floats(0.1, 20))
def test_a_budget_is_exceeded_by_more_restarts_than_its_limit_within_its_period(
    times: list[float], limit: int, within: float
) -> None:
    intensity, kept = Intensity(limit, within), deque[float]()
    for number, now in enumerate(times):
        kept = intensity.add(kept, now)
        recent = sum(at >= now - within for at in times[: number + 1])
        assert len(kept) == recent
        assert intensity.exceeded(kept) is (recent > limit)


class Unscanned(deque[float]):
    """A deque that must not be iterated over, because counting would then take longer with each restart."""

    def __iter__(self) -> Iterator[float]:
        raise AssertionError("the restarts were iterated over")


def test_counting_a_restart_takes_constant_time() -> None:
    intensity, kept = Intensity(1_000_000, 10), Unscanned()
    for now in range(50):
        assert intensity.add(kept, now) is kept
    assert (len(kept), kept[0], kept[-1]) == (11, 49, 39)


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="limit must be 0 or more, got -1"):
        Intensity(-1, 5)

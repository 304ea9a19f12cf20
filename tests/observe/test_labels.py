"""Labels stay within their bounds, whatever things are called."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.observe import LabelPolicy, OpenTelemetryMetrics, PrometheusMetrics
from lifecycle.observe._meters.series import Series
from lifecycle.observe._meters.tables import COUNTED, READ, TIMED
from lifecycle.observe.labels import LABELS


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("files", "files"),
        ("  files\n", "files"),
        ("", "unknown"),
        (" \t", "unknown"),
        (None, "None"),
        ("x" * 64, "x" * 64),
        ("x" * 65, "x" * 63 + "…"),
        ('say "hi"\nto \\ 🙂', 'say "hi"\nto \\ 🙂'),
        ("not \udcff utf-8", "not ? utf-8"),
    ],
)
def test_a_value_is_said_as_it_is_unless_nobody_could_read_it(value: object, said: str) -> None:
    assert LabelPolicy().settle("pattern", value) == said


def test_what_is_not_allowed_is_other_or_not_counted() -> None:
    lists = {"pattern": ("file/**", "webhook/**")}
    lax, strict = LabelPolicy(lists), LabelPolicy(lists, strict=True)

    assert [lax.settle("pattern", value) for value in ("file/**", "tick/*", "")] == ["file/**", "other", "unknown"]
    assert [strict.settle("pattern", value) for value in ("file/**", "tick/*", "")] == ["file/**", None, "unknown"]
    assert lax.settle("lane", "tick/*") == strict.settle("lane", "tick/*") == "tick/*"
    assert strict.settle_all(("pattern", "error"), ("tick/*", "OSError")) is None


def test_an_allowed_value_may_be_longer_than_others() -> None:
    name = "a" * 100
    assert LabelPolicy({"pool": [name]}).settle("pool", name) == "a" * 63 + "…"


@given(st.lists(st.tuples(st.text(), st.text())), st.integers(1, 5))
def test_there_are_never_more_series_than_may_be(names: list[tuple[str, str]], most: int) -> None:
    """One more is for what is too much; and what is found once is found again."""
    policy = LabelPolicy(max_series=most)
    series: Series[tuple[str, ...]] = Series(("supervisor", "child"), policy, lambda labels: labels)

    found = [series.of(name) for name in names]

    assert len(set(found)) <= most + 1
    assert found == [series.of(name) for name in names]


def test_what_is_remembered_is_bounded_too() -> None:
    series: Series[int] = Series(("child",), LabelPolicy(max_series=3), lambda _: 0)
    for number in range(1000):
        series.of((f"job {number}",))
    assert len(series._known) <= 12


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"allow": {"topic": ["a"]}}, ValueError, "is about no label of a meter; there are queue, child, error"),
        ({"allow": {"lane": "files"}}, TypeError, "is one text; give the values in a list"),
        ({"max_length": 0}, ValueError, "max_length=0 leaves nothing; give 1 or more"),
        ({"max_series": -1}, ValueError, "max_series=-1 leaves nothing; give 1 or more"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        LabelPolicy(**settings)


@pytest.mark.parametrize("meters", [PrometheusMetrics, OpenTelemetryMetrics])
def test_a_policy_that_is_none_is_refused_at_once(meters: Any) -> None:
    """And not when the first event is counted, where only the log would tell."""
    with pytest.raises(TypeError, match=r"labels=\{'child': \['web'\]\} is no policy; give LabelPolicy\(…\)"):
        meters(labels={"child": ["web"]})


def test_the_labels_are_those_of_the_meters_and_none_is_a_topic() -> None:
    labels = {label for meter in (*COUNTED, *TIMED, *READ) for label in meter.labels}
    assert labels == set(LABELS)
    assert "topic" not in labels

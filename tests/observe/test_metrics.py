"""Label values stay within their limits, regardless of the names."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.observe import LabelPolicy, OpenTelemetryMetrics, PrometheusMetrics
from lifecycle.observe.metrics import COUNTERS, GAUGES, HISTOGRAMS, LABELS, Series, exported_values


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
def test_a_value_is_exported_unless_it_is_empty_too_long_or_not_utf8(value: object, said: str) -> None:
    assert exported(LabelPolicy(), "pattern", value) == said


def test_a_value_that_is_not_allowed_is_other_or_not_counted() -> None:
    lists = {"pattern": ("file/**", "webhook/**")}
    lax, strict = LabelPolicy(lists), LabelPolicy(lists, strict=True)

    assert [exported(lax, "pattern", value) for value in ("file/**", "tick/*", "")] == ["file/**", "other", "unknown"]
    assert [exported(strict, "pattern", value) for value in ("file/**", "tick/*", "")] == ["file/**", None, "unknown"]
    assert exported(lax, "lane", "tick/*") == exported(strict, "lane", "tick/*") == "tick/*"
    assert exported_values(strict, ("pattern", "error"), ("tick/*", "OSError")) is None


def test_an_allowed_value_may_be_longer_than_others() -> None:
    name = "a" * 100
    assert exported(LabelPolicy({"pool": [name]}), "pool", name) == "a" * 63 + "…"


def exported(policy: LabelPolicy, label: str, value: object) -> str | None:
    found = exported_values(policy, (label,), (value,))
    return None if found is None else found[0]


@given(st.lists(st.tuples(st.text(), st.text())), st.integers(1, 5))
def test_the_number_of_series_is_limited(names: list[tuple[str, str]], most: int) -> None:
    """One extra series collects everything above the limit, and existing series are reused."""
    policy = LabelPolicy(max_series=most)
    series: Series[tuple[str, ...]] = Series(("supervisor", "child"), policy, lambda labels: labels)

    found = [series.of(name) for name in names]

    assert len(set(found)) <= most + 1
    assert found == [series.of(name) for name in names]


def test_memory_for_many_new_values_is_bounded() -> None:
    series: Series[int] = Series(("child",), LabelPolicy(max_series=3), lambda _: 0)

    def used_after(numbers: range) -> int:
        for number in numbers:
            series.of((f"job {number}",))
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = used_after(range(100))
        assert used_after(range(100, 20_000)) - before < 500_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        (
            {"allow": {"topic": ["a"]}},
            ValueError,
            "no metric has the label 'topic' in allow",
        ),
        ({"allow": {"lane": "files"}}, TypeError, "is a single string; pass a list of values"),
        ({"max_length": 0}, ValueError, "max_length must be 1 or more, got 0"),
        ({"max_series": -1}, ValueError, "max_series must be 1 or more, got -1"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        LabelPolicy(**settings)


@pytest.mark.parametrize("metrics", [PrometheusMetrics, OpenTelemetryMetrics])
def test_a_policy_of_another_type_is_refused_at_once(metrics: Any) -> None:
    """The error is raised before the first event, because a later error would only be logged."""
    with pytest.raises(TypeError, match=r"labels must be a LabelPolicy, got \{'child': \['web'\]\}"):
        metrics(labels={"child": ["web"]})


def test_the_labels_are_those_of_the_metrics_and_none_is_a_topic() -> None:
    labels = {label for metric in (*COUNTERS, *HISTOGRAMS, *GAUGES) for label in metric.labels}
    assert labels == set(LABELS)
    assert "topic" not in labels

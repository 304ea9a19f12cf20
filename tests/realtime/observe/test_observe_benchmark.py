"""The benchmark of observers measures what it documents."""

from __future__ import annotations

from benchmarks._observe_metrics import lane_over_without, scrape_over_plain


def test_a_lane_and_a_scrape_are_measured() -> None:
    """They check that all events came, and that all workers are in the text."""
    assert lane_over_without(rounds=1, events=200) > 0
    assert scrape_over_plain(rounds=1, workers=20) > 0

"""The benchmark of observation measures the figures in the documentation."""

from __future__ import annotations

from benchmarks._observe_metrics import lane_over_without, scrape_over_plain


def test_a_lane_and_a_scrape_are_measured() -> None:
    """The benchmark itself checks that all events arrived, and that the text contains all workers."""
    assert lane_over_without(rounds=1, events=200) > 0
    assert scrape_over_plain(rounds=1, workers=20) > 0

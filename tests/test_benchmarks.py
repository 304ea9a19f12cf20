"""Stored figures: their limits are parsed, compared in both directions, and displayed unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import MODULES, regressions
from benchmarks._bars import Bar
from benchmarks._curves_plots import files
from benchmarks._measure import report
from benchmarks._page import PAGE, render, stored
from benchmarks.curves import CURVES

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("words", "bar"),
    [
        ("at most 1.8", Bar("less", 1.8)),
        ("at most 1,800", Bar("less", 1800)),
        ("at least 0.95", Bar("more", 0.95)),
        ("at least 80; TaskFlow had 250 tasks, ours 1,000", Bar("more", 80)),
        ("at most 500 + 3 x spawn_ms", Bar("less", None)),
        ("under 0.5", Bar("less", 0.5)),
        ("0", Bar("less", 0)),
        ("none", Bar("less", 0)),
        ("printed", Bar(None, None)),
    ],
)
def test_limits_of_figures_are_parsed(words: str, bar: Bar) -> None:
    assert Bar.read(words) == bar


@pytest.mark.parametrize(
    ("words", "figure", "met"),
    [("at most 2", 2.0, True), ("at most 2", 2.1, False), ("at least 2", 1.9, False), ("printed", 99.0, None)],
)
def test_a_figure_is_compared_with_its_limit(words: str, figure: float, met: bool | None) -> None:
    assert Bar.read(words).met(figure) is met


def test_a_figure_is_worse_if_it_changes_by_more_than_the_noise() -> None:
    kept = {"exact_over_bare": 1.5, "hot_hit_rate_under_flood": 1.0, "pyee_over_exact": 70.0, "lane_over_queue": None}
    moved = {"exact_over_bare": 2.0, "hot_hit_rate_under_flood": 0.7, "pyee_over_exact": 7.0, "lane_over_queue": 9.0}

    assert regressions("router", moved, kept) == ["exact_over_bare", "hot_hit_rate_under_flood"]
    assert regressions("router", {"exact_over_bare": 0.1, "hot_hit_rate_under_flood": 0.9}, kept) == []


def test_a_single_loss_is_worse_than_none() -> None:
    assert regressions("watch", {"burst_lost": 1}, {"burst_lost": 0}) == ["burst_lost"]


def test_a_figure_below_zero_is_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    report("flows", {"of_nothing_bytes": -1, "other_bytes": 0, "ratio": 0.12345}, {}, ["--json"])
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"of_nothing_bytes": None, "other_bytes": 0, "ratio": 0.123}
    assert printed.err == "of_nothing_bytes is not measured, because it is smaller than the noise: -1\n"


def test_no_stored_figure_is_below_zero() -> None:
    """A figure that could not be measured is null, which meets no limit, and the page names the reason."""
    for name, module in stored()["modules"].items():
        figures = module["figures"]
        assert [each for each in figures if isinstance(figures[each], int | float) and figures[each] < 0] == []
        assert module["missing"] or None not in figures.values(), name


def test_all_modules_are_run_and_kept() -> None:
    modules = {path.stem for path in (ROOT / "benchmarks").glob("[!_]*.py")}

    assert modules == set(MODULES) == set(stored()["modules"])


def test_the_page_shows_what_was_kept_and_nothing_else() -> None:
    """After you change a figure, a limit or its text, write the page again (`make bench`)."""
    assert PAGE.read_text(encoding="utf-8") == render(stored())


def test_the_plots_show_the_stored_points() -> None:
    """After you change a curve or its text, write the plots again (`make bench`)."""
    shown = files(CURVES, stored()["modules"]["curves"]["figures"]["points"])

    assert {path: path.read_text(encoding="utf-8") for path in shown} == shown

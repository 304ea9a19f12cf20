"""The benchmark of what observes measures what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import _observe_snapshots, observe

if TYPE_CHECKING:
    import pytest


def test_each_figure_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_observe_snapshots, "_WORKERS", 20)
    monkeypatch.setattr(_observe_snapshots, "_ROUNDS", 1)

    results = observe.results(rounds=1, events=200, workers=20)

    assert set(results) == set(observe.BARS)
    assert all(isinstance(value, float) for value in results.values())

"""The flow benchmark measures the figures in the documentation, and reports null for figures that it cannot measure."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from benchmarks import _flows_peers, _flows_postgres, flows

if TYPE_CHECKING:
    from pathlib import Path

BARS = (
    "linear_memory_over_taskflow",
    "linear_sqlite_over_taskflow",
    "linear_sqlite_over_dbos",
    "linear_10000_over_1000",
    "unordered_sqlite_over_raw_commits",
    "fanout_1000_sleeps_over_one",
    "jobs_over_raw",
    "import_ms_flows",
)


def test_figures_are_measured_and_those_without_an_installed_peer_are_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_flows_peers, "_NEEDED", {"taskflow": ("taskflow_not_here",), "dbos": ("dbos_not_here",)})

    results = flows.results(dict.fromkeys(flows.SIZES, 5), str(tmp_path), slow_rounds=1, rounds=1, imports=1)

    assert set(results) == set(flows.BARS) - set(_flows_postgres.BARS) >= set(BARS)
    absent = {name for name in flows.BARS if name.endswith(("_over_taskflow", "_over_dbos"))}
    assert {name for name, value in results.items() if value is None} == absent - set(_flows_postgres.BARS)
    assert all(isinstance(results[name], float) for name in BARS if name not in absent)


def test_a_peer_that_is_not_installed_is_named_with_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_flows_peers, "_NEEDED", {"dbos": ("json", "dbos_not_here")})

    assert list(_flows_peers.missing()) == ["dbos"]
    assert "dbos_not_here cannot be imported" in _flows_peers.missing()["dbos"]


def test_without_a_server_or_peer_figures_on_postgres_are_null_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_flows_postgres, "missing", lambda: "procrastinate cannot be imported")

    assert _flows_postgres.figures() == dict.fromkeys(_flows_postgres.BARS)
    assert capsys.readouterr().err == "procrastinate cannot be imported\n"


@pytest.mark.engine("postgres")
def test_a_case_on_postgres_that_fails_leaves_the_figures_null(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_flows_postgres, "missing", str)
    monkeypatch.setattr(_flows_postgres, "LONGEST", -1.0)
    monkeypatch.setattr(_flows_postgres, "PROCESSES", (1,))
    ours = _flows_postgres._WAYS["ours"]
    monkeypatch.setitem(_flows_postgres._WAYS, "procrastinate", ours)

    assert _flows_postgres.figures(jobs=20, rounds=1) == dict.fromkeys(_flows_postgres.BARS)
    # If procrastinate is not installed, the worker exits before the time limit.
    errors = capsys.readouterr().err
    without_peer = "a procrastinate worker exited before it was ready"
    assert ("needed more than -1 s for 20 jobs" if find_spec("procrastinate") else without_peer) in errors

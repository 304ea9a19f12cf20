"""The recorded phase changes, and the command that replays them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import pool

ROOT = Path(__file__).parents[3]
FILE = ROOT / "tests" / "data" / "pool_transitions.json"
VECTORS = json.loads(FILE.read_text())["vectors"]


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_recorded_walk_is_reproduced(vector: Any) -> None:
    assert pool.check(vector) == []


def test_the_command_counts_the_replayed_cases() -> None:
    done = run(str(FILE))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"{len(VECTORS)} passed, 0 failed")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"steps": [["ready", "init_complete"]], "state": "busy"}, "state: expected 'busy', got"),
    ({"steps": [["ready", "init_complete"]], "history": 2}, "history: expected 2, got 1"),
    ({"steps": [["ready", "init_complete"]], "should_remove": True}, "should_remove: expected True, got False"),
    ({"steps": [["ready", "init_complete"]], "error_at": 0}, "error_at: expected 0, got None"),
    ({"steps": [["busy", "checkout"]]}, "error_at: expected None, got 0"),
    ({"steps": [["busy", "checkout"]], "error_at": 0, "error": ["ready", "busy"]}, "error: expected"),
    ({"steps": [["ready", "for no reason"]], "state": "ready"}, "error_at: expected None, got 0"),
    ({"steps": [["lost", "checkout"]]}, "'lost' is not a valid Phase"),
    (
        {"steps": [["degraded", "init_degraded"]], "health": ["healthy"]},
        "health: expected ['healthy'], got 'unhealthy'",
    ),
]


@pytest.mark.parametrize(("vector", "difference"), WRONG)
def test_a_different_outcome_is_reported(vector: Any, difference: str) -> None:
    assert any(difference in each for each in pool.check(vector))


def test_the_command_fails_and_prints_the_differences(tmp_path: Path) -> None:
    file = tmp_path / "vectors.json"
    file.write_text(json.dumps({"vectors": [{"name": "wrong", **WRONG[0][0]}, VECTORS[0]]}))
    done = run(str(file))
    first, last = done.stdout.splitlines()
    assert (done.returncode, last) == (1, "1 passed, 1 failed")
    assert first.startswith("FAILED 0 (wrong): state: expected 'busy'")


def test_the_command_needs_a_file() -> None:
    done = run()
    assert (done.returncode, done.stderr) == (1, "usage: python -m tests.conformance.pool FILE.json\n")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.conformance.pool", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

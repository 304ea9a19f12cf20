"""In each case, our supervisor behaves as Erlang/OTP's supervisor does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import supervisor

DATA = Path(__file__).parents[1] / "data"
FILE = DATA / "otp_supervisor_cases.json"
CASES = json.loads(FILE.read_text())["cases"]


PLAYED = [case for case in CASES if not supervisor.reason_to_skip(case)]


@pytest.mark.parametrize("case", PLAYED, ids=[f"{case['id']} {case['title']}" for case in PLAYED])
def test_a_recorded_case_has_the_same_outcome(case: Any) -> None:
    assert supervisor.check(case) == []


def test_the_runner_counts_cases_and_prints_why_it_skipped_some(capsys: pytest.CaptureFixture[str]) -> None:
    assert supervisor.main(str(FILE)) == 0
    *_, skipped, last = capsys.readouterr().out.splitlines()
    passed = int(last.split()[0])
    assert last == f"{passed} passed, 0 failed"
    assert skipped == f"{len(CASES) - passed} skipped"
    assert passed >= 50


def test_our_own_recordings_have_the_same_outcome(capsys: pytest.CaptureFixture[str]) -> None:
    failed = supervisor.main(str(DATA / "otp_more_cases.json"))
    assert (failed, capsys.readouterr().out.splitlines()) == (0, ["0 skipped", "243 passed, 0 failed"])


INNER = {"id": "inner", "type": "supervisor", "behaviour": {"sup": {"flags": {}, "children": []}}}
STRANGE = {"id": "x", "behaviour": {"dances": True}}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"children": "nonsense"}, "what init returns"),
        ({"flags": None}, "what init returns"),
        ({"actions": [["term_pid", "a"]]}, "the action 'term_pid'"),
        ({"actions": [["term", ["pid", "a"]]]}, "'term' by pid"),
        ({"actions": [["which", "inner"]]}, "the action 'which' with ['inner']"),
        ({"actions": [["stop"]]}, "the action 'stop' with []"),
        ({"actions": [["stop", "kill"]]}, "the reason 'kill'"),
        ({"flags": {"hibernate": 1}}, "['hibernate'] has no counterpart"),
        ({"children": [INNER], "actions": [["kill", "inner"]]}, "'inner' is a supervisor"),
        ({"actions": [["add", INNER], ["die", "inner", "x"]]}, "'inner' is a supervisor"),
        ({"actions": [["add", STRANGE]]}, "['dances'] has no counterpart"),
        ({"children": [{"behaviour": {"sup": {"flags": {"name": 1}, "children": []}}}]}, "['name'] has no"),
        ({"children": [{"behaviour": {"sup": {"children": [STRANGE]}}}]}, "['dances'] has no counterpart"),
    ],
)
def test_erlang_only_cases_are_skipped_with_the_reason(change: Any, why: str) -> None:
    assert why in str(supervisor.reason_to_skip(CASES[0] | change))


def test_a_case_may_define_what_ours_does_instead_of_otp() -> None:
    case = CASES[0] | {"events": [["start", "nobody"]]}
    assert supervisor.check(case)
    assert supervisor.check(case | {"ours": {"events": CASES[0]["events"]}}) == []


def test_a_case_with_a_different_outcome_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = CASES[0] | {"events": [["start", "nobody"]]}
    (tmp_path / "wrong.json").write_text(json.dumps({"cases": [wrong]}))
    assert supervisor.main(str(tmp_path / "wrong.json")) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 1 failed"

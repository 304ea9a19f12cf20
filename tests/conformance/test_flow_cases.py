"""Each recorded TaskFlow case has the same outcome with each store, except for quirks, which have our own outcome."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from lifecycle.flows import StepFailed
from tests.conformance import flows
from tests.conformance.flow_betterment import RULES, bettered
from tests.conformance.flow_comparing import same_error

FILE = Path(__file__).parents[1] / "data" / "taskflow_conformance.json"
DATA = json.loads(FILE.read_text())
CASES = {case["id"]: case for case in DATA["cases"]}
PLAYS = dict(flows.plays(DATA))
#: The cases that run on a server: a fifth of them, because they take longer there and test the same guarantees.
#: `tests.chaos.recorded_cases` runs them all.
ON_SERVER = list(PLAYS)[::5]
#: One case of each kind, each with several steps.
SIMPLE, CRASH, RESET = (
    "A12-run-twice-after-success-does-nothing",
    "H3-retry-crash-after-event-13",
    "E09-ignore-reset-run",
)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("name", PLAYS)
def test_a_recorded_case_has_the_same_outcome(name: str, store: str) -> None:
    assert PLAYS[name](store) == []


@pytest.mark.engine("postgres")
@pytest.mark.parametrize("name", ON_SERVER)
def test_a_recorded_case_has_the_same_outcome_on_a_server(name: str) -> None:
    assert PLAYS[name]("postgres") == []


def test_all_recorded_cases_are_played_except_those_our_worker_cannot_run() -> None:
    recorded = [case["id"] for kind in ("cases", "job_cases", "conductor_cases") for case in DATA[kind]]
    assert [name[:3] for name in recorded if name not in PLAYS] == ["K04", "K08", "K09", "K10", "K12"]


def test_a_case_after_a_crash_needs_no_other_to_be_compared_with() -> None:
    assert all(flows.check(case) == [] for case in CASES.values() if case.get("crash"))


def test_each_rule_applies_to_a_case() -> None:
    quirks = [case for case in CASES.values() if "quirk" in case]
    for rule in RULES[:-1]:
        changed = [copy.deepcopy(case) for case in quirks]
        for case in changed:
            rule.apply(case, [each for each in case["expected"] if each is not None])
        assert changed != quirks, rule.name


def test_a_reset_that_is_half_done_in_taskflow_is_done_from_failure_and_else_refused() -> None:
    """The recording does not contain this kind of reset."""
    flow: Any = {
        "type": "linear",
        "name": "f",
        "items": [_task("a"), _task("b", {"raise": "Woot!"}, {"raise": "Gotcha!"})],
    }
    failed = _outcome("FAILURE", {"a": ["SUCCESS", "REVERT"], "b": ["REVERT_FAILURE", "REVERT"]})
    events: list[Any] = [
        ["flow", "f", "PENDING", "RUNNING"],
        ["task", "a", "PENDING", "RUNNING"],
        ["task", "a", "RUNNING", "SUCCESS", 5],
        ["task", "b", "PENDING", "RUNNING"],
        ["task", "b", "RUNNING", "FAILURE", {"failure": "RuntimeError: Woot!"}],
        ["task", "b", "FAILURE", "REVERTING"],
        ["task", "b", "REVERTING", "REVERT_FAILURE", {"failure": "RuntimeError: Gotcha!"}],
        ["flow", "f", "RUNNING", "FAILURE"],
    ]
    failed |= {
        "events": events,
        "engine_states": ["RESUMING", *["SCHEDULING", "WAITING", "ANALYZING"] * 3],
        "raised": {"type": "RuntimeError", "message": "Gotcha!"},
    }
    half = _outcome("FAILURE", {"a": ["PENDING", "EXECUTE"], "b": ["PENDING", "EXECUTE"]})
    half |= {
        "events": [["task", "a", "SUCCESS", "PENDING"], ["task", "b", "REVERT_FAILURE", "PENDING"]],
        "raised": {"type": "InvalidState", "message": "Flow transition from FAILURE to PENDING is not allowed"},
    }
    again = copy.deepcopy(failed)
    again["events"][0] = ["flow", "f", "FAILURE", "RUNNING"]
    case = {"id": "own", "flow": flow, "order": "exact", "quirk": "reset() is not atomic"}
    case |= {"steps": [{"op": "run"}, {"op": "reset"}, {"op": "run"}], "expected": [failed, half, again]}
    assert flows.check(case) == []


def test_a_reset_of_what_is_suspended_changes_nothing() -> None:
    case = copy.deepcopy(CASES["F09-suspend-while-first-running"])
    half = _outcome("SUSPENDED", {name: ["PENDING", "EXECUTE"] for name in ("a", "b")})
    half |= {"events": [["task", "a", "SUCCESS", "PENDING"]], "raised": {"type": "InvalidState", "message": "no"}}
    case["steps"].insert(1, {"op": "reset"})
    case["expected"].insert(1, half)
    assert flows.check(case)
    assert flows.check(case | {"quirk": "reset() is not atomic"}) == []


def _task(name: str, does: Any = None, undoes: Any = None) -> Any:
    undone = {"undoes": undoes} if undoes else {}
    return {"type": "task", "name": name, "does": does or {"return": 5}, **undone}


def _outcome(state: str, steps: Any) -> Any:
    nothing: Any = {"events": [], "engine_states": [], "raised": None, "fetch_all": {}}
    return nothing | {"flow_state": state, "atoms": steps}


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (("events", 0, 3), "SUCCESS", "events"),
        (("events", 2, 4), 6, "events"),
        (("events",), [], "events"),
        (("engine_states",), ["RESUMING"], "engine_states"),
        (("raised",), {"type": "RuntimeError", "message": "Woot!"}, "raised"),
        (("flow_state",), "REVERTED", "flow_state"),
        (("atoms", "task1"), ["PENDING", "EXECUTE"], "steps"),
        (("atoms", "task9"), ["SUCCESS", "EXECUTE"], "steps"),
        (("fetch_all", "x"), 1, "fetch_all"),
        (("stranger",), 1, "stranger"),
    ],
)
def test_a_case_with_a_different_outcome_fails(path: tuple[Any, ...], value: Any, why: str) -> None:
    case = copy.deepcopy(CASES[SIMPLE])
    *way, last = path
    place = case["expected"][0]
    for each in way:
        place = place[each]
    place[last] = value
    assert any(why in difference for difference in flows.check(case))


@pytest.mark.parametrize(
    "change",
    [
        {"steps": [{"op": "dance"}, {"op": "run"}]},
        {"steps": [{"op": "run", "sideways": True}, {"op": "run"}]},
        {"steps": [{"op": "run"}]},
        {"steps": [{"op": "run"}, {"op": "storage", "ops": [["set_fire", "task1"]]}]},
        {"flow": {"type": "circle", "name": "f", "items": []}},
        {"flow": {"type": "linear", "name": "f", "items": [], "colour": "red"}},
        {"flow": {"type": "task", "name": "f", "does": {"sing": 1}}},
        {"flow": {"type": "task", "name": "f", "does": "nothing"}},
        {"flow": {"type": "task", "name": "f", "undoes": {"sing": 1}}},
        {"flow": {"type": "linear", "name": "f", "items": [], "retry": {"kind": "perhaps"}}},
        {"flow": {"type": "linear", "name": "f", "items": [], "retry": {"kind": "times", "hours": 1}}},
        {"order": "any"},
        {"options": {"colour": "red"}},
        {"whatever": 1},
    ],
)
def test_unknown_keys_in_a_case_fail_it(change: Any) -> None:
    assert flows.check(CASES[SIMPLE] | change)


def test_a_crash_case_is_compared_with_the_run_without_the_crash() -> None:
    case, baseline = CASES[CRASH], copy.deepcopy(CASES["H3-retry-baseline"])
    baseline["expected"][-1]["atoms"]["a"] = ["REVERTED", "REVERT"]
    assert flows.check(case, others={baseline["id"]: baseline})
    shorter = copy.deepcopy(case)
    shorter["expected"][0]["events"].pop()
    assert flows.check(shorter, others=CASES)
    assert flows.check(copy.deepcopy(case) | {"steps": [{"op": "run"}, {"op": "run"}]}, others=CASES)


@pytest.mark.parametrize(
    ("kind", "case", "why"),
    [
        ("job_cases", {"ops": ["post j"], "zookeeper": ["!KeyError"]}, "post j"),
        ("job_cases", {"ops": ["post a LOW", "post b", "iter_all"], "zookeeper": ["ok", "ok", ["b"]]}, "iter_all"),
        ("job_cases", {"ops": ["post j", "consume j A"], "zookeeper": ["ok", "!JobFailure"]}, "consume"),
        ("job_cases", {"ops": ["post j"], "zookeeper": []}, "1 operations, but 0 outcomes"),
        ("job_cases", {"ops": ["set j on fire"], "zookeeper": ["ok"]}, "set j on fire"),
        ("job_cases", {"ops": [], "zookeeper": [], "colour": "red"}, "colour"),
        ("conductor_cases", {"zookeeper": {"job_state": "COMPLETE", "flow_state": "REVERTED"}}, "REVERTED"),
    ],
)
def test_a_queue_case_with_a_different_outcome_fails(kind: str, case: Any, why: str) -> None:
    ((_, play),) = flows.plays({kind: [{"id": "K01-success-consumed", **case}]})
    assert any(why in difference for difference in play("memory"))


def test_a_file_with_cases_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="suitcases"):
        list(flows.plays({"cases": [], "suitcases": []}))


def test_errors_of_taskflow_are_mapped_to_our_names() -> None:
    assert same_error(KeyError("x"), {"type": "KeyError", "message": "'x'"})
    assert not same_error(KeyError("x"), {"type": "NotFound", "message": "x"})
    assert not same_error(None, {"type": "NotFound", "message": "x"})
    assert not same_error(KeyError("x"), None)
    assert same_error(
        StepFailed("'a' failed: KeyError: 'x'"), {"type": "WrappedFailure", "failures": ["KeyError: 'x'"]}
    )
    assert not same_error(KeyError("x"), {"type": "WrappedFailure", "failures": ["KeyError: 'x'"]})
    assert same_error(StepFailed("'a' failed: FlowError: y"), {"type": "WrappedFailure", "failures": ["NotFound: x"]})


def test_failures_before_the_last_attempt_are_not_raised() -> None:
    theirs = {"type": "WrappedFailure", "failures": ["ValueError: x", "ValueError: y"]}
    assert same_error(ValueError("x"), theirs)
    assert same_error(ExceptionGroup("", [ValueError("y"), ValueError("x")]), theirs)
    assert not same_error(ValueError("z"), theirs)
    assert not same_error(ExceptionGroup("", [ValueError("x"), ValueError("x")]), theirs)


def test_a_suspension_is_announced_after_the_changes_stored_with_its_cause() -> None:
    flow: Any = {"type": "linear", "name": "f", "items": [_task("a", {"raise": "Woot!"})]}
    flow |= {"retry": {"kind": "times", "attempts": 2, "name": "r"}}
    events: list[Any] = [
        ["flow", "f", "PENDING", "RUNNING"],
        ["retry", "r", "PENDING", "RUNNING"],
        ["retry", "r", "RUNNING", "SUCCESS", 1],
        ["task", "a", "PENDING", "RUNNING"],
        ["task", "a", "RUNNING", "FAILURE", {"failure": "RuntimeError: Woot!"}],
        ["task", "a", "FAILURE", "REVERTING"],
        ["task", "a", "REVERTING", "REVERTED", None],
        ["retry", "r", "SUCCESS", "RETRYING"],
        ["flow", "f", "RUNNING", "SUSPENDING"],
        ["task", "a", "REVERTED", "PENDING"],
        ["retry", "r", "RETRYING", "RUNNING"],
        ["retry", "r", "RUNNING", "SUCCESS", 2],
        ["flow", "f", "SUSPENDING", "SUSPENDED"],
    ]
    states = ["RESUMING", *["SCHEDULING", "WAITING", "ANALYZING"] * 4, "SUSPENDED"]
    outcome = _outcome("SUSPENDED", {"a": ["PENDING", "EXECUTE"], "r": ["SUCCESS", "EXECUTE"]})
    outcome |= {"events": events, "engine_states": states}
    case = {"id": "own", "flow": flow, "order": "exact", "expected": [outcome]}
    case |= {"steps": [{"op": "run", "suspend_when": ["retry", "r", "RETRYING"]}]}
    assert flows.check(case) == []
    # The event may be missing, but must not come after later events.
    events.insert(4, events.pop(8))
    assert flows.check(case)


def test_injected_values_are_added_to_the_stored_ones() -> None:
    adding = _task("a", {"add": ["x", "y"]}) | {"requires": ["x", "y"], "provides": "z"}
    case = {
        "id": "own",
        "flow": {"type": "linear", "name": "f", "items": [adding]},
        "store": {"x": 1},
        "order": "exact",
    }
    missing = _outcome("PENDING", {"a": ["PENDING", "EXECUTE"]}) | {"fetch_all": {"x": 1}}
    missing["raised"] = {"type": "MissingDependencies", "message": "y"}
    events: list[Any] = [["flow", "f", "PENDING", "RUNNING"], ["task", "a", "PENDING", "RUNNING"]]
    events += [["task", "a", "RUNNING", "SUCCESS", 3], ["flow", "f", "RUNNING", "SUCCESS"]]
    done = _outcome("SUCCESS", {"a": ["SUCCESS", "EXECUTE"]}) | {"fetch_all": {"x": 1, "y": 2, "z": 3}}
    done |= {"events": events, "engine_states": ["RESUMING", "SCHEDULING", "WAITING", "ANALYZING", "SUCCESS"]}
    steps = [{"op": "run"}, {"op": "storage", "ops": [["inject", {"y": 2}]]}, {"op": "run"}]
    assert flows.check(case | {"steps": steps, "expected": [missing, None, done]}) == []


def test_only_quirks_have_intended_differences() -> None:
    assert bettered(CASES[RESET]) is CASES[RESET]


def test_the_runner_prints_its_counts_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = CASES[SIMPLE], CASES[SIMPLE] | {"id": "bad", "order": "any"}
    unknown = {"id": "K99"}
    (tmp_path / "some.json").write_text(json.dumps({"cases": [good, bad], "conductor_cases": [unknown]}))
    assert flows.main(str(tmp_path / "some.json")) == 1
    skipped, failure, last = capsys.readouterr().out.splitlines()
    assert skipped.startswith("skipped K99: ")
    assert failure.startswith("FAILED bad: ")
    assert last == "1 passed, 1 failed"


def test_a_revert_that_echoes_returns_what_it_was_given_by_name() -> None:
    echo = {"echo": ["result", "value", "flow_failures"]}
    items = [
        {**_task("giver", {"add": ["value"], "plus": 1}), "undoes": echo},
        {**_task("fail", {"raise": "Woot!"}), "undoes": {"echo": ["result"]}},
    ]
    case = copy.deepcopy(CASES["B12-revert-result-kept"]) | {
        "flow": {"type": "linear", "name": "f", "items": items},
        "store": {"value": 4},
    }
    woot = {"failure": "RuntimeError: Woot!"}
    [expected] = case["expected"]
    said = {("giver", "SUCCESS"): 5, ("fail", "REVERTED"): {"result": woot}}
    said["giver", "REVERTED"] = {"result": 5, "value": 4, "flow_failures": {"fail": woot}}
    for event in expected["events"]:
        if (event[1], event[3]) in said:
            event[4] = said[event[1], event[3]]
    expected["fetch_all"] = {"value": 4}
    for store in ("memory", "sqlite"):
        assert flows.check(case, store) == []

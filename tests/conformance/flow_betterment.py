"""Intended differences from TaskFlow: error names, and cases that the recording marks as quirks.

`ERRORS` translates the names. Each rule in `RULES` converts one of TaskFlow's outcomes into ours, and applies only to
cases with a ``quirk``. ``docs/reference/flows-taskflow.md`` lists both.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ERRORS", "JOB_ERRORS", "RULES", "Rule", "bettered"]

Json = Any

#: TaskFlow errors and our counterparts. If there are several, the object that raises the error determines which one
#: applies. Errors that are not listed here do not come from TaskFlow, and have the same name and text in both.
ERRORS: dict[str, tuple[str, ...]] = {
    "MissingDependencies": ("MissingDependencies",),
    "AmbiguousDependency": ("AmbiguousDependency",),
    "DependencyFailure": ("FlowError",),
    "Duplicate": ("FlowError",),
    "InvalidState": ("InvalidState",),
    "NotFound": ("FlowError", "MissingDependencies"),
    "WrappedFailure": ("StepFailed", "ExceptionGroup"),
    "ExecutionFailure": ("StepFailed",),
}

#: TaskFlow errors from job queues, each with the possible operations and our results.
JOB_ERRORS: dict[str, frozenset[tuple[str, str]]] = {
    "UnclaimableJob": frozenset(
        {("claim", "!InvalidState"), ("claim2", "!InvalidState"), ("claim_exp", "!InvalidState")}
    ),
    "JobFailure": frozenset((asked, "!ClaimLost") for asked in ("consume", "abandon", "trash", "extend")),
    # TaskFlow raises NotFound even for jobs that exist but are not claimed or not complete.
    "NotFound": frozenset(
        {("wait", "nothing"), *((asked, "!InvalidState") for asked in ("claim", "consume", "abandon", "trash"))}
    ),
}

_AT_REST = {"SUCCESS", "FAILURE", "REVERTED", "SUSPENDED"}


class Rule(NamedTuple):
    """An intended difference."""

    name: str
    #: Changes the expected outcomes of all steps in place.
    apply: Callable[[Json, Sequence[Json]], None]


def bettered(case: Json) -> Json:
    """Return the case with our outcome instead of the quirk."""
    if "quirk" not in case:
        return case
    case = copy.deepcopy(case)
    expected = [each for each in case["expected"] if each is not None]
    for rule in RULES:
        rule.apply(case, expected)
    return case


def _no_failure_is_a_value(case: Json, expected: Sequence[Json]) -> None:
    for step in expected:
        values = (step["fetch_all"] or {}).items()
        if values:
            step["fetch_all"] = {name: value for name, value in values if not _is_failure(value)}


def _is_failure(value: Json) -> bool:
    return isinstance(value, dict) and value.keys() == {"failure"}


def _what_is_not_undone_is_failure(case: Json, expected: Sequence[Json]) -> None:
    for step in expected:
        unresolved = [state for state, intention in step["atoms"].values() if (state, intention) in _UNDONE]
        if step["flow_state"] == "REVERTED" and unresolved:
            step["flow_state"] = "FAILURE"
            step["engine_states"] = [state for state in step["engine_states"] if state != "REVERTED"]
            step["events"] = [
                [*event[:3], "FAILURE", *event[4:]] if event[0] == "flow" and event[3] == "REVERTED" else event
                for event in step["events"]
            ]
            # The error lists the steps that could not be reverted.
            step["raised"] = step["raised"] and {"any_of": step["raised"]}


_UNDONE = {("REVERT_FAILURE", "REVERT"), ("REVERT_FAILURE", "EXECUTE"), ("FAILURE", "EXECUTE")}


def _what_never_ran_is_pending(case: Json, expected: Sequence[Json]) -> None:
    for step in expected:
        stuck = [name for name, (state, _) in step["atoms"].items() if state == "RUNNING"]
        if step["flow_state"] not in _AT_REST:
            continue
        for name in stuck:
            step["atoms"][name][0] = "PENDING"
            step["events"] = [event for event in step["events"] if event[1:] != [name, "PENDING", "RUNNING"]]


def _a_reset_forgets_what_retries_know(case: Json, expected: Sequence[Json]) -> None:
    """Expect a run after a reset to have the same outcome as the first run."""
    if "history" not in case["quirk"]:
        return
    ops = [step["op"] for step in case["steps"]]
    first = ops.index("run")
    for place in range(1, len(ops)):
        if (ops[place - 1], ops[place]) == ("reset", "run"):
            case["expected"][place] = copy.deepcopy(case["expected"][first])


def _a_reset_is_whole_or_refused(case: Json, expected: Sequence[Json]) -> None:
    """Expect a reset of a failed flow to succeed, and a reset in any other state to be rejected without changes."""
    before: Json = None
    done = refused = False
    for step, wanted in zip(case["steps"], case["expected"], strict=True):
        if wanted is None:
            continue
        if step["op"] == "reset" and (wanted["raised"] or {}).get("type") == "InvalidState":
            done, refused = wanted["flow_state"] == "FAILURE", wanted["flow_state"] != "FAILURE"
            if done:
                wanted |= {"raised": None, "flow_state": "PENDING"}
                wanted["events"] = [*wanted["events"], ["flow", case["flow"]["name"], "FAILURE", "PENDING"]]
            else:
                wanted |= {"events": [], "atoms": before["atoms"], "fetch_all": before["fetch_all"]}
        elif done:
            wanted["events"] = [_from_pending(event) for event in wanted["events"]]
            done = False
        elif refused:
            # After a rejected reset, less work remains than in TaskFlow, so only the final state is compared.
            wanted |= {"events": None, "engine_states": None}
        before = wanted


def _from_pending(event: Json) -> Json:
    begins = event[0] == "flow" and event[2:] == ["FAILURE", "RUNNING"]
    return [*event[:2], "PENDING", "RUNNING"] if begins else event


#: Rules in the order in which they are applied.
RULES = (
    Rule("no failure is a value", _no_failure_is_a_value),
    Rule("what is not undone is FAILURE, each time", _what_is_not_undone_is_failure),
    Rule("what never ran is PENDING, and nobody is told that it runs", _what_never_ran_is_pending),
    Rule("a reset forgets what retries know", _a_reset_forgets_what_retries_know),
    Rule("a reset is done as a whole, also from FAILURE, or refused", _a_reset_is_whole_or_refused),
)

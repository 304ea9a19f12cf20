"""Replays cases recorded with Erlang/OTP on our supervisor.

``python -m tests.conformance.supervisor FILE.json`` prints the differences and the skipped cases. Its last line is ``N
passed, M failed``. The legend in ``tests/data/otp_supervisor_cases.json`` describes the format. Under ``ours``, a case
may define a result that replaces OTP's result.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lifecycle.testing.virtual import VirtualLoop
from tests.conformance.playing import ACTIONS, Outcome, play

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["check", "main", "reason_to_skip"]

Json = Any

_FLAGS = {"strategy", "intensity", "period", "auto_shutdown"}
_CHILD = {"id", "behaviour", "restart", "shutdown", "type", "significant"}
_BEHAVIOUR = {"sup", "start_ms", "stop_ms", "stop_reason"} | {
    f"{what}_{when}" for what in ("bad", "crash", "fail", "ignore") for when in ("on", "from")
}

#: An intended difference: a supervisor that reaches its restart limit has failed. It is restarted if it is transient.
_OURS: dict[str, Json] = {
    "71": {
        "events": [
            *([["start", "x"], ["start", "inner"]]),
            *([["exit", "x", "e"], ["exit", "inner", "shutdown"]]),
            *([["start", "x"], ["start", "inner"]]),
        ],
        "results": [[["which"], [["inner", "pid"]]], [["alive"], True]],
    }
}


def reason_to_skip(case: Json) -> str | None:
    """Return why ``case`` applies only to Erlang's supervisor, or None if it applies to ours as well."""
    if not isinstance(case["children"], list) or not isinstance(case["flags"], dict):
        return "what init returns: ours is given data by its constructor, and has no init"
    for action, *arguments in case["actions"]:
        if reason := _not_ours(case, action, arguments):
            return reason
    unknown = case["flags"].keys() - _FLAGS
    for child in _everybody(case):
        unknown |= child.keys() - _CHILD | child.get("behaviour", {}).keys() - _BEHAVIOUR
        unknown |= _inner(child).get("flags", {}).keys() - _FLAGS
    return f"{sorted(unknown)} has no counterpart" if unknown else None


def _not_ours(case: Json, action: str, arguments: list[Json]) -> str | None:
    if action not in ACTIONS:
        return f"the action {action!r} is Erlang's alone"
    if len(arguments) != len(inspect.signature(ACTIONS[action]).parameters) - 1:
        return f"the action {action!r} with {arguments!r} is Erlang's alone"
    if action == "stop" and arguments != ["shutdown"]:
        return f"a supervisor of ours is not ended by a message with the reason {arguments[0]!r}"
    if action in ("die", "kill", "term", "restart", "delete") and not isinstance(arguments[0], str):
        return f"{action!r} by pid: our children have names"
    if action in ("die", "kill") and arguments[0] in {each.get("id") for each in _everybody(case) if _inner(each)}:
        return f"{arguments[0]!r} is a supervisor, and one of ours is not ended from outside but by a stop"
    return None


def _everybody(case: Json) -> Iterator[Json]:
    """Return all child specs in ``case``, including those from inner supervisors and those added later."""
    left = [*case["children"], *(each[1] for each in case["actions"] if each[0] == "add")]
    while left:
        child = left.pop()
        if isinstance(child, dict):
            yield child
            left += _inner(child).get("children", [])


def _inner(child: Json) -> Json:
    return child.get("behaviour", {}).get("sup", {})


def check(case: Json) -> list[str]:
    """Return the differences from the recording."""
    expected = {**case, **_OURS.get(case["id"], {}), **case.get("ours", {})}
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            outcome = runner.run(_bounded(case))
    except Exception as error:  # noqa: BLE001  # any error is a failure
        return [f"could not be played: {error!r}"]
    return [
        f"{what}: expected {wanted!r}, got {got!r}"
        for what, wanted, got in _compared(expected, outcome)
        if wanted != got
    ]


async def _bounded(case: Json) -> Outcome:
    async with asyncio.timeout(3600):
        return await play(case)


def _compared(case: Json, outcome: Outcome) -> list[tuple[str, Json, Json]]:
    unordered = case["flags"].get("strategy") == "simple_one_for_one"
    return [
        ("start", _start(case["start"]), _start(outcome.start, like=case["start"])),
        (
            "events",
            _events(case, case["events"], unordered=unordered),
            _events(case, outcome.events, unordered=unordered),
        ),
        ("results", _results(case["results"]), _results(outcome.results)),
        ("alive", case["alive"], outcome.alive),
        ("ended", case["sup_exit"] is not None, outcome.ended),
    ]


def _start(start: Json, *, like: Json = None) -> Json:
    """Return whether the start succeeded and, if not, the name of the child that caused the failure."""
    if start == "ok":
        return "ok"
    culprit = _culprit(start if like is None else like)
    if like is None or culprit is None:
        return ["error", culprit]
    return ["error", culprit if repr(culprit) in str(start) else f"not named in {start!r}"]


def _culprit(start: Json) -> str | None:
    flat = json.loads(json.dumps(start))
    while isinstance(flat, list):
        if "failed_to_start_child" in flat:
            return str(flat[flat.index("failed_to_start_child") + 1])
        flat = next((each for each in flat if isinstance(each, list)), None)
    return None


def _events(case: Json, events: list[Json], *, unordered: bool) -> Json:
    """Return the events. Leave out stop requests without a grace period, because their arrival depends on timing."""
    curt = {child.get("id") for child in _everybody(case) if child.get("shutdown") in ("brutal_kill", 0)}
    kept = [event for event in events if not (event[0] == "stopping" and event[1] in curt)]
    return Counter(json.dumps(event) for event in kept) if unordered else kept


def _results(results: list[Json]) -> list[Json]:
    """Remove plain successes, which are not always recorded, and OTP's reasons for a failed start."""
    return [[call, _result(result)] for call, result in results if result != "ok"]


def _result(result: Json) -> Json:
    known = ("already_present", "already_started", "not_found", "restarting", "running", "simple_one_for_one")
    if isinstance(result, list) and result[:1] == ["error"]:
        return ["error", result[1] if result[1] in known else "could not start"]
    return result


def main(path: str) -> int:
    """Replay all cases in a file, and return the number of failures."""
    cases = json.loads(Path(path).read_text())["cases"]
    skipped = {case["id"]: reason for case in cases if (reason := reason_to_skip(case))}
    failed = {case["id"]: found for case in cases if case["id"] not in skipped and (found := check(case))}
    for name, reason in skipped.items():
        print(f"skipped {name}: {reason}")
    for case in cases:
        for difference in failed.get(case["id"], ()):
            print(f"FAILED {case['id']} ({case['title']}): {difference}")
    print(f"{len(skipped)} skipped")
    print(f"{len(cases) - len(skipped) - len(failed)} passed, {len(failed)} failed")
    return len(failed)


if __name__ == "__main__":
    logging.getLogger("lifecycle").addHandler(logging.NullHandler())
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.conformance.supervisor FILE.json")
    sys.exit(bool(main(sys.argv[1])))

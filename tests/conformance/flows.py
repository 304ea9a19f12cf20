"""Replays cases that were recorded with TaskFlow's engine and job queues.

``python -m tests.conformance.flows FILE.json --store sqlite`` prints the differences. Its last line is ``N passed, M
failed``. The ``meta`` object in ``tests/data/taskflow_conformance.json`` describes the format. Unknown data in the file
is a failure. `tests.conformance.flow_betterment` contains the intended differences.

If the process dies in a case, different rules apply. The flow must end as in an undisturbed run, and the transition
tables must allow each stored transition. Each execution of a task must be recorded in the store.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests import postgres
from tests.conformance.flow_betterment import bettered
from tests.conformance.flow_building import only
from tests.conformance.flow_comparing import EACH_EVENT_WRITTEN, compared, ended_alike, same_error, same_events
from tests.conformance.flow_jobs import WORKED, check_job, check_worker
from tests.conformance.flow_playing import STORES, Crash, Outcome, Stage
from tests.flows.legality import illegal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence

__all__ = ["check", "main", "plays"]

Json = Any

_CASE = {"id", "source", "title", "note", "flow", "store", "options", "steps", "expected", "order", "quirk"}
_CRASH = {"crash", "baseline", "final_equals_baseline"}
_EXPECTED = {"events", "engine_states", "raised", "flow_state", "atoms", "fetch_all"}
_MANY = 100_000


def check(case: Json, store: str = "memory", others: Mapping[str, Json] | None = None) -> list[str]:
    """Return the differences from the recording, with this kind of store.

    ``others`` maps ids to cases, and may contain the same case without the crash.
    """
    try:
        only(case, _CASE | _CRASH, "the case")
        with tempfile.TemporaryDirectory() as directory:
            return asyncio.run(_check(bettered(case), store, Path(directory), others or {}))
    except Exception as error:  # noqa: BLE001  # any error is a failure
        return [f"could not be played: {error!r}"]


async def _check(case: Json, store: str, directory: Path, others: Mapping[str, Json]) -> list[str]:
    outcomes, found = await _played(case, STORES[store](directory))
    if not case.get("crash"):
        return found + list(_by_step(case, outcomes))
    baseline = others.get(case["baseline"])
    if baseline is None:
        baseline = {"expected": [await _undisturbed(case)]}
    return found + list(_after_crash(case, outcomes, baseline["expected"][-1]))


async def _played(case: Json, store: Any) -> tuple[list[Outcome | None], list[str]]:
    """Return the outcome of each step, and violations of rules that apply to all cases."""
    if len(case["steps"]) != len(case["expected"]):
        raise ValueError(f"{len(case['steps'])} steps, but {len(case['expected'])} outcomes; expected one for each")
    async with store:
        stage = Stage(case, store)
        outcomes = [
            await stage.perform(step, expected) for step, expected in zip(case["steps"], case["expected"], strict=True)
        ]
        changes = await store.changes(stage.id, limit=_MANY)
    # An edited store has gaps in its history.
    continuous = all(step["op"] != "storage" for step in case["steps"])
    return outcomes, [*illegal(changes, continuous=continuous), *stage.executed_too_often(changes)]


async def _undisturbed(case: Json) -> Json:
    """Return the result of the flow without a crash."""
    steps = [{"op": "run"}]
    (outcome,), _ = await _played({**case, "steps": steps, "expected": [None]}, STORES["memory"](Path()))
    assert outcome is not None
    return {"flow_state": outcome.flow_state, "atoms": outcome.steps, "fetch_all": outcome.fetch_all}


def _by_step(case: Json, outcomes: Sequence[Outcome | None]) -> Iterator[str]:
    edited = False
    for number, (step, outcome, expected) in enumerate(zip(case["steps"], outcomes, case["expected"], strict=True)):
        edited = (edited or step["op"] == "storage") and step["op"] != "reload"
        if (outcome is None) != (expected is None):
            yield f"step {number}: {step['op']!r} has {'no' if outcome is None else 'an'} outcome with us"
        elif outcome is not None:
            only(expected, _EXPECTED, f"what is expected of step {number}")
            for difference in compared(outcome, expected, order=case["order"], edited=edited):
                yield f"step {number}: {difference}"


def _after_crash(case: Json, outcomes: Sequence[Outcome | None], baseline: Json) -> Iterator[str]:
    *before, last = [outcome for outcome in outcomes if outcome is not None]
    for outcome, expected in zip(before, case["expected"], strict=False):
        if case["order"] == EACH_EVENT_WRITTEN and not isinstance(outcome.raised, Crash):
            yield f"it lives on after {outcome.events!r}, and was to die after {expected['events']!r}"
        elif not same_events(outcome.events, expected["events"]):
            yield f"events: expected {expected['events']!r}, got {outcome.events!r}"
    for difference in ended_alike(last, baseline):
        yield f"without the crash, {difference}"
    expected = case["expected"][-1]
    if not same_error(last.raised, expected["raised"], edited=True):
        yield f"raised: expected {expected['raised']!r}, got {last.raised!r}"


def plays(file: Json) -> Iterator[tuple[str, Callable[[str], list[str]]]]:
    """Yield each case in a file: its name, and a function that checks it with a given kind of store.

    Raises:
        ValueError: if the file also contains cases of a different kind.
    """
    kinds = {name: file[name] for name in file if name.endswith("cases")}
    only(kinds, {"cases", "job_cases", "conductor_cases"}, "the file")
    by_id = {case["id"]: case for case in file.get("cases", ())}
    for case in file.get("cases", ()):
        yield case["id"], partial(check, case, others=by_id)
    for case in file.get("job_cases", ()):
        yield case["id"], partial(_check_queue, check_job, case)
    for case in file.get("conductor_cases", ()):
        if case["id"] in WORKED:
            yield case["id"], partial(_check_queue, check_worker, case)


def _check_queue(checked: Callable[..., Coroutine[Any, Any, list[str]]], case: Json, store: str) -> list[str]:
    try:
        with tempfile.TemporaryDirectory() as directory:
            return asyncio.run(checked(case, STORES[store](Path(directory))))
    except Exception as error:  # noqa: BLE001  # any error is a failure
        return [f"could not be played: {error!r}"]


def main(path: str, store: str = "memory") -> int:
    """Replay all cases in a file, and return the number of failures."""
    file = json.loads(Path(path).read_text())
    for case in file.get("conductor_cases", ()):
        if case["id"] not in WORKED:
            print(f"skipped {case['id']}: the file has no flow for the worker, or our worker does not support it")
    passed = failed = 0
    for name, play in plays(file):
        differences = play(store)
        for difference in differences:
            print(f"FAILED {name}: {difference}")
        failed += bool(differences)
        passed += not differences
    print(f"{passed} passed, {failed} failed")
    return failed


if __name__ == "__main__":
    logging.getLogger("lifecycle").addHandler(logging.NullHandler())
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.flows", description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--store", choices=sorted(STORES), default="memory")
    given = parser.parse_args()
    try:
        sys.exit(bool(main(given.file, given.store)))
    finally:
        postgres.stop()

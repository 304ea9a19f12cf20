"""The five transition tables: each pair of states has TaskFlow's result, except for two guarded transitions."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from lifecycle.flows import InvalidState
from lifecycle.flows.states import ENGINES, FLOWS, JOBS, RETRIES, TASKS, Table

TABLES: dict[str, Table[Any]] = {"engine": ENGINES, "flow": FLOWS, "task": TASKS, "retry": RETRIES, "job": JOBS}
RECORDED = json.loads((Path(__file__).parents[1] / "data" / "taskflow_transitions.json").read_text())


def recorded(kind: str, key: str) -> set[tuple[str, str]]:
    return {(old, new) for old, new in RECORDED[kind].get(key, [])}


@pytest.mark.parametrize("kind", TABLES)
def test_the_states_are_those_of_taskflow(kind: str) -> None:
    allowed = recorded(kind, "allowed")
    states = set(RECORDED[kind].get("states", [])) or {state for pair in allowed for state in pair}
    assert {str(state) for state in TABLES[kind].moves} == states
    assert TABLES[kind].initial == RECORDED[kind].get("initial", RECORDED[kind].get("start"))


@pytest.mark.parametrize("kind", TABLES)
def test_every_pair_is_allowed_ignored_or_refused_as_in_taskflow(kind: str) -> None:
    for old, new in product(TABLES[kind].moves, repeat=2):
        check_pair(kind, old, new)


def check_pair(kind: str, old: Any, new: Any) -> None:
    table = TABLES[kind]
    pair = (str(old), str(new))
    if pair in recorded(kind, "allowed"):
        assert table.check("x", old, new)
    elif pair in recorded(kind, "ignored") | recorded(kind, "ignored_identity"):
        assert not table.check("x", old, new)
    else:
        with pytest.raises(InvalidState, match=f"{old} to {new}; legal: "):
            table.check("x", old, new)


@pytest.mark.parametrize("kind", ["task", "retry"])
def test_moves_back_need_the_reason_cancelled(kind: str) -> None:
    table = TABLES[kind]
    back = {("RUNNING", "PENDING"), ("REVERTING", "SUCCESS"), ("REVERTING", "FAILURE")}
    guarded = {
        (str(old), str(new))
        for old, new in product(table.moves, repeat=2)
        if new not in table.moves[old] and _allows(table, old, new, "cancelled")
    }
    assert guarded == back


def _allows(table: Table[Any], old: Any, new: Any, reason: str) -> bool:
    try:
        return table.check("x", old, new, reason)
    except InvalidState:
        return False


@pytest.mark.parametrize("kind", TABLES)
def test_a_machine_allows_the_moves_of_its_table(kind: str) -> None:
    table = TABLES[kind]
    for old, new in product(table.moves, repeat=2):
        allowed = any(_allows(table, old, new, reason) for reason in ("", "cancelled", "reset"))
        assert table.machine("x", old).can(new) == (allowed or (old, new) in table.ignored)

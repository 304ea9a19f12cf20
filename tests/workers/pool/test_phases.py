"""The phases of a member: a projection of its life, its lease and its health, and nothing besides."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any, get_args

import pytest

from lifecycle.errors import InvalidTransition
from lifecycle.workers.model import Status
from lifecycle.workers.pool.phases import REASONS, TABLE, Phase, PhaseChange, PhaseLog, Reason, phase_of
from tests.conformance import pool

FILE = Path(__file__).parents[2] / "data" / "pool_transitions.json"
DATA = json.loads(FILE.read_text())


def test_the_projection_can_do_all_that_the_table_has_and_nothing_else() -> None:
    """By enumeration: every step from every combination that a member can come to."""
    moves = {(point.phase, to.phase) for point in pool.reachable() for to in pool.moves(point)}
    moved = {(source, target) for source, target in moves if source is not target}
    assert moved == {(Phase(s), Phase(t)) for s, row in DATA["recommended_table"].items() for t in row}
    assert moved == REASONS.keys()


def test_a_member_can_come_to_every_phase() -> None:
    assert {point.phase for point in pool.reachable()} == set(Phase)


def test_the_table_is_the_recommended_one() -> None:
    assert {source: set(row) for source, row in TABLE.items()} == {
        source: set(row) for source, row in DATA["recommended_table"].items()
    }
    assert [phase for phase, row in TABLE.items() if not row] == DATA["final"]


def test_each_move_has_the_reasons_of_the_file_and_no_other() -> None:
    assert dict(REASONS) == {(each["source"], each["target"]): set(each["reasons"]) for each in DATA["edges"]}
    assert list(get_args(Reason)) == DATA["reasons"]["recommended"]


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("leased", [False, True])
@pytest.mark.parametrize("sound", [False, True])
def test_every_combination_has_the_phase_that_the_file_gives_it(status: Status, leased: bool, sound: bool) -> None:
    assert phase_of(status, leased=leased, sound=sound) == _projected(status, leased=leased, sound=sound)


def _projected(status: str, *, leased: bool, sound: bool) -> str:
    """The lines of the file, one by one."""
    if status in ("created", "pending", "starting"):
        return "initializing"
    if status == "stopping":
        return "terminating"
    if status in ("stopped", "finished", "failed", "killed"):
        return "terminated"
    if leased:
        return "busy"
    return "ready" if status == "running" and sound else "degraded"


def test_the_predicates_are_those_of_the_file() -> None:
    assert [phase for phase in Phase if phase.leasable] == ["ready"]
    assert [phase for phase in Phase if not phase.alive] == ["terminating", "terminated"]
    assert [phase for phase in Phase if phase.drainable] == ["busy", "degraded"]


# -- the log -----------------------------------------------------------------------------------------------------


def test_a_log_says_what_happened_newest_first() -> None:
    log = PhaseLog("ml-1", 10.0)
    assert (len(log), log.newest, log.changes) == (0, None, ())
    log.record(Phase.INITIALIZING, Phase.READY, "init_complete", now=10.5)
    log.record(Phase.READY, Phase.BUSY, "checkout", now=12.5, session="s")
    newest, oldest = log.changes
    assert (oldest.source, oldest.target, oldest.reason, oldest.duration) == (
        "initializing",
        "ready",
        "init_complete",
        0.5,
    )
    assert (newest.source, newest.target, newest.reason, newest.duration) == ("ready", "busy", "checkout", 2.0)
    assert (newest.meta, oldest.meta) == ({"session": "s"}, {})
    assert newest == log.newest
    assert newest.at >= oldest.at > 1e9


def test_what_happened_cannot_be_changed() -> None:
    change = PhaseChange(Phase.READY, Phase.BUSY, "checkout", 0.0, 0.0, {})
    with pytest.raises(dataclasses.FrozenInstanceError):
        change.target = Phase.READY  # type: ignore[misc]  # what is tested


def test_only_the_last_moves_are_kept() -> None:
    log = PhaseLog("ml-1", 0.0)
    log.record(Phase.INITIALIZING, Phase.READY, "init_complete", now=0.0)
    for number in range(100):
        log.record(Phase.READY, Phase.BUSY, "checkout", now=2.0 * number, call=number)
        log.record(Phase.BUSY, Phase.READY, "checkin", now=2.0 * number + 1, call=number)
    assert [change.meta["call"] for change in log.changes] == [99 - number // 2 for number in range(32)]


BAD: list[tuple[list[tuple[Phase, Phase, str]], str]] = [
    ([(Phase.INITIALIZING, Phase.BUSY, "checkout")], "cannot go from initializing to busy; legal: degraded, ready, "),
    ([(Phase.INITIALIZING, Phase.INITIALIZING, "init_complete")], "from initializing to initializing; legal: "),
    ([(Phase.INITIALIZING, Phase.READY, "because")], "because of 'because'; the reasons for that are: init_complete"),
    ([(Phase.INITIALIZING, Phase.READY, "checkout")], "because of 'checkout'"),
    (
        [(Phase.INITIALIZING, Phase.TERMINATED, "exited"), (Phase.TERMINATED, Phase.READY, "init_complete")],
        "legal: nothing, terminated is final",
    ),
    ([(Phase.READY, Phase.BUSY, "checkout")], "it is initializing; record every move, in order"),
]


@pytest.mark.parametrize(("moves", "why"), BAD)
def test_a_move_that_there_is_not_is_refused_and_not_noted(
    moves: list[Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = PhaseLog("ml-1", 0.0)
    *good, bad = moves
    for move in good:
        log.record(*move, now=0.0)
    before = log.changes
    caplog.clear()
    with pytest.raises(InvalidTransition, match="'ml-1' cannot go") as caught:
        log.record(*bad, now=1.0)
    assert why in str(caught.value)
    assert log.changes == before
    assert not caplog.records


def test_calls_are_told_at_debug_bad_news_as_warnings_and_the_rest_at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "lifecycle.workers")
    log, source = PhaseLog("ml-1", 0.0), Phase.INITIALIZING
    for target, reason in [
        (Phase.READY, "init_complete"),
        (Phase.BUSY, "checkout"),
        (Phase.READY, "checkin"),
        (Phase.DEGRADED, "health_check_failed"),
        (Phase.TERMINATING, "health_limit"),
        (Phase.TERMINATED, "killed"),
    ]:
        log.record(source, target, reason, now=0.0)  # type: ignore[arg-type]  # they are reasons
        source = target
    assert [record.levelname for record in caplog.records] == ["INFO", "DEBUG", "DEBUG", "WARNING", "INFO", "WARNING"]
    assert caplog.messages[0] == "ml-1: initializing -> ready (init_complete)"

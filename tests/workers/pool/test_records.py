"""A worker's phase is derived from its status, calls and health, and each change is recorded with a reason."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import json
import logging
import os
import re
import signal
from pathlib import Path
from typing import get_args

import pytest

from lifecycle.workers.model import Status
from lifecycle.workers.pool import Heartbeat, Phase, PhaseChange, Pool
from lifecycle.workers.pool.records import Reason, end_reason, phase_of
from tests.conformance import pool

ROOT = Path(__file__).parents[3]
FILE = ROOT / "tests" / "data" / "pool_transitions.json"
DATA = json.loads(FILE.read_text())


def test_the_possible_phase_changes_are_those_of_the_table() -> None:
    """Try every change from every combination of states that a worker can reach."""
    moves = {(point.phase, to.phase) for point in pool.reachable() for to in pool.moves(point)}
    moved = {(source, target) for source, target in moves if source is not target}
    assert moved == {(Phase(s), Phase(t)) for s, row in DATA["recommended_table"].items() for t in row}
    assert moved == pool.REASONS.keys()


def test_every_phase_can_be_reached() -> None:
    assert {point.phase for point in pool.reachable()} == set(Phase)


#: Reasons of the recorded table that no worker reports: an unconfirmed cancellation kills the worker, with the reason
#: for the cancellation, and `Lease.discard` reports ``error``.
NEVER = {"cancel_unconfirmed", "client_lost"}


def test_the_reasons_are_those_of_the_table() -> None:
    assert set(get_args(Reason)) == set(DATA["reasons"]["recommended"]) - NEVER
    assert set().union(*pool.REASONS.values()) <= set(get_args(Reason)) | NEVER


def test_the_pool_uses_every_reason() -> None:
    folder = ROOT / "lifecycle" / "workers" / "pool"
    modules = [ast.parse(path.read_text()) for path in folder.glob("*.py") if path.name != "records.py"]
    texts = {node.value for each in modules for node in ast.walk(each) if isinstance(node, ast.Constant)}
    assert set(get_args(Reason)) - texts == set()


def test_the_page_shows_the_reasons_of_each_change() -> None:
    page = (ROOT / "docs" / "reference" / "pool.md").read_text()
    shown = {
        (Phase(source), Phase(target)): set(re.findall("`([a-z_]+)`", reasons))
        for source, row in re.findall(r"^\| ([a-z]+) \| (\*\*.*) \|$", page, re.MULTILINE)
        for target, reasons in re.findall(r"\*\*([a-z]+)\*\*: ([^;]+)", row)
    }
    assert shown == {change: reasons - NEVER for change, reasons in pool.REASONS.items()}


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase.alive])
@pytest.mark.parametrize("wanted", get_args(Reason))
def test_the_reason_to_end_a_worker_fits_its_phase(phase: Phase, wanted: Reason) -> None:
    reasons = pool.REASONS[phase, Phase.TERMINATING]
    reported = end_reason(wanted, phase)
    assert reported in reasons
    assert reported == wanted or wanted not in reasons


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("leased", [False, True])
@pytest.mark.parametrize("healthy", [False, True])
def test_every_status_and_health_has_its_phase(status: Status, leased: bool, healthy: bool) -> None:
    assert phase_of(status, leased=leased, healthy=healthy) == _projected(status, leased=leased, healthy=healthy)


def _projected(status: str, *, leased: bool, healthy: bool) -> str:
    """Yield the lines of the file."""
    if status in ("created", "pending", "starting"):
        return "initializing"
    if status == "stopping":
        return "terminating"
    if status in ("stopped", "finished", "failed", "killed"):
        return "terminated"
    if leased:
        return "busy"
    return "ready" if status == "running" and healthy else "degraded"


def test_a_worker_is_alive_until_it_terminates() -> None:
    assert [phase for phase in Phase if not phase.alive] == ["terminating", "terminated"]


# -- the history -------------------------------------------------------------------------------------------------------

TARGET = "json:JSONDecoder"


def test_a_change_is_immutable() -> None:
    change = PhaseChange(Phase.READY, Phase.BUSY, "checkout", 0.0, 0.0, {})
    with pytest.raises(dataclasses.FrozenInstanceError):
        change.target = Phase.READY  # type: ignore[misc]  # what is tested


async def test_the_history_has_the_last_changes_newest_first() -> None:
    async with Pool("ml", TARGET, size=(1, 1)) as ml:
        for number in range(100):
            await ml.call("decode", "[1]", session=str(number))
        [worker] = ml.members()
    calls = [change for change in worker.history if change.target is Phase.BUSY]
    assert len(worker.history) == 32
    assert [change.meta["session"] for change in calls] == [str(99 - number) for number in range(15)]
    assert [change.reason for change in worker.history[:4]] == ["exited", "shutdown", "checkin", "checkout"]
    assert all(newer.at >= older.at > 1e9 for newer, older in itertools.pairwise(worker.history))
    assert all(newer.source is older.target for newer, older in itertools.pairwise(worker.history))
    assert all(change.duration >= 0 for change in worker.history)


async def test_phase_changes_are_logged_at_their_level(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "lifecycle.workers")
    heartbeat = Heartbeat(every=0.02, timeout=0.1, misses=2)
    async with Pool("ml", TARGET, size=(1, 1), heartbeat=heartbeat) as ml:
        await ml.call("decode", "[1]")
        [worker] = ml.members()
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)
        await worker.wait()
    logged = {
        record.getMessage(): record.levelname
        for record in caplog.records
        if record.name == "lifecycle.workers" and record.getMessage().startswith("ml-1: ")
    }
    assert logged == {
        "ml-1: initializing -> ready (init_complete)": "INFO",
        "ml-1: ready -> busy (checkout)": "DEBUG",
        "ml-1: busy -> ready (checkin)": "DEBUG",
        "ml-1: ready -> degraded (health_check_failed)": "WARNING",
        "ml-1: degraded -> terminating (health_limit)": "INFO",
        "ml-1: terminating -> terminated (killed)": "WARNING",
    }

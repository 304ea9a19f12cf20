"""The transitions match the shared table, and four facts determine the final status."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from lifecycle.errors import WorkerFailed
from lifecycle.states import Machine
from lifecycle.workers import End, Status
from lifecycle.workers.model import TRANSITIONS, final_status

DATA: dict[str, Any] = json.loads((Path(__file__).parent.parent / "data" / "worker_transitions.json").read_text())


def test_transitions_match_the_shared_table() -> None:
    assert {old: set(row) for old, row in TRANSITIONS.items()} == {old: set(row) for old, row in DATA["table"].items()}
    assert DATA["initial"] == Status.CREATED


def test_statuses_are_strings() -> None:
    assert {f"{status}" for status in Status} == set(DATA["table"])
    assert Status("running") is Status.RUNNING


def test_state_machine_accepts_the_transitions() -> None:
    machine = Machine("w", TRANSITIONS, Status.CREATED)
    machine.to(Status.PENDING)
    machine.to(Status.STOPPED)
    assert machine.is_final


CANCELLED = End(asyncio.CancelledError())
BROKEN = End(OSError("boom"))


def process(code: int) -> End:
    return End(WorkerFailed("of a process that ended badly") if code else None, code)


@pytest.mark.parametrize(
    ("end", "asked", "forced", "sent", "status"),
    [
        # Killed by the library after the grace period.
        (End(), True, True, None, "killed"),
        (BROKEN, True, True, None, "killed"),
        (CANCELLED, True, True, None, "killed"),
        (process(-9), True, True, 15, "killed"),
        # Exited by itself just before the kill.
        (process(0), True, True, 15, "stopped"),
        (process(-15), True, True, 15, "stopped"),
        (process(3), True, True, 15, "failed"),
        # A requested stop, through a cancellation or the library's signal.
        (CANCELLED, True, False, None, "stopped"),
        (process(-15), True, False, 15, "stopped"),
        (process(143), True, False, 15, "stopped"),
        (process(-2), True, False, 2, "stopped"),
        (process(130), True, False, 2, "stopped"),
        (process(-9), True, False, 9, "stopped"),
        # Any other error.
        (BROKEN, True, False, None, "failed"),
        (BROKEN, False, False, None, "failed"),
        (CANCELLED, False, False, None, "failed"),
        (process(1), True, False, 15, "failed"),
        (process(130), True, False, 15, "failed"),
        (process(-9), True, False, 15, "failed"),
        (process(-9), False, False, 15, "failed"),
        (process(-15), False, False, 15, "failed"),
        (process(143), False, False, 15, "failed"),
        (process(3), False, False, 15, "failed"),
        # No error.
        (End(), True, False, None, "stopped"),
        (process(0), True, False, 15, "stopped"),
        (End(), False, False, None, "finished"),
        (process(0), False, False, 15, "finished"),
    ],
)
def test_the_first_rule_that_fits_gives_the_final_status(
    end: End, asked: bool, forced: bool, sent: int | None, status: str
) -> None:
    assert final_status(end, asked=asked, forced=forced, sent=sent) == status

"""The soak's checks detect the violations that they are meant to detect."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.soak.history import History
from tests.soak.notes import NAME
from tests.soak.samples import Series, Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: A line of the notes: the run, the line's kind, and its values.
Line = tuple[int, str, list[object]]


def judged(directory: Path, lines: Sequence[Line]) -> History:
    written = (json.dumps([life, kind, *what]) for life, kind, what in lines)
    (directory / NAME).write_text("".join(f"{line}\n" for line in written))
    history = History(directory)
    history.read()
    return history


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ([(1, "handled", [7, 1]), (1, "handled", [7, 1])], "the webhook 7 was handled twice in life 1"),
        ([(1, "effect", ["job-1", "k"]), (1, "effect", ["job-1", "k"])], "k was done twice"),
        ([(1, "done", [1, "id"]), (2, "effect", ["job-1", "k"])], "k was done after the end of its flow"),
        ([(1, "deployed", [5, "SUCCESS"])], "the deploy 5 came to SUCCESS"),
        ([(1, "reverted", ["deploy-4"])], "deploy-4 was undone"),
        ([(1, "call", [3]), (1, "call", [3])], "the call 3 was carried out twice"),
        ([(1, "wrong", ["something else"])], "something else"),
    ],
)
def test_violations_are_found(tmp_path: Path, lines: list[Line], wrong: str) -> None:
    [found] = judged(tmp_path, lines).wrong
    assert wrong in found


@pytest.mark.parametrize(
    "lines",
    [
        [(1, "handled", [7, 1]), (2, "handled", [7, 2])],
        [(1, "effect", ["job-1", "k"]), (2, "effect", ["job-1", "k"]), (2, "done", [1, "id"])],
        [(1, "deployed", [5, "REVERTED"]), (2, "deployed", [4, "SUCCESS"])],
        [(1, "call", [3]), (2, "call", [3])],
    ],
)
def test_effects_of_a_kill_are_not_violations(tmp_path: Path, lines: list[Line]) -> None:
    assert judged(tmp_path, lines).wrong == []


def test_accepted_requests_that_were_not_handled_are_found(tmp_path: Path) -> None:
    history = judged(tmp_path, [(1, "handled", [1, 1]), (1, "posted", [2])])
    history.accepted["plain"] |= {1, 3}
    history.refused.add(1)
    history.on_the_bus.add(4)
    assert [what.split(":")[0] for what in history.lacking()] == [
        "accepted and not handled",
        "posted and not done",
        "on the bus and not handled",
        "refused and handled",
    ]


def test_growth_is_found_in_a_run_that_is_long_enough() -> None:
    series = Series()
    for second in range(100):
        series.add(second, {"descriptors": 50 + second, "tasks": 80 + second % 7})
    [wrong] = Table("a life", series, judged=True).wrong()
    assert wrong == "a life: descriptors grew from 87 to 137, and 105.7 is the most"
    assert Table("a life", series, judged=False).wrong() == []

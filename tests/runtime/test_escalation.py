"""Which signal of a series means what, as a table."""

from __future__ import annotations

from signal import SIGINT, SIGTERM

import pytest

from lifecycle.runtime.escalation import Escalation, Verdict
from lifecycle.runtime.records import Settings

STOP, COUNT, CAPTURE, FORCE = Verdict.STOP, Verdict.COUNT, Verdict.CAPTURE, Verdict.FORCE


def verdicts(settings: Settings, *signums: int, routed: bool = False, gap: float = 0.1) -> list[Verdict]:
    """Judge signals that come ``gap`` seconds apart; the program stops where it is told to."""
    escalation, stopping, judged = Escalation(settings), False, []
    for number, signum in enumerate(signums):
        wanted = routed and signum == SIGINT and not stopping
        judged.append(escalation.heed(signum, routed=wanted, stopping=stopping, now=100 + number * gap))
        stopping = stopping or judged[-1] is STOP
    return judged


@pytest.mark.parametrize(
    ("force_exit", "cancel", "routed", "expected"),
    [
        (1, None, False, [STOP, FORCE]),
        (1, True, True, [STOP, FORCE]),
        (2, True, False, [STOP, FORCE]),
        (3, True, False, [STOP, COUNT, FORCE]),
        (2, None, False, [CAPTURE, FORCE]),
        (3, None, False, [CAPTURE, CAPTURE, FORCE]),
        (1, None, True, [CAPTURE, CAPTURE, FORCE]),
        (2, None, True, [CAPTURE, CAPTURE, CAPTURE, FORCE]),
        (1, False, False, [CAPTURE, CAPTURE, FORCE]),
        (2, False, False, [CAPTURE, CAPTURE, CAPTURE, FORCE]),
        (0, None, False, [STOP, COUNT, COUNT, COUNT, COUNT, COUNT]),
        (0, False, False, [CAPTURE] * 6),
    ],
)
def test_sigint_escalates_to_force_exit(
    force_exit: int, cancel: bool | None, routed: bool, expected: list[Verdict]
) -> None:
    settings = Settings(force_exit=force_exit, cancel_on_interrupt=cancel)
    assert verdicts(settings, *[SIGINT] * len(expected), routed=routed) == expected


@pytest.mark.parametrize("captured", [0, 1, 2])
def test_sigterm_begins_the_shutdown_whatever_came_before(captured: int) -> None:
    settings = Settings(cancel_on_interrupt=False)
    assert verdicts(settings, *[SIGINT] * captured, SIGTERM) == [CAPTURE] * captured + [STOP]


def test_sigterm_begins_the_shutdown_even_where_the_next_signal_would_force() -> None:
    assert verdicts(Settings(force_exit=2), SIGINT, SIGTERM, SIGTERM) == [CAPTURE, STOP, FORCE]


def test_signals_of_any_kind_count_towards_force_exit() -> None:
    assert verdicts(Settings(), SIGTERM, SIGINT) == [STOP, FORCE]


def test_a_series_ends_after_a_pause() -> None:
    assert verdicts(Settings(cancel_on_interrupt=False, reset_after=5), *[SIGINT] * 6, gap=5.0) == [CAPTURE] * 6


def test_a_series_goes_on_before_the_pause_is_over() -> None:
    assert verdicts(Settings(cancel_on_interrupt=False, reset_after=5), *[SIGINT] * 3, gap=4.9)[-1] is FORCE


def test_once_stopping_a_series_never_ends() -> None:
    assert verdicts(Settings(), SIGINT, SIGINT, gap=1000.0) == [STOP, FORCE]


def test_reset_begins_a_new_series() -> None:
    escalation = Escalation(Settings(cancel_on_interrupt=False))
    for now in range(6):
        assert escalation.heed(SIGINT, routed=False, stopping=False, now=now) is CAPTURE
        escalation.reset()


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ({"force_exit": -1}, ValueError),
        ({"force_exit": 1.5}, TypeError),
        ({"force_exit": True}, TypeError),
        ({"cancel_on_interrupt": "no"}, TypeError),
        ({"exit_timeout": float("nan")}, ValueError),
        ({"reset_after": -0.1}, ValueError),
        ({"hook_timeout": "5"}, TypeError),
        ({"shutdown_timeout": None}, TypeError),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(setting: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(setting))):
        Settings(**setting)  # type: ignore[arg-type]  # that is the point
